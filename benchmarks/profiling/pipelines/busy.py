"""Samples, collation and samplers that compute; and a loop that does."""

from __future__ import annotations

from typing import Any

from benchmarks.profiling.pipelines.building import CORES, Draw, Pipeline


def every_sample(seed: int, name: str, options: str = "batch_size=BATCH, shuffle=True", **also: Any) -> Pipeline:
    """Every sample is busy; half as many workers as cores."""
    draw = Draw(seed, name)
    workers = max(1, CORES // 2)
    return draw.pipeline(
        cause="cpu",
        states=("sample",),
        constants=draw.constants(WORKERS=workers, SAMPLE=round(draw.step * workers / draw.batch, 6)),
        sample="        spin(SAMPLE)\n        return torch.zeros(16)",
        options=options,
        cores=2 * workers,
        **also,
    )


def cpu_inline(seed: int, name: str) -> Pipeline:
    """Busy CPU in the main process."""
    draw = Draw(seed, name)
    work = draw.step * draw.stall
    return draw.pipeline(
        cause="cpu",
        states=("sample",),
        constants=draw.constants(WORKERS=0, SAMPLE=round(work / draw.batch, 6)),
        sample="        spin(SAMPLE)\n        return torch.zeros(16)",
        cores=1,
    )


def slow_collate(seed: int, name: str, workers: int) -> Pipeline:
    draw = Draw(seed, name)
    work = draw.step * draw.stall if workers == 0 else draw.step
    return draw.pipeline(
        cause="cpu",
        states=("collate",),
        constants=draw.constants(WORKERS=workers, COLLATE=round(work, 6)),
        definitions="def collate(samples):\n    spin(COLLATE)\n    return torch.stack(samples)\n\n\n",
        options="batch_size=BATCH, collate_fn=collate",
        cores=1 if workers == 0 else 2,
    )


def slow_sampler(seed: int, name: str) -> Pipeline:
    """A sampler that thinks for each batch, in the main process: its time adds to the loop's, whatever the workers."""
    draw = Draw(seed, name)
    return draw.pipeline(
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
        cores=1,
    )


def oversubscribed(seed: int, name: str) -> Pipeline:
    """Three busy workers for every core, and a busy loop: all of them wait for cores."""
    draw = Draw(seed, name)
    workers = 3 * CORES
    # While the loop is busy it gets one share in (workers + 1) of the cores.
    work = draw.step * CORES
    loop = work * (1 - draw.stall) / (workers + 1)
    return draw.pipeline(
        cause="oversubscribed",
        states=(),
        constants=draw.constants(WORKERS=workers, LOOP=round(loop, 6), SAMPLE=round((work - loop) / draw.batch, 6)),
        sample="        spin(SAMPLE)\n        return torch.zeros(16)",
        loop="            spin(LOOP)",
        warmup=2 * workers,
        cores=CORES,
    )


def gil_threads(seed: int, name: str) -> Pipeline:
    """Threads that are busy in Python: only one of them runs at a time."""
    draw = Draw(seed, name)
    return draw.pipeline(
        cause="gil",
        states=(),
        constants=draw.constants(WORKERS=4, SAMPLE=round(draw.step / draw.batch, 6)),
        sample="        spin(SAMPLE)\n        return torch.zeros(16)",
        options='batch_size=BATCH, worker_method="thread"',
        engine="fastload",
        cores=1,
    )


def compute_bound(seed: int, name: str, **also: Any) -> Pipeline:
    draw = Draw(seed, name)
    share = draw.random.uniform(0.1, 0.4)
    return draw.pipeline(
        cause="compute",
        states=(),
        constants=draw.constants(LOOP=round(draw.step, 6), SAMPLE=round(share * draw.step / draw.batch, 6)),
        sample="        time.sleep(SAMPLE)\n        return torch.zeros(16)",
        stall=0.0,
        **also,
    )
