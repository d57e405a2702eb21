"""What determinism costs, what it gives between two epochs, and how soon a run resumes.

Claims: seeding each sample costs at most 2 % for samples of 1 ms and more, against the same loader with the same chunks
that does not seed (reported for samples of 50 us); with an integer seed there is no gap between epochs; step 1,000,000
of 1e9 samples is there in less than 10 ms and 1 MB.

Meaningless if: other work runs on the cores, or the machine has fewer cores than workers (samples are busy for their
time, they do not sleep).
"""

import random
import time
import tracemalloc
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.utils.data import Dataset

from benchmarks.loops import describe, kept_loader, make_loader, time_epoch
from benchmarks.spec import TORCH, Benchmark, Measurement, Metric, Side


class BusySamples(Dataset[tuple[int, float]]):
    """Samples that keep a core busy for a given time, and draw from all three global generators as transforms do."""

    def __init__(self, num_samples: int, busy_us: int) -> None:
        self.num_samples, self.busy_us = num_samples, busy_us

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> tuple[int, float]:
        end = time.perf_counter_ns() + 1000 * self.busy_us
        while time.perf_counter_ns() < end:
            pass
        return index, random.random() + float(np.random.rand()) + float(torch.rand(1))


def epoch(side: Side, *, busy_us: int, num_batches: int) -> Measurement:
    """Time a shuffled epoch of ``num_batches`` batches of 64, in chunks of 8, on two workers."""
    dataset = BusySamples(64 * num_batches, busy_us)
    loader = kept_loader(
        side, lambda: make_loader(side, dataset, batch_size=64, shuffle=True, num_workers=2, seed=1, chunk_size=8)
    )
    if side.name == "unseeded":
        # The scheduler, the keys' epoch and the chunks stay; only the keys are not there. Forked workers inherit it.
        with mock.patch("fastload.workers.fetch.Fetcher._keys_of", return_value=None):
            return time_epoch(loader, samples_per_batch=64, num_warm_batches=4)
    return time_epoch(loader, samples_per_batch=64, num_warm_batches=4)


def epoch_gap(side: Side, *, busy_us: int, num_epochs: int) -> Measurement:
    """Time from the last batch of an epoch to the first of the next, with a step of the user's in between."""
    dataset = BusySamples(8 * 64, busy_us)
    loader = make_loader(side, dataset, batch_size=64, shuffle=True, num_workers=2, persistent_workers=True)
    gaps = []
    ended: float | None = None
    for _ in range(num_epochs):
        for _batch in loader:
            if ended is not None:
                gaps.append(time.perf_counter() - ended)
                ended = None
            time.sleep(busy_us * 64 / 2 * 1e-6)  # a training step as long as its data takes
        ended = time.perf_counter()
    return {"gap ms": sorted(gaps)[len(gaps) // 2] * 1e3, "statistics": describe(loader)}


def resume(side: Side, *, num_samples: int, step: int) -> Measurement:
    """Time from a state dict to the first batch, at a far step of a long epoch; and the memory that it took.

    The side "step 0" begins the same epoch at its beginning.
    """
    import fastload

    def make() -> Any:
        sampler = fastload.DistributedBatchSampler(range(num_samples), 256, seed=1)
        return fastload.DataLoader(range(num_samples), batch_sampler=sampler)  # type: ignore[arg-type]

    state = {**make().state_dict(), "position": 0 if side.name == "step 0" else 256 * step}
    loader = make()
    begun = time.perf_counter()
    loader.load_state_dict(state)
    next(iter(loader))
    took = time.perf_counter() - begun
    loader = make()
    tracemalloc.start()
    loader.load_state_dict(state)
    next(iter(loader))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {"resume ms": took * 1e3, "resume MiB": peak / 2**20, "statistics": describe(loader)}


_UNSEEDED = Side(name="unseeded", package="fastload")
_SEEDED = Side(name="fastload", package="fastload", compared_with="unseeded")
_SEPARATE = Side(
    name="fastload overlap_epochs=False",
    package="fastload",
    options={"seed": 1, "overlap_epochs": False},
    compared_with="torch",
)
_OVERLAPPING = Side(name="fastload seed=1", package="fastload", options={"seed": 1}, compared_with="torch")

BENCHMARKS = (
    *(
        Benchmark(
            name=f"determinism-{busy_us}us-samples",
            measure="benchmarks.cases.determinism:epoch",
            metrics=(
                Metric(name="samples/s steady", more_is_better=True, least_ratio=0.98 if busy_us >= 1000 else None),
                Metric(name="CPU us/sample", least_ratio=None),
            ),
            arguments={"busy_us": busy_us, "num_batches": num_batches},
            quick_arguments={"num_batches": num_batches // 4},
            sides=(_UNSEEDED, _SEEDED),
            repetitions=9,
        )
        for busy_us, num_batches in ((1000, 100), (3000, 40), (50, 800))
    ),
    Benchmark(
        name="determinism-epoch-gap",
        measure="benchmarks.cases.determinism:epoch_gap",
        metrics=(Metric(name="gap ms"),),
        arguments={"busy_us": 1000, "num_epochs": 10},
        quick_arguments={"num_epochs": 4},
        sides=(TORCH, _SEPARATE, _OVERLAPPING),
    ),
    Benchmark(
        name="determinism-resume",
        measure="benchmarks.cases.determinism:resume",
        metrics=(
            Metric(name="resume ms", most_value=10, has_ratio=False),
            Metric(name="resume MiB", most_value=1, has_ratio=False),
        ),
        arguments={"num_samples": 10**9, "step": 1_000_000},
        sides=(
            Side(name="step 0", package="fastload"),
            Side(name="fastload", package="fastload", compared_with="step 0"),
        ),
    ),
)
