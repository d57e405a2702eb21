"""Samples that cost little, so that the loader is much of the work: images in memory, tensors, tokens, text, views.

Claims: at least 0.97 times torch's samples per second with 2 workers and inline, apart from seeding each sample, which
takes 1 to 6 us: rows with ``seed=1`` stand beside. Ready batches of 32 tensors: 5 times torch's. Tokens
without workers: 0.8 times. Strided views: the first batch takes at most 1.5 times torch's time.

``ragged``: samples of 24 small tensors of unequal shapes, which a collate_fn leaves apart.

``clips``: samples of 1 to 60 MB of floats, where a loader may be the work of the kernel's that zeroes new pages.

``strided``: samples are views of a large storage: rows of a column-major table, windows of many channels. What samples
look like is learnt from the first batches, which is where a view could cost as much as its storage; so each measurement
has a loader of its own, where the others keep theirs.

Meaningless if: other work runs on the cores; the machine has fewer cores than workers; an epoch is so short that
starting the workers is all of it ("samples/s steady" leaves that out); the file of tokens is larger than the file
cache; or the tensors of a ready batch are large, or sent again and again (torch moves a tensor to shared memory once).
"""

import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import TensorDataset

from benchmarks import made_data
from benchmarks.loops import kept, make_loader, time_epoch
from benchmarks.spec import FASTLOAD, TORCH, WITH_SEED, Case, Measurement, Metric, Side, rates


@functools.cache
def _dataset(kind: str, num_samples: int, megabytes: int) -> Any:
    if kind == "cifar":
        from benchmarks.cases.fuse import CifarSizedImages  # torchvision takes seconds, in spawned workers too

        return CifarSizedImages(num_samples)
    if kind == "tensors":
        generator = torch.Generator().manual_seed(0)
        features = torch.rand(num_samples, 16, generator=generator)
        return TensorDataset(features, torch.randint(0, 10, (num_samples,), generator=generator))
    if kind == "tokens":
        with tempfile.TemporaryDirectory() as folder:  # what is mapped outlives the name
            return made_data.TokenWindows(Path(folder, "tokens.bin"), num_samples, 256)
    if kind == "table":
        return made_data.ColumnMajorRows(megabytes * 1_000_000 // 80, num_samples)
    if kind == "clips":
        return made_data.Clips(megabytes, num_samples)
    if kind == "windows":
        return made_data.Windows(megabytes * 1_000_000 // 64, num_samples)
    if kind in ("ready", "collated"):  # dictionaries of 32 float32 tensors
        return made_data.ReadyBatches(num_samples, 32, (32, 8) if kind == "ready" else (8,))
    if kind == "ragged":
        return made_data.RaggedTargets(num_samples)
    return {"integers": made_data.Integers, "sentences": made_data.Sentences}[kind](num_samples)


def epoch(
    side: Side, *, kind: str, batch_size: int | None, num_batches: int, num_workers: int, megabytes: int
) -> Measurement:
    """Time an epoch; ``batch_size`` is None where a sample is a batch, ``megabytes``: of views, or a clip."""
    torch.manual_seed(0)
    dataset = _dataset(kind, num_batches * (batch_size or 1), megabytes)
    arguments: dict[str, Any] = {"batch_size": batch_size, "num_workers": num_workers}
    arguments["shuffle"] = kind not in ("ready", "collated")
    if kind == "sentences":
        arguments["collate_fn"] = made_data.pad_sentences
    if kind == "ragged":
        arguments["collate_fn"] = made_data.as_tuple
    build = functools.partial(make_loader, side, dataset, **arguments)
    loader = build() if megabytes else kept("loader", build)
    return time_epoch(loader, samples_per_batch=batch_size or 1, num_warm_batches=2 * num_workers or 1)


def _case(
    name: str,
    kind: str,
    batch_size: int | None,
    num_batches: int,
    num_workers: int = 2,
    *,
    metrics: Sequence[Metric] | None = None,
    sides: tuple[Side, ...] = WITH_SEED,
    megabytes: int = 0,
) -> Case:
    sizes = {"kind": kind, "batch_size": batch_size, "num_workers": num_workers}
    return Case(
        name=name,
        measure="benchmarks.cases.small:epoch",
        metrics=tuple(metrics or rates()),
        arguments={**sizes, "num_batches": num_batches, "megabytes": megabytes},
        quick={"num_batches": max(num_batches // 5, 4 * num_workers), "megabytes": min(megabytes, 8)},
        sides=sides,
    )


_BOTH = (TORCH, FASTLOAD)
_STRIDED = (Metric(name="first batch ms", least_ratio=0.67), *rates())

CASES = (
    _case("cifar", "cifar", 128, 160),
    _case("inline", "cifar", 128, 80, 0),
    _case("tensors32-ready", "ready", None, 600, metrics=rates(5.0, 5.0), sides=_BOTH),
    _case("tensors32-collated", "collated", 32, 300, sides=_BOTH),
    *(_case(f"tiny-tensors-{workers}-workers", "tensors", 256, 400, workers) for workers in (2, 0)),
    *(_case(f"tiny-integers-{workers}-workers", "integers", 256, 2000, workers) for workers in (2, 0)),
    _case("tokens-0-workers", "tokens", 32, 2000, 0, metrics=rates(0.8, None)),
    _case("tokens-2-workers", "tokens", 32, 2000, metrics=rates(0.97, None)),
    _case("custom_collate", "sentences", 64, 1000),
    *(
        _case(f"clips-{size}-mb", "clips", 4, max(10, 300 // size), metrics=rates(goal, None), megabytes=size)
        for size, goal in ((1, 0.97), (5, 0.97), (10, 3.0), (30, 0.97), (60, 0.97))
    ),
    _case("ragged-2-workers", "ragged", 32, 200, metrics=rates(5.0, None), sides=_BOTH),
    *(
        _case(f"strided-{kind}-{workers}-workers", kind, size, count, workers, metrics=_STRIDED, megabytes=storage)
        for kind, size, count, storage in (("table", 256, 400, 80), ("windows", 64, 200, 64))
        for workers in (2, 0)
    ),
)
