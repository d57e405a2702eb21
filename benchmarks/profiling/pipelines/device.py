"""What only a device shows."""

from __future__ import annotations

from typing import Any

from benchmarks.profiling.pipelines.building import CORES, Draw, Pipeline
from fastload.profiling.schema import Cause


def _on_device(seed: int, name: str, cause: Cause, states: tuple[str, ...], **also: Any) -> Pipeline:
    """Batches of 64 MiB as they are; the device is kept busy for a tenth of what the loader's bound takes.

    What copies take depends on the machine, so the step is not known beforehand, only what bounds it.
    """
    draw = Draw(seed, name)
    return draw.pipeline(
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
        (),  # the loop's copies are no part of its waits, of which states are told
        options="batch_size=None",
        before="    ready = torch.zeros(4 * NUMBERS)",
        loop='            ready.to("cuda")\n            torch.cuda._sleep(CYCLES)',
    )


def launch_starved(seed: int, name: str) -> Pipeline:
    """Thousands of small kernels are launched by a main thread that has to share the cores with too many workers."""
    draw = Draw(seed, name)
    return draw.pipeline(
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
