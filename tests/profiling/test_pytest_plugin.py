"""The marker: a test fails whose loop waits too long for data. Tests within a test, in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from xml.etree import ElementTree

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


def outcome_of(folder: Path, body: str, *words: str) -> subprocess.CompletedProcess[str]:
    path = folder / "test_mine.py"
    path.write_text(textwrap.dedent(TESTS) + textwrap.dedent(body))
    plugin = ["-p", "fastload.profiling.pytest_plugin"]
    options = ["-q", "-p", "no:cacheprovider", *plugin, "--strict-markers"]
    command = [sys.executable, "-m", "pytest", *options, str(path), *words]
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    return subprocess.run(
        command, capture_output=True, text=True, cwd=folder, timeout=220, env=environment, check=False
    )


MARKED = """
    @pytest.mark.fastload(max_stall_pct=20)
    def test_waits_too_long():
        train(0.005, 0.001)

    @pytest.mark.fastload(max_stall_pct=60, warmup=4)
    def test_is_kept_supplied():
        train(0.001, 0.01, num_workers=2)

    @pytest.mark.fastload(max_stall_pct=0)
    def test_fails_by_itself():
        train(0.001, 0)
        raise RuntimeError("mine")

    def test_has_no_marker():
        train(0.002, 0)

    @pytest.mark.fastload(max_stall_pct=5)
    def test_loads_nothing():
        pass

    @pytest.mark.fastload(max_stall_pct=5, warmup=60)
    def test_is_all_warm_up():
        train(0.001, 0)
"""


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each of these tests, run one after the other in one process, failed with; "" if it passed."""
    folder = tmp_path_factory.mktemp("marked")
    done = outcome_of(folder, MARKED, "--junitxml=report.xml")
    assert done.returncode == 1, done.stdout + done.stderr
    report = ElementTree.parse(folder / "report.xml")
    return {
        case.attrib["name"]: "".join(failure.attrib["message"] for failure in case) for case in report.iter("testcase")
    }


def test_a_loop_that_waits_too_long_fails_with_the_verdict(failures: dict[str, str]) -> None:
    said = failures["test_waits_too_long"]
    assert "above max_stall_pct=20" in said
    assert "% of 60 steps' time" in said


def test_a_loop_that_is_kept_supplied_passes(failures: dict[str, str]) -> None:
    assert failures["test_is_kept_supplied"] == ""


def test_a_failure_of_the_tests_own_stays_and_unmarked_tests_are_let_alone(failures: dict[str, str]) -> None:
    assert "RuntimeError: mine" in failures["test_fails_by_itself"]
    assert "max_stall_pct=0 " not in failures["test_fails_by_itself"]
    assert failures["test_has_no_marker"] == ""


def test_a_test_that_loads_nothing_fails_since_nothing_was_measured(failures: dict[str, str]) -> None:
    assert "asked no DataLoader for a batch" in failures["test_loads_nothing"]


def test_a_test_whose_steps_are_all_warm_up_fails_since_nothing_was_measured(failures: dict[str, str]) -> None:
    assert "no step is left to measure after warmup=60" in failures["test_is_all_warm_up"]


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
