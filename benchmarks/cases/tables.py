"""Tokens in a Hugging Face dataset: a mapped file of 256 tokens a row, batches of 32 and 256, in each format.

Claim: with torch's collation 20 times torch's samples per second with 2 workers, and 8 times without, from 256 rows a
batch on 12 times.

Meaningless if: other work runs on the cores; the file does not fit into the kernel's cache (then there are workers).
"""

import functools
import tempfile
from itertools import product
from typing import Any

import numpy as np
import torch

from benchmarks.loops import kept, make_loader, time_epoch
from benchmarks.spec import Case, Measurement, Side, rates


@functools.cache
def _tokens(num_rows: int) -> Any:
    import datasets  # takes a second: for this subject alone

    ids = np.random.default_rng(0).integers(0, 30_000, (num_rows, 256))
    types = datasets.Features({"input_ids": datasets.List(datasets.Value("int32"))})
    with tempfile.TemporaryDirectory() as folder:  # what is mapped outlives the name
        datasets.Dataset.from_dict({"input_ids": ids.tolist()}, features=types).save_to_disk(folder)
        return datasets.load_from_disk(folder)


def epoch(side: Side, *, form: str, batch_size: int, num_rows: int, num_workers: int) -> Measurement:
    """Time an epoch in random order."""
    torch.manual_seed(0)
    dataset = _tokens(num_rows).with_format(None if form == "python" else form)
    arguments: dict[str, Any] = {"batch_size": batch_size, "shuffle": True, "num_workers": num_workers}
    loader = kept("loader", lambda: make_loader(side, dataset, **arguments))
    return time_epoch(loader, samples_per_batch=batch_size, num_warm_batches=2 * num_workers or 1)


def _case(form: str, batch_size: int, num_workers: int) -> Case:
    goal = 20.0 if num_workers else 12.0 if batch_size > 32 else 8.0
    sizes = {"form": form, "batch_size": batch_size, "num_workers": num_workers}
    # No smaller batch at the end. Python's lists are fewer: torch's workers send a tensor for each token.
    num_rows = 3_328 if form == "python" else 32_000
    return Case(
        name=f"tables-{form}-{batch_size}-{num_workers}-workers",
        measure="benchmarks.cases.tables:epoch",
        metrics=rates(goal, None),
        arguments={**sizes, "num_rows": num_rows},
        quick={**sizes, "num_rows": 2_560},
    )


CASES = tuple(
    _case(form, batch_size, num_workers)
    for form, batch_size, num_workers in product(("torch", "numpy", "python"), (32, 256), (0, 2))
)
