"""Samples that are waited for."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from benchmarks.profiling.pipelines.building import Draw, Pipeline


def sleeping(seed: int, name: str, options: str = "batch_size=BATCH, shuffle=True", **also: Any) -> Pipeline:
    """Every sample waits for a slow store, a tenth more or less: the workers together are too slow."""
    draw = Draw(seed, name)
    sample = draw.step * draw.workers / draw.batch
    return draw.pipeline(
        cause="read",
        states=("read",),
        constants=draw.constants(SAMPLE=round(sample, 6)),
        sample="        time.sleep(SAMPLE * (0.9 + 0.2 * (index * 7 % 11) / 10))\n        return torch.zeros(16)",
        options=options,
        **also,
    )


def read_inline(seed: int, name: str) -> Pipeline:
    """Slow reads in the main process: a step is their sum with the loop."""
    draw = Draw(seed, name)
    work = draw.step * draw.stall
    return draw.pipeline(
        cause="read",
        states=("read",),
        constants=draw.constants(WORKERS=0, SAMPLE=round(work / draw.batch, 6)),
        sample="        time.sleep(SAMPLE)\n        return torch.zeros(16)",
    )


def slow_rank(seed: int, name: str) -> Pipeline:
    """Two ranks that wait for each other in each step; the samples of one of them are slow."""
    made = sleeping(seed, name)
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
        late_rank=late,
    )
