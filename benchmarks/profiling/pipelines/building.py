"""What a pipeline is: a script, made from parts, with its known answer. Plain data."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastload.profiling.schema import Cause

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
    steps: int = 60
    warmup: int = 12
    late_rank: int | None = None
    """It runs as two ranks, and this one holds the other up."""
    needs: str = ""
    """``gpu``, or empty."""
    cores: float = 0.0
    """How many cores it keeps busy: with fewer free ones the answer is another."""

    def script(self) -> str:
        imports = {"torch": "from torch.utils.data import DataLoader", "fastload": "from fastload import DataLoader"}
        return _SCRIPT.format(
            name=self.name,
            loader_import=imports[self.engine],
            constants="\n".join(f"{name} = {value!r}" for name, value in self.constants.items()),
            sample=self.sample,
            definitions=self.definitions,
            options=self.options,
            before=self.before,
            loop=self.loop,
        )


class Draw:
    """What a seed draws for one pipeline."""

    def __init__(self, seed: int, name: str) -> None:
        self.name = name
        self.random = random.Random(f"{seed}-{name}")
        self.batch = self.random.choice((4, 8, 16))
        self.step = self.random.uniform(0.036, 0.060)
        self.stall = self.random.uniform(0.45, 0.75)
        self.workers = self.random.choice((2, 3))

    @property
    def loop(self) -> float:
        return self.step * (1 - self.stall)

    def constants(self, **others: Any) -> dict[str, Any]:
        return {
            "LENGTH": 100_000,
            "EPOCHS": 1,
            "BATCH": self.batch,
            "WORKERS": self.workers,
            "PREFETCH": 2,
            "LOOP": round(self.loop, 6),
        } | others

    def pipeline(self, **given: Any) -> Pipeline:
        """Return a pipeline with this step and stall, where no others are given."""
        return Pipeline(**{"name": self.name, "step_ms": self.step * 1e3, "stall": self.stall, **given})
