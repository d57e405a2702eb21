"""Samples that cost nothing, so that the loader itself is all there is to measure.

Claim: at least 0.97 times torch's samples per second, with 2 workers and inline, apart from seeding each sample; the
integers take less time than that, so rows with ``seeding="torch"`` stand beside theirs. (A TensorDataset draws nothing
and is not seeded.)

Meaningless if: the epoch were so short that starting the workers is all of it; "samples/s steady" leaves that out.
"""

import functools

import torch
from torch.utils.data import Dataset, TensorDataset

from benchmarks.loops import kept_loader, make_loader, time_epoch
from benchmarks.made_data import Integers
from benchmarks.spec import WITH_TORCH_SEEDING, Benchmark, Measurement, Side, rates


@functools.cache
def _dataset(kind: str, num_samples: int) -> Dataset[object]:
    """Build the dataset: "tensors" (16 float32 features and an int64 label) or "integers"."""
    if kind == "integers":
        return Integers(num_samples)
    generator = torch.Generator().manual_seed(0)
    features = torch.rand(num_samples, 16, generator=generator)
    return TensorDataset(features, torch.randint(0, 10, (num_samples,), generator=generator))


def epoch(side: Side, *, kind: str, num_batches: int, num_workers: int) -> Measurement:
    """Time a shuffled epoch of ``num_batches`` batches of 256."""
    torch.manual_seed(0)
    dataset = _dataset(kind, num_batches * 256)
    loader = kept_loader(
        side, lambda: make_loader(side, dataset, batch_size=256, shuffle=True, num_workers=num_workers)
    )
    return time_epoch(loader, samples_per_batch=256, num_warm_batches=2 * num_workers or 1)


BENCHMARKS = tuple(
    Benchmark(
        name=f"tiny-{kind}-{num_workers}-workers",
        measure="benchmarks.cases.tiny:epoch",
        metrics=rates(),
        arguments={"kind": kind, "num_batches": num_batches, "num_workers": num_workers},
        quick_arguments={"num_batches": num_batches // 5},
        sides=WITH_TORCH_SEEDING,
    )
    for kind, num_batches in (("tensors", 400), ("integers", 2000))
    for num_workers in (2, 0)
)
