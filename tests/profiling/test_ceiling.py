"""``--ceiling``: after the steps that count, as many with batches from a cache. Real scripts."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fastload.profiling.hooks.stopping import StepLimit
from fastload.profiling.reader import read_trace

SCRIPT = """
    import time, torch
    from torch.utils.data import DataLoader, Dataset
    class Slow(Dataset):
        def __len__(self):
            return 40
        def __getitem__(self, index):
            time.sleep(0.05)
            return torch.tensor(index)
    seen = 0
    try:
        while True:
            for batch in DataLoader(Slow(), batch_size=2):
                seen += 1
                time.sleep(0.002)
    finally:
        print(seen, "steps")
"""


def profiled(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    script = folder / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, "-m", "fastload.cli", "profile", "--out", str(folder / "out"), *options, str(script)]
    return subprocess.run(command, capture_output=True, text=True, timeout=220, env=dict(os.environ), check=False)


@pytest.mark.slow
def test_the_loop_goes_on_with_cached_batches_and_their_steps_are_the_bound(tmp_path: Path) -> None:
    done = profiled(tmp_path, "--steps", "10", "--warmup", "5", "--ceiling", "4")
    assert (done.returncode, done.stdout) == (0, "25 steps\n"), done.stderr
    (rank,) = read_trace(str(tmp_path / "out")).ranks
    assert len(rank.steps) == 15, "those with cached batches are no steps of the loader's"
    assert rank.steps[-1].loop_ns is not None
    assert rank.steps[-1].loop_ns < 80e6, "it ends where the first cached batch is asked for"
    assert rank.ceiling_ns is not None
    assert 2e6 < rank.ceiling_ns < 80e6, "the loop's 2 ms, without the 100 ms that a batch takes"


@pytest.mark.slow
def test_without_it_the_script_ends_after_its_steps_and_there_is_no_bound(tmp_path: Path) -> None:
    done = profiled(tmp_path, "--steps", "10", "--warmup", "0")
    assert (done.returncode, done.stdout) == (0, "10 steps\n"), done.stderr
    (rank,) = read_trace(str(tmp_path / "out")).ranks
    assert (len(rank.steps), rank.ceiling_ns) == (10, None)


@pytest.mark.slow
def test_it_cannot_follow_a_run_that_has_no_last_step(tmp_path: Path) -> None:
    done = profiled(tmp_path, "--full", "--ceiling", "4")
    assert done.returncode == 2
    assert "not allowed with argument --full" in done.stderr


@pytest.mark.slow
def test_the_status_is_the_scripts_where_the_reports_cannot_be_written(tmp_path: Path) -> None:
    script = tmp_path / "blocks.py"
    script.write_text(
        "import json, os, pathlib, torch\n"
        "from torch.utils.data import DataLoader\n"
        "list(DataLoader(torch.arange(4)))\n"
        "folder = pathlib.Path(json.loads(os.environ['FASTLOAD_PROFILE'])['folder'])\n"
        "(folder / 'profile.json').mkdir()\n"
        "raise SystemExit(7)\n"
    )
    command = [sys.executable, "-m", "fastload.cli", "profile", "--out", str(tmp_path / "out"), str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=220, check=False)
    assert done.returncode == 7
    assert "fastload profile: [Errno" in done.stderr
    assert "Traceback" not in done.stderr


def test_cached_batches_are_given_in_turns_the_oldest_first() -> None:
    stopping = StepLimit(3, cached=2, again=5)
    for batch in "abc":
        assert stopping.cached() is None
        stopping.count(batch)
    assert [stopping.cached() for _ in range(5)] == [("b",), ("c",), ("b",), ("c",), ("b",)]
    with pytest.raises(SystemExit) as ended:
        stopping.cached()
    assert ended.value.code == 0


def test_a_run_without_a_limit_is_never_ended() -> None:
    stopping = StepLimit(None)
    for batch in range(100):
        assert stopping.cached() is None
        stopping.count(batch)
