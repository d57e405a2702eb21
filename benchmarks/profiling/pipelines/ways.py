"""What lies between the samples and the loop: order, transport, starting."""

from __future__ import annotations

import pickle
import time

from benchmarks.profiling.pipelines.building import Draw, Pipeline


def slow_worker(seed: int, name: str) -> Pipeline:
    """One worker takes several times as long as the others; torch deals in turn, so all wait for it."""
    draw = Draw(seed, name)
    workers, factor = 4, draw.random.uniform(4, 6)
    sample = draw.step * workers / draw.batch / factor
    return draw.pipeline(
        cause="head-of-line",
        states=(),
        constants=draw.constants(WORKERS=workers, SAMPLE=round(sample, 6), FACTOR=round(factor, 3)),
        sample=(
            "        info = get_worker_info()\n"
            "        time.sleep(SAMPLE * (FACTOR if info is not None and info.id == 1 else 1))\n"
            "        return torch.zeros(16)"
        ),
    )


def rare_slow(seed: int, name: str) -> Pipeline:
    """One sample in a hundred takes so long that its batch holds up those behind it, which are complete.

    Without it the workers keep pace: a batch of 8 takes each of the two as long as a step of the loop. In flight are 4
    batches, so a slow batch is asked for 4 steps before it is awaited; the rest of its time is a stall, once in 12.5
    steps.
    """
    draw = Draw(seed, name)
    batch, workers, period = 8, 2, 100 / 8
    loop = draw.random.uniform(0.014, 0.020)
    stalled = loop * period * draw.stall / (1 - draw.stall) * 0.7
    slow = stalled + 3 * loop
    return draw.pipeline(
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
        steps=150,
        warmup=25,
    )


def big_pickles(seed: int, name: str) -> Pipeline:
    """Batches are long lists of numbers: pickled by the worker, read and unpickled by the main thread.

    How many numbers a second unpickles is measured first; they are drawn up once, and all batches are the same.
    """
    draw = Draw(seed, name)
    unpickling = _seconds_per_number()
    count = int(draw.step * draw.stall / unpickling)
    return draw.pipeline(
        cause="transport",
        states=("transport",),
        constants=draw.constants(BATCH=2, WORKERS=2, COUNT=count // 2),
        definitions=(
            "NUMBERS = [float(number) for number in range(COUNT)]\n\n\n"
            "def keep(samples):\n    return [list(NUMBERS) for sample in samples]\n\n\n"
        ),
        options="batch_size=BATCH, collate_fn=keep",
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


def startup(seed: int, name: str) -> Pipeline:
    """Short epochs, and workers that take long to start, for each epoch anew."""
    draw = Draw(seed, name)
    batches = draw.random.choice((4, 5, 6))
    loop = draw.random.uniform(0.010, 0.016)
    start = batches * loop * draw.stall / (1 - draw.stall)
    return draw.pipeline(
        cause="startup",
        states=("startup",),
        constants=draw.constants(LENGTH=batches * 4, EPOCHS=1000, BATCH=4, LOOP=round(loop, 6), START=round(start, 6)),
        definitions="def prepare(worker):\n    time.sleep(START)\n\n\n",
        options="batch_size=BATCH, worker_init_fn=prepare",
        step_ms=(loop + start / batches) * 1e3,
    )
