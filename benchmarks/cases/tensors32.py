"""Batches of 32 small tensors, where handing a batch over costs more than making it.

Claim: at least 5 times torch's batches per second for ready batches, with 2 workers.

Meaningless if: the tensors were large (memory bandwidth is measured), or the dataset sent the same tensors again and
again (torch moves a tensor to shared memory only once); here each batch is a new copy.
"""

import functools

from benchmarks.loops import kept_loader, make_loader, time_epoch
from benchmarks.made_data import ReadyBatches
from benchmarks.spec import Benchmark, Measurement, Side, rates

_dataset = functools.cache(ReadyBatches)


def ready(side: Side, *, num_batches: int) -> Measurement:
    """Time an epoch of ready batches: dictionaries of 32 float32 tensors of shape (32, 8), without collation."""
    dataset = _dataset(num_batches, 32, (32, 8))
    loader = kept_loader(side, lambda: make_loader(side, dataset, batch_size=None, num_workers=2))
    return time_epoch(loader, samples_per_batch=1, num_warm_batches=4)


def collated(side: Side, *, num_batches: int) -> Measurement:
    """Time an epoch of batches of 32 samples, each a dictionary of 32 float32 tensors of shape (8,)."""
    dataset = _dataset(num_batches * 32, 32, (8,))
    loader = kept_loader(side, lambda: make_loader(side, dataset, batch_size=32, num_workers=2))
    return time_epoch(loader, samples_per_batch=32, num_warm_batches=4)


BENCHMARKS = (
    Benchmark(
        name="tensors32-ready",
        measure="benchmarks.cases.tensors32:ready",
        metrics=rates(5.0, 5.0),
        arguments={"num_batches": 600},
        quick_arguments={"num_batches": 200},
    ),
    Benchmark(
        name="tensors32-collated",
        measure="benchmarks.cases.tensors32:collated",
        metrics=rates(),
        arguments={"num_batches": 300},
        quick_arguments={"num_batches": 100},
    ),
)
