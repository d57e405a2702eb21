"""Windows of a memory-mapped file of tokens: samples of less than 10 us, as in the training of language models.

Claim: without workers at least 0.8 times torch's samples per second. fastload seeds the generators for each sample,
which takes 1 us of processor time, and displaces a part of the first-level cache; rows with ``seeding="torch"`` show
what the rest of the loader costs.

Meaningless if: the file were larger than the file cache.
"""

import functools
import tempfile
from pathlib import Path

import torch

from benchmarks.loops import kept_loader, make_loader, time_epoch
from benchmarks.made_data import TokenWindows
from benchmarks.spec import WITH_TORCH_SEEDING, Benchmark, Measurement, Metric, Side

_BATCH = 32


@functools.cache
def _dataset(num_samples: int) -> TokenWindows:
    with tempfile.TemporaryDirectory() as folder:  # what is mapped outlives the name
        return TokenWindows(Path(folder, "tokens.bin"), num_samples, 256)


def epoch(side: Side, *, num_batches: int, num_workers: int) -> Measurement:
    torch.manual_seed(0)
    dataset = _dataset(num_batches * _BATCH)
    loader = kept_loader(
        side, lambda: make_loader(side, dataset, batch_size=_BATCH, shuffle=True, num_workers=num_workers)
    )
    return time_epoch(loader, samples_per_batch=_BATCH, num_warm_batches=2 * num_workers or 1)


BENCHMARKS = tuple(
    Benchmark(
        name=f"tokens-{num_workers}-workers",
        measure="benchmarks.cases.tokens:epoch",
        metrics=(
            Metric(name="samples/s steady", more_is_better=True, least_ratio=least),
            Metric(name="CPU us/sample", least_ratio=least),
        ),
        arguments={"num_batches": 2000, "num_workers": num_workers},
        quick_arguments={"num_batches": 200},
        sides=WITH_TORCH_SEEDING,
    )
    for num_workers, least in ((0, 0.8), (2, 0.97))
)
