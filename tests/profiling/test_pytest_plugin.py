"""The marker: a test fails whose loop waits too long for data. Tests within a test, in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TESTS = """
    import time
    import pytest, torch
    from torch.utils.data import DataLoader, Dataset

    class Slow(Dataset):
        def __init__(self, seconds):
            self.seconds = seconds
        def __len__(self):
            return 120
        def __getitem__(self, index):
            time.sleep(self.seconds)
            return torch.tensor(index)

    def train(read, step, **settings):
        for batch in DataLoader(Slow(read), batch_size=2, **settings):
            time.sleep(step)
"""


def outcome_of(folder: Path, body: str) -> subprocess.CompletedProcess[str]:
    path = folder / "test_mine.py"
    path.write_text(textwrap.dedent(TESTS) + textwrap.dedent(body))
    plugin = ["-p", "fastload.profiling.pytest_plugin"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin, "--strict-markers", str(path)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    return subprocess.run(
        command, capture_output=True, text=True, cwd=folder, timeout=220, env=environment, check=False
    )


def test_a_loop_that_waits_too_long_fails_with_the_verdict(tmp_path: Path) -> None:
    done = outcome_of(
        tmp_path,
        """
        @pytest.mark.fastload(max_stall_pct=20)
        def test_it():
            train(0.005, 0.001)
        """,
    )
    assert done.returncode == 1, done.stdout
    assert "above max_stall_pct=20" in done.stdout
    assert "1 failed" in done.stdout
    assert "% of 60 steps' time" in done.stdout


def test_a_loop_that_is_kept_supplied_passes(tmp_path: Path) -> None:
    done = outcome_of(
        tmp_path,
        """
        @pytest.mark.fastload(max_stall_pct=60, warmup=4)
        def test_it():
            train(0.001, 0.01, num_workers=2)
        """,
    )
    assert done.returncode == 0, done.stdout


def test_a_failure_of_the_tests_own_stays_and_unmarked_tests_are_let_alone(tmp_path: Path) -> None:
    done = outcome_of(
        tmp_path,
        """
        @pytest.mark.fastload(max_stall_pct=0)
        def test_own():
            train(0.001, 0)
            raise RuntimeError("mine")
        def test_unmarked():
            train(0.002, 0)
        """,
    )
    assert done.returncode == 1
    assert "RuntimeError: mine" in done.stdout
    assert "max_stall_pct=0 " not in done.stdout.rpartition("short test summary")[2]
    assert "1 failed, 1 passed" in done.stdout


def test_a_test_that_loads_nothing_fails_since_nothing_was_measured(tmp_path: Path) -> None:
    done = outcome_of(
        tmp_path,
        """
        @pytest.mark.fastload(max_stall_pct=5)
        def test_it():
            pass
        """,
    )
    assert done.returncode == 1
    assert "asked no DataLoader for a batch" in done.stdout


def test_a_test_whose_steps_are_all_warm_up_fails_since_nothing_was_measured(tmp_path: Path) -> None:
    done = outcome_of(
        tmp_path,
        """
        @pytest.mark.fastload(max_stall_pct=5, warmup=60)
        def test_it():
            train(0.001, 0)
        """,
    )
    assert done.returncode == 1
    assert "no step is left to measure after warmup=60" in done.stdout


def test_a_marker_that_says_something_else_is_refused(tmp_path: Path) -> None:
    given = ["", "5", "max_stall_pct=-1", "max_stall_pct=101", "max_stall_pct='5'", "max_stall_pct=5, steps=3"]
    tests = [
        f"""
        @pytest.mark.fastload({words})
        def test_{number}():
            train(0, 0)
        """
        for number, words in enumerate(given)
    ]
    done = outcome_of(tmp_path, "".join(tests))
    assert done.returncode != 0
    for words in given:
        assert f"got fastload({words})" in done.stdout + done.stderr
    assert " passed" not in done.stdout
