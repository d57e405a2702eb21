"""Samples that are strided views of a large storage: rows of a column-major table, windows of many channels.

Claim: the first batch takes at most 1.5 times torch's time, and an epoch is not slower than torch's, apart from seeding
each sample; rows with ``seeding="torch"`` stand beside.

Each measurement has a loader of its own: what samples look like is learnt from the first batches, which is where a view
could cost as much as its storage.

Meaningless if: other work runs on the cores.
"""

import functools

import torch
from torch.utils.data import Dataset

from benchmarks.loops import make_loader, time_epoch
from benchmarks.made_data import ColumnMajorRows, Windows
from benchmarks.spec import WITH_TORCH_SEEDING, Benchmark, Measurement, Metric, Side


@functools.cache
def _dataset(kind: str, megabytes: int, num_samples: int) -> Dataset[torch.Tensor]:
    if kind == "table":
        return ColumnMajorRows(megabytes * 1_000_000 // 80, num_samples)
    return Windows(megabytes * 1_000_000 // 64, num_samples)


def epoch(side: Side, *, kind: str, megabytes: int, batch_size: int, num_batches: int, num_workers: int) -> Measurement:
    torch.manual_seed(0)
    dataset = _dataset(kind, megabytes, num_batches * batch_size)
    loader = make_loader(side, dataset, batch_size=batch_size, shuffle=True, num_workers=num_workers)
    return time_epoch(loader, samples_per_batch=batch_size, num_warm_batches=2 * num_workers or 1)


BENCHMARKS = tuple(
    Benchmark(
        name=f"strided-{kind}-{num_workers}-workers",
        measure="benchmarks.cases.strided:epoch",
        metrics=(
            Metric(name="first batch ms", least_ratio=0.67),
            Metric(name="samples/s", more_is_better=True),
            Metric(name="samples/s steady", more_is_better=True),
            Metric(name="CPU us/sample", least_ratio=None),
        ),
        arguments={
            "kind": kind,
            "megabytes": megabytes,
            "batch_size": batch_size,
            "num_batches": num_batches,
            "num_workers": num_workers,
        },
        quick_arguments={"megabytes": 8, "num_batches": num_batches // 5},
        sides=WITH_TORCH_SEEDING,
    )
    for kind, megabytes, batch_size, num_batches in (("table", 80, 256, 400), ("windows", 64, 64, 200))
    for num_workers in (2, 0)
)
