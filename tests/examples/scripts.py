"""Runs the scripts of examples/ as a user does, or without the time to start. Every run has a time limit."""

from __future__ import annotations

import contextlib
import functools
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from ranks import run_ranks

REPOSITORY = Path(__file__).parents[2]
LOADING = Path("examples/loading")


def run(*arguments: str | Path, limit_s: float = 200.0) -> str:
    """Run Python from the top of the repository and return its standard output; it must exit with 0."""
    command = [sys.executable, *map(str, arguments)]
    with subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env={name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that its ranks can be killed with it
    ) as process:
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            pytest.fail(f"{command} did not exit within {limit_s} s:\n{out}\n{err}")
    assert process.returncode == 0, f"{command} exited with {process.returncode}:\n{out}\n{err}"
    return out


def printed_by(script: Path, folder: Path) -> str:
    """Return what a script prints in a process forked from one that has imported torch, which takes seconds."""
    (printed,) = run_ranks(functools.partial(_printed, script, folder), folder, 1, store=None, start="forkserver")
    return str(printed)


def _printed(script: Path, folder: Path, _: int) -> str:
    os.chdir(REPOSITORY)
    torch.set_num_threads(1)
    sys.argv = [str(script)]
    sys.path.insert(0, str(script.parent))
    with (folder / "printed").open("w") as output, contextlib.redirect_stdout(output):
        runpy.run_path(str(script), run_name="__main__")
    return (folder / "printed").read_text()
