"""Pipelines whose bound is known by construction: a seed -> small, ordinary torch scripts. Plain data and arithmetic.

Each script's loop takes ``LOOP`` seconds a step by sleeping, as one that waits for a device does, and its loader takes
longer for a batch by a factor that the seed draws: so the share of the step that is a stall is known before anything
runs, and so is its cause. Time on the CPU is spun off on the thread's own clock, so that the demand is the same
whoever else has the cores; everything else sleeps. ``change`` is a change of the script's constants, ``settings`` the
same for the simulation, and ``changed_ms`` what the step must come to with it.
"""

from __future__ import annotations

import os
import pickle
import random
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fastload.profiling.analysis import Cause

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

_SCRIPT = '''\
"""Of the zoo: {name}."""

import os
import time

import torch
from torch.utils.data import Dataset, Sampler, get_worker_info
{loader_import}

{constants}


def spin(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Samples(Dataset):
    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
{sample}


{definitions}
def main():
    torch.set_num_threads(1)
    loader = DataLoader(Samples(), num_workers=WORKERS, prefetch_factor=PREFETCH if WORKERS else None, {options})
{before}
    for epoch in range(EPOCHS):
        for batch in loader:
{loop}


if __name__ == "__main__":
    main()
'''


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A script with a known answer."""

    name: str
    cause: Cause
    """What bounds it."""
    states: tuple[str, ...]
    """States of which one must bear most of the blame; ``sample`` also stands for ``stage``. Empty: any."""
    constants: Mapping[str, Any]
    """The script's, by name."""
    sample: str = "        return torch.zeros(16)"
    definitions: str = ""
    options: str = "batch_size=BATCH"
    before: str = ""
    loop: str = "            time.sleep(LOOP)"
    engine: str = "torch"
    step_ms: float
    """Mean time of a step, by construction."""
    stall: float
    """Share of it that is a stall, by construction."""
    change: Mapping[str, Any] = field(default_factory=dict)
    """Other constants; empty: nothing to change is known."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The same as knobs of the simulation."""
    changed_ms: float | None = None
    """Mean time of a step with the change, by construction."""
    steps: int = 60
    warmup: int = 12
    late_rank: int | None = None
    """It runs as two ranks, and this one holds the other up."""
    needs: str = ""
    """``gpu``, or empty."""
    cores: float = 0.0
    """How many cores it keeps busy: with fewer free ones the answer is another."""

    def script(self, change: Mapping[str, Any] | None = None) -> str:
        """Return the script, with some constants changed."""
        constants = {**self.constants, **(change or {})}
        imports = {"torch": "from torch.utils.data import DataLoader", "fastload": "from fastload import DataLoader"}
        return _SCRIPT.format(
            name=self.name,
            loader_import=imports[self.engine],
            constants="\n".join(f"{name} = {value!r}" for name, value in constants.items()),
            sample=self.sample,
            definitions=self.definitions,
            options=self.options,
            before=self.before,
            loop=self.loop,
        )


class _Draw:
    """What a seed draws for one pipeline."""

    def __init__(self, seed: int, name: str) -> None:
        self.random = random.Random(f"{seed}-{name}")
        self.batch = self.random.choice((4, 8, 16))
        self.step = self.random.uniform(0.036, 0.060)
        self.stall = self.random.uniform(0.45, 0.75)
        self.workers = self.random.choice((2, 3))

    @property
    def loop(self) -> float:
        """Seconds that the loop takes."""
        return self.step * (1 - self.stall)

    def constants(self, **others: Any) -> dict[str, Any]:
        """Return a script's constants."""
        return {
            "LENGTH": 100_000,
            "EPOCHS": 1,
            "BATCH": self.batch,
            "WORKERS": self.workers,
            "PREFETCH": 2,
            "LOOP": round(self.loop, 6),
        } | others


def _sleeping(seed: int, name: str, options: str = "batch_size=BATCH, shuffle=True", **also: Any) -> Pipeline:
    """Every sample waits for a slow store, a tenth more or less: the workers together are too slow."""
    draw = _Draw(seed, name)
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
    draw = _Draw(seed, name)
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


def read_files(seed: int, name: str) -> Pipeline:
    """Files that are not in the page cache. What a read takes is measured first; the loop is the share that it leaves.

    The folder stays until the process ends.
    """
    draw = _Draw(seed, name)
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


def _busy(seed: int, name: str, options: str = "batch_size=BATCH, shuffle=True", **also: Any) -> Pipeline:
    """Every sample is busy; as many workers as leave the cores to them, so that no more of them would help less."""
    draw = _Draw(seed, name)
    workers = max(1, CORES // 2)
    return Pipeline(
        name=name,
        cause="cpu",
        states=("sample",),
        constants=draw.constants(WORKERS=workers, SAMPLE=round(draw.step * workers / draw.batch, 6)),
        sample="        spin(SAMPLE)\n        return torch.zeros(16)",
        options=options,
        step_ms=draw.step * 1e3,
        stall=draw.stall,
        change={"WORKERS": 2 * workers},
        settings={"num_workers": 2 * workers},
        changed_ms=max(draw.loop, draw.step / 2) * 1e3 if CORES > 1 else None,
        cores=2 * workers,
        **also,
    )


def cpu_busy(seed: int, name: str) -> Pipeline:
    """Busy CPU."""
    return _busy(seed, name)


def cpu_fastload(seed: int, name: str) -> Pipeline:
    """Busy CPU, fastload's loader."""
    return _busy(seed, name, engine="fastload")


def cpu_inline(seed: int, name: str) -> Pipeline:
    """Busy CPU in the main process; one worker hides the shorter of the two."""
    draw = _Draw(seed, name)
    work = draw.step * draw.stall
    return Pipeline(
        name=name,
        cause="cpu",
        states=("sample",),
        constants=draw.constants(WORKERS=0, SAMPLE=round(work / draw.batch, 6)),
        sample="        spin(SAMPLE)\n        return torch.zeros(16)",
        step_ms=draw.step * 1e3,
        stall=draw.stall,
        change={"WORKERS": 1},
        settings={"num_workers": 1},
        changed_ms=max(draw.loop, work) * 1e3,
        cores=1,
    )


def _collating(seed: int, name: str, workers: int) -> Pipeline:
    draw = _Draw(seed, name)
    work = draw.step * draw.stall if workers == 0 else draw.step
    return Pipeline(
        name=name,
        cause="cpu",
        states=("collate",),
        constants=draw.constants(WORKERS=workers, COLLATE=round(work, 6)),
        definitions="def collate(samples):\n    spin(COLLATE)\n    return torch.stack(samples)\n\n\n",
        options="batch_size=BATCH, collate_fn=collate",
        step_ms=draw.step * 1e3,
        stall=draw.stall,
        change={"WORKERS": 1} if workers == 0 else {"WORKERS": 2},
        settings={"num_workers": 1 if workers == 0 else 2},
        changed_ms=max(draw.loop, work if workers == 0 else work / 2) * 1e3,
        cores=1 if workers == 0 else 2,
    )


def slow_collate(seed: int, name: str) -> Pipeline:
    """A busy collate_fn, one worker."""
    return _collating(seed, name, 1)


def slow_collate_inline(seed: int, name: str) -> Pipeline:
    """A busy collate_fn in the main process."""
    return _collating(seed, name, 0)


def slow_sampler(seed: int, name: str) -> Pipeline:
    """A sampler that thinks for each batch, in the main process: its time adds to the loop's, whatever the workers."""
    draw = _Draw(seed, name)
    return Pipeline(
        name=name,
        cause="sampler",
        states=("sampler",),
        constants=draw.constants(THINK=round(draw.step * draw.stall, 6)),
        definitions=(
            "class Thinking(Sampler):\n"
            "    def __len__(self):\n        return LENGTH // BATCH\n\n"
            "    def __iter__(self):\n"
            "        for number in range(len(self)):\n"
            "            spin(THINK)\n"
            "            yield list(range(number * BATCH, (number + 1) * BATCH))\n\n\n"
        ),
        options="batch_sampler=Thinking()",
        step_ms=draw.step * 1e3,
        stall=draw.stall,
        cores=1,
    )


def slow_worker(seed: int, name: str) -> Pipeline:
    """One worker takes several times as long as the others; torch deals in turn, so all wait for it.

    Out of order each of the four works at its own pace.
    """
    draw = _Draw(seed, name)
    workers, factor = 4, draw.random.uniform(4, 6)
    sample = draw.step * workers / draw.batch / factor
    return Pipeline(
        name=name,
        cause="head-of-line",
        states=(),
        constants=draw.constants(WORKERS=workers, SAMPLE=round(sample, 6), FACTOR=round(factor, 3), IN_ORDER=True),
        sample=(
            "        info = get_worker_info()\n"
            "        time.sleep(SAMPLE * (FACTOR if info is not None and info.id == 1 else 1))\n"
            "        return torch.zeros(16)"
        ),
        options="batch_size=BATCH, in_order=IN_ORDER",
        step_ms=draw.step * 1e3,
        stall=draw.stall,
        change={"IN_ORDER": False},
        settings={"in_order": False},
        changed_ms=max(draw.loop, draw.batch * sample / (workers - 1 + 1 / factor)) * 1e3,
    )


def rare_slow(seed: int, name: str) -> Pipeline:
    """One sample in a hundred takes so long that its batch holds up those behind it, which are complete.

    Without it the workers keep pace: a batch of 8 takes each of the two as long as a step of the loop. In flight are 4
    batches, so a slow batch is asked for 4 steps before it is awaited; the rest of its time is a stall, once in 12.5
    steps. With 8 batches ahead for each worker the slow ones hide behind the loop.
    """
    draw = _Draw(seed, name)
    batch, workers, period = 8, 2, 100 / 8
    loop = draw.random.uniform(0.014, 0.020)
    stalled = loop * period * draw.stall / (1 - draw.stall) * 0.7
    slow = stalled + 3 * loop
    return Pipeline(
        name=name,
        cause="head-of-line",
        states=(),
        constants=draw.constants(
            BATCH=batch,
            WORKERS=workers,
            LOOP=round(loop, 6),
            SAMPLE=round(loop / batch, 6),
            SLOW=round(slow, 6),
            PLACE=draw.random.randrange(100),
        ),
        sample="        time.sleep(SLOW if index % 100 == PLACE else SAMPLE)\n        return torch.zeros(16)",
        step_ms=(loop + stalled / period) * 1e3,
        stall=stalled / period / (loop + stalled / period),
        change={"PREFETCH": 12},
        settings={"prefetch_factor": 12},
        changed_ms=max(loop, (loop * period + slow) / workers / period) * 1e3,
        steps=150,
        warmup=25,
    )


def big_pickles(seed: int, name: str) -> Pipeline:
    """Batches are long lists of numbers: pickled by the worker, read and unpickled by the main thread.

    How many numbers a second unpickles is measured first; they are drawn up once, and all batches are the same.
    """
    draw = _Draw(seed, name)
    unpickling = _seconds_per_number()
    count = int(draw.step * draw.stall / unpickling)
    return Pipeline(
        name=name,
        cause="transport",
        states=("transport",),
        constants=draw.constants(BATCH=2, WORKERS=2, COUNT=count // 2),
        definitions=(
            "NUMBERS = [float(number) for number in range(COUNT)]\n\n\n"
            "def keep(samples):\n    return [list(NUMBERS) for sample in samples]\n\n\n"
        ),
        options="batch_size=BATCH, collate_fn=keep",
        step_ms=draw.step * 1e3,
        stall=draw.stall,
        cores=2,
    )


def _seconds_per_number() -> float:
    numbers = [float(number) for number in range(100_000)]
    text = pickle.dumps(numbers)
    taken = []
    for _ in range(9):
        begun = time.thread_time()
        pickle.loads(text)
        taken.append(time.thread_time() - begun)
    return sorted(taken)[4] / len(numbers)


def oversubscribed(seed: int, name: str) -> Pipeline:
    """Three busy workers for every core, and a busy loop: all of them wait for cores."""
    draw = _Draw(seed, name)
    workers = 3 * CORES
    # While the loop is busy it gets one share in (workers + 1) of the cores.
    work = draw.step * CORES
    loop = work * (1 - draw.stall) / (workers + 1)
    return Pipeline(
        name=name,
        cause="oversubscribed",
        states=(),
        constants=draw.constants(WORKERS=workers, LOOP=round(loop, 6), SAMPLE=round((work - loop) / draw.batch, 6)),
        sample="        spin(SAMPLE)\n        return torch.zeros(16)",
        loop="            spin(LOOP)",
        step_ms=draw.step * 1e3,
        stall=draw.stall,
        warmup=2 * workers,
        cores=CORES,
    )


def compute_bound(seed: int, name: str) -> Pipeline:
    """The loop is slower than the loader by far."""
    draw = _Draw(seed, name)
    share = draw.random.uniform(0.1, 0.4)
    return Pipeline(
        name=name,
        cause="compute",
        states=(),
        constants=draw.constants(LOOP=round(draw.step, 6), SAMPLE=round(share * draw.step / draw.batch, 6)),
        sample="        time.sleep(SAMPLE)\n        return torch.zeros(16)",
        step_ms=draw.step * 1e3,
        stall=0.0,
    )


def compute_fastload(seed: int, name: str) -> Pipeline:
    """The same with fastload's loader."""
    return replace(compute_bound(seed, name), engine="fastload")


def startup(seed: int, name: str) -> Pipeline:
    """Short epochs, and workers that take long to start, for each epoch anew."""
    draw = _Draw(seed, name)
    batches = draw.random.choice((4, 5, 6))
    loop = draw.random.uniform(0.010, 0.016)
    start = batches * loop * draw.stall / (1 - draw.stall)
    return Pipeline(
        name=name,
        cause="startup",
        states=("startup",),
        constants=draw.constants(
            LENGTH=batches * 4, EPOCHS=1000, BATCH=4, LOOP=round(loop, 6), START=round(start, 6), PERSISTENT=False
        ),
        definitions="def prepare(worker):\n    time.sleep(START)\n\n\n",
        options="batch_size=BATCH, worker_init_fn=prepare, persistent_workers=PERSISTENT",
        step_ms=(loop + start / batches) * 1e3,
        stall=draw.stall,
        change={"PERSISTENT": True},
        settings={"persistent_workers": True},
        changed_ms=loop * 1e3,
    )


def slow_rank(seed: int, name: str) -> Pipeline:
    """Two ranks that wait for each other in each step; the samples of one of them are slow."""
    made = read_sleep(seed, name)
    late = random.Random(f"{seed}-{name}").randrange(2)
    return replace(
        made,
        constants={**made.constants, "WORKERS": 1, "SAMPLE": made.constants["SAMPLE"] / made.constants["WORKERS"]},
        sample=f'        if os.environ["RANK"] == "{late}":\n            time.sleep(SAMPLE)\n        return torch.zeros(16)',
        before='    torch.distributed.init_process_group("gloo")',
        loop="            time.sleep(LOOP)\n            torch.distributed.barrier()",
        change={},
        settings={},
        changed_ms=None,
        late_rank=late,
    )


def gil_threads(seed: int, name: str) -> Pipeline:
    """Threads that are busy in Python: only one of them runs at a time."""
    draw = _Draw(seed, name)
    return Pipeline(
        name=name,
        cause="gil",
        states=(),
        constants=draw.constants(WORKERS=4, SAMPLE=round(draw.step / draw.batch, 6)),
        sample="        spin(SAMPLE)\n        return torch.zeros(16)",
        options='batch_size=BATCH, worker_method="thread"',
        engine="fastload",
        step_ms=draw.step * 1e3,
        stall=draw.stall,
        cores=1,
    )


def _on_device(seed: int, name: str, cause: Cause, states: tuple[str, ...], **also: Any) -> Pipeline:
    """Batches of 64 MiB as they are; the device is kept busy for a tenth of what the loader's bound takes.

    What copies take depends on the machine, so the step is not known beforehand, only what bounds it.
    """
    draw = _Draw(seed, name)
    return Pipeline(
        name=name,
        cause=cause,
        states=states,
        constants=draw.constants(WORKERS=4, NUMBERS=(16 + draw.random.randrange(8)) << 20, CYCLES=1_000_000),
        sample="        return torch.zeros(NUMBERS)",
        step_ms=float("nan"),
        stall=float("nan"),
        needs="gpu",
        cores=4,
        **also,
    )


def pin_bound(seed: int, name: str) -> Pipeline:
    """One thread page-locks what four workers give at once; the loop copies no more than a sliver."""
    return _on_device(
        seed,
        name,
        "pin",
        ("pin",),
        options="batch_size=None, pin_memory=True",
        loop='            batch[:1024].to("cuda", non_blocking=True)\n            torch.cuda._sleep(CYCLES)',
    )


def copy_bound(seed: int, name: str) -> Pipeline:
    """The loop copies one ready batch from pageable memory for every step, and the device waits for it."""
    return _on_device(
        seed,
        name,
        "copy",
        ("copy",),
        options="batch_size=None",
        before="    ready = torch.zeros(4 * NUMBERS)",
        loop='            ready.to("cuda")\n            torch.cuda._sleep(CYCLES)',
    )


def launch_starved(seed: int, name: str) -> Pipeline:
    """Thousands of small kernels are launched by a main thread that has to share the cores with too many workers."""
    draw = _Draw(seed, name)
    return Pipeline(
        name=name,
        cause="launch-starved",
        states=(),
        constants=draw.constants(WORKERS=3 * CORES, SAMPLE=0.0001),
        sample="        spin(SAMPLE)\n        return torch.zeros(16)",
        definitions='SMALL = torch.zeros(64, device="cuda") if __name__ == "__main__" else None\n\n\n',
        options='batch_size=BATCH, multiprocessing_context="spawn"',
        loop="            for _ in range(2000):\n                SMALL.add_(1)",
        step_ms=float("nan"),
        stall=0.0,
        needs="gpu",
        cores=CORES,
    )


MAKERS: tuple[Callable[[int, str], Pipeline], ...] = (
    read_sleep,
    read_persistent,
    read_spawn,
    read_fastload,
    read_threads,
    read_inline,
    read_files,
    cpu_busy,
    cpu_fastload,
    cpu_inline,
    slow_collate,
    slow_collate_inline,
    slow_sampler,
    slow_worker,
    rare_slow,
    big_pickles,
    oversubscribed,
    compute_bound,
    compute_fastload,
    startup,
    slow_rank,
    gil_threads,
    pin_bound,
    copy_bound,
    launch_starved,
)


def names() -> list[str]:
    """Return the names of all pipelines."""
    return [_name(maker) for maker in MAKERS]


def drawn(seed: int, wanted: Iterable[str] = ()) -> list[Pipeline]:
    """Return pipelines with the parameters that a seed draws.

    Args:
        seed: any integer.
        wanted: their names; empty: all.
    """
    chosen = set(wanted) or set(names())
    return [maker(seed, _name(maker)) for maker in MAKERS if _name(maker) in chosen]


def _name(maker: Callable[[int, str], Pipeline]) -> str:
    return maker.__name__.replace("_", "-")
