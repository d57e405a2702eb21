"""Training under Ray Train, whose loader's workers are Ray's."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from trainings import EXAMPLES, samples

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(600)]

STEPS = 44
RUN = ("--epochs", "1", "--batch-size", "32", "--seed", "5", "--threads", "1", "--workers", "1")
_LIMIT_S = 250.0


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two machines, at RAY_ADDRESS."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    size = {"num_cpus": 3, "object_store_memory": 100_000_000}
    made = cluster_utils.Cluster(initialize_head=True, head_node_args={**size, "include_dashboard": False})
    try:
        made.add_node(**size)
        monkeypatch.setenv("RAY_ADDRESS", made.address)
        yield made
    finally:
        made.shutdown()


def start(folder: Path, script: str, *words: str) -> subprocess.Popen[bytes]:
    """Start a script of examples/; what it prints is added to a file."""
    with (folder / "printed").open("ab") as printed:
        return subprocess.Popen(
            [sys.executable, str(EXAMPLES / script), *words],
            stdout=printed,
            stderr=printed,
        )


def finish(folder: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait for a script, which must exit with 0."""
    try:
        assert process.wait(_LIMIT_S) == 0, (folder / "printed").read_text()
    finally:
        process.kill()
        process.wait()


def logged(pipe: Path, process: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the JSON lines that a run writes to a named pipe, which holds a dozen: then the run waits."""
    end = os.open(pipe, os.O_RDWR)
    try:
        fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, 4096)
        rest = b""
        while process.poll() is None:
            if select.select([end], [], [], 1.0)[0]:
                *whole, rest = (rest + os.read(end, 4096)).split(b"\n")
                yield from map(json.loads, whole)
    finally:
        os.close(end)


def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true."""
    deadline = time.monotonic() + _LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def uninterrupted(folder: Path) -> dict[int, list[list[str]]]:
    """Return the samples of each step of a run with local workers."""
    # Not forked from this process, where Ray's threads may hold locks.
    finish(folder, start(folder, "train.py", *RUN, "--debug-samples", str(folder / "local")))
    return samples(folder, 1, "local")


@pytest.mark.thorough
def test_a_run_under_ray_train_that_was_killed_resumes_on_fewer_ranks_and_machines_with_the_same_samples(
    cluster: Any, tmp_path: Path
) -> None:
    expected = uninterrupted(tmp_path)
    pipe = tmp_path / "steps"
    os.mkfifo(pipe)
    run = ("--out", str(tmp_path / "run"), *RUN)
    words = ("--save-every", "3", "--debug-samples", str(tmp_path / "first"), "--json", str(pipe), "--log-every", "1")
    first = start(tmp_path, "ray_train.py", "--ranks", "2", *run, *words)
    with contextlib.closing(logged(pipe, first)) as lines:
        steps = [line["step"] for line in itertools.takewhile(lambda line: line["step"] < 5, lines)]
        # A checkpoint counts when Ray Train has noted it, a second after it was reported. Meanwhile the pipe is full.
        until(lambda: (tmp_path / "run" / "checkpoint_manager_snapshot.json").exists() or first.poll() is not None)
        first.kill()
        assert first.wait() == -signal.SIGKILL, (tmp_path / "printed").read_text()
    assert steps[-1] == 4
    cluster.remove_node(cluster.list_all_nodes()[-1])
    second = start(tmp_path, "ray_train.py", "--ranks", "1", *run, "--debug-samples", str(tmp_path / "second"))
    finish(tmp_path, second)
    parts = [samples(tmp_path, 2, "first"), samples(tmp_path, 1, "second")]
    assert 3 <= min(parts[1]) < STEPS - 1, "it has not been resumed"
    assert set().union(*parts) == set(expected) == set(range(STEPS))
    for part in parts:
        assert all(times == expected[step] for step, times in part.items())
