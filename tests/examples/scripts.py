"""Run the scripts of examples/ as a user does, or as torchrun does but without its start-up time.

In: a script and its arguments. Out: what it printed. Every run has a time limit.
"""

from __future__ import annotations

import contextlib
import functools
import os
import runpy
import signal
import socket
import subprocess
import sys
from pathlib import Path

import leaving
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


def run_as_torchrun(script: Path, *arguments: str, folder: Path, num_ranks: int = 2, threads: int = 1) -> list[str]:
    """Run a script in ranks with torchrun's environment variables, and return what each printed.

    The ranks are forked from a process that has imported torch: this takes milliseconds, torchrun takes five seconds.
    """
    with socket.socket() as reserved:
        # Bound but not listening: no other process gets this port, and rank 0 can still listen on it.
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        environment = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(reserved.getsockname()[1]),
            "WORLD_SIZE": str(num_ranks),
            "LOCAL_WORLD_SIZE": str(num_ranks),
        }
        body = functools.partial(_as_script, REPOSITORY / script, arguments, environment, folder, threads)
        return run_ranks(body, folder, num_ranks, store=None, start="forkserver")


def _as_script(
    script: Path, arguments: tuple[str, ...], environment: dict[str, str], folder: Path, threads: int, rank: int
) -> str:
    os.environ.update(environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
    os.chdir(REPOSITORY)
    torch.set_num_threads(threads)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent))
    written = folder / f"output-of-rank-{rank}"
    leaving.end_process = sys.exit  # instead of os._exit: this rank must return its output
    with written.open("w") as output, contextlib.redirect_stdout(output):
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as exited:
            if exited.code:
                raise
    return written.read_text()
