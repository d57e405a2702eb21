"""Samples that are waited for."""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from benchmarks.profiling.pipelines.building import Draw, Pipeline


def _sleeping(seed: int, name: str, options: str = "batch_size=BATCH, shuffle=True", **also: Any) -> Pipeline:
    """Every sample waits for a slow store, a tenth more or less: the workers together are too slow."""
    draw = Draw(seed, name)
    sample = draw.step * draw.workers / draw.batch
    return Pipeline(
        name=name,
        cause="read",
        states=("read",),
        constants=draw.constants(SAMPLE=round(sample, 6)),
        sample="        time.sleep(SAMPLE * (0.9 + 0.2 * (index * 7 % 11) / 10))\n        return torch.zeros(16)",
        options=options,
        step_ms=draw.step * 1e3,
        stall=draw.stall,
        change={"WORKERS": 2 * draw.workers},
        settings={"num_workers": 2 * draw.workers},
        changed_ms=max(draw.loop, draw.step / 2) * 1e3,
        **also,
    )


def read_sleep(seed: int, name: str) -> Pipeline:
    """Slow reads."""
    return _sleeping(seed, name)


def read_persistent(seed: int, name: str) -> Pipeline:
    """Slow reads, persistent workers."""
    return _sleeping(seed, name, "batch_size=BATCH, shuffle=True, persistent_workers=True")


def read_spawn(seed: int, name: str) -> Pipeline:
    """Slow reads, spawned workers."""
    return _sleeping(seed, name, 'batch_size=BATCH, multiprocessing_context="spawn"')


def read_fastload(seed: int, name: str) -> Pipeline:
    """Slow reads, fastload's loader."""
    return _sleeping(seed, name, engine="fastload")


def read_threads(seed: int, name: str) -> Pipeline:
    """Slow reads, fastload's loader, threads."""
    return _sleeping(seed, name, 'batch_size=BATCH, worker_method="thread"', engine="fastload")


def read_inline(seed: int, name: str) -> Pipeline:
    """Slow reads in the main process: a step is their sum with the loop; two workers halve what hides nothing."""
    draw = Draw(seed, name)
    work = draw.step * draw.stall
    return Pipeline(
        name=name,
        cause="read",
        states=("read",),
        constants=draw.constants(WORKERS=0, SAMPLE=round(work / draw.batch, 6)),
        sample="        time.sleep(SAMPLE)\n        return torch.zeros(16)",
        step_ms=draw.step * 1e3,
        stall=draw.stall,
        change={"WORKERS": 2},
        settings={"num_workers": 2},
        changed_ms=max(draw.loop, work / 2) * 1e3,
    )


def slow_rank(seed: int, name: str) -> Pipeline:
    """Two ranks that wait for each other in each step; the samples of one of them are slow."""
    made = read_sleep(seed, name)
    late = random.Random(f"{seed}-{name}").randrange(2)
    return replace(
        made,
        constants={**made.constants, "WORKERS": 1, "SAMPLE": made.constants["SAMPLE"] / made.constants["WORKERS"]},
        sample=(
            f'        if os.environ["RANK"] == "{late}":\n'
            "            time.sleep(SAMPLE)\n"
            "        return torch.zeros(16)"
        ),
        before='    torch.distributed.init_process_group("gloo")',
        loop="            time.sleep(LOOP)\n            torch.distributed.barrier()",
        change={},
        settings={},
        changed_ms=None,
        late_rank=late,
    )


def read_files(seed: int, name: str) -> Pipeline:
    """Files that are not in the page cache. What a read takes is measured first; the loop is the share that it leaves.

    The folder stays until the process ends.
    """
    draw = Draw(seed, name)
    size = 8 << 20
    folder = _files(size)
    read = _cold_read(folder, size)
    draw.batch, draw.workers = 4, 1
    work = read * draw.batch
    loop = work * (1 - draw.stall) / draw.stall
    return Pipeline(
        name=name,
        cause="read",
        states=("read",),
        constants=draw.constants(FOLDER=folder, WORKERS=0, LOOP=round(loop, 6)),
        sample=(
            '        file = os.open(f"{FOLDER}/{index % 16}", os.O_RDONLY)\n'
            "        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)\n"
            f"        data = os.read(file, {size})\n"
            "        os.close(file)\n"
            "        return torch.tensor(len(data))"
        ),
        step_ms=(work + loop) * 1e3,
        stall=draw.stall,
        needs="" if _blocks(folder, size) else "a disk that is slower than the processor",
    )


_folder: tempfile.TemporaryDirectory[str] | None = None


def _files(size: int) -> str:
    global _folder
    if _folder is None:
        _folder = tempfile.TemporaryDirectory(prefix="fastload-zoo-", ignore_cleanup_errors=True)
        for number in range(16):
            with open(f"{_folder.name}/{number}", "wb") as file:
                file.write(os.urandom(size))
                os.fsync(file.fileno())
    return _folder.name


def _cold_read(folder: str, size: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds that a read of a file takes that is not in the page cache: the median of all."""
    taken = []
    for number in range(16):
        descriptor = os.open(f"{folder}/{number}", os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        begun = clock()
        os.read(descriptor, size)
        taken.append(clock() - begun)
        os.close(descriptor)
    return sorted(taken)[8]


def _blocks(folder: str, size: int) -> bool:
    """Whether a read waits for the disk rather than copies: three quarters of its time and more."""
    return _cold_read(folder, size, time.thread_time) < 0.25 * _cold_read(folder, size)
