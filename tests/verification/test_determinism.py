"""The same batches, bit for bit, whoever loads them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from determinism_fakes import Drawing, Mixed, batches
from kit.comparison import difference
from kit.generators import generator_states, seed_generators
from PIL import Image
from torch.utils.data import ConcatDataset, Dataset
from torchvision import transforms as v1
from torchvision.transforms import v2

from fastload import DataLoader, DistributedBatchSampler
from fastload.testing import assert_deterministic

METHODS: dict[str, dict[str, Any]] = {
    "inline": {"num_workers": 0},
    "fork": {"num_workers": 3, "multiprocessing_context": "fork"},
    "one": {"num_workers": 1, "multiprocessing_context": "fork", "prefetch_factor": 4},
    "spawn": {"num_workers": 1, "multiprocessing_context": "spawn"},
    "spawn, kept": {"num_workers": 2, "multiprocessing_context": "spawn", "persistent_workers": True},
    "forkserver": {"num_workers": 2, "multiprocessing_context": "forkserver"},
    "chunks of one": {"num_workers": 2, "chunk_size": 1},
    "whole batches": {"num_workers": 3, "chunk_size": "batch", "prefetch_factor": 1},
    "kept": {"num_workers": 2, "persistent_workers": True},
    "threads": {"num_workers": 3, "worker_method": "thread"},
    "one thread": {"num_workers": 1, "worker_method": "thread", "chunk_size": 2},
}


class Pictures(Dataset[Any]):
    """Pictures made from their index, with a transform."""

    def __init__(self, transform: Callable[[Any], Any]) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> Any:
        pixels = (np.arange(40 * 36 * 3) * (index + 1) % 251).astype(np.uint8).reshape(40, 36, 3)
        return self.transform(Image.fromarray(pixels)), index


DATASETS: dict[str, Callable[[], Dataset[Any]]] = {
    "draws": Drawing,
    "mixed": Mixed,
    "torchvision v1": lambda: Pictures(
        v1.Compose(
            [v1.RandomResizedCrop(24), v1.RandomApply([v1.GaussianBlur(3)], 0.5), v1.AutoAugment(), v1.ToTensor()]
        )
    ),
    "torchvision v2": lambda: Pictures(
        v2.Compose([v2.RandomCrop(24), v2.RandomChoice([v2.RandAugment(), v2.TrivialAugmentWide()]), v2.ToImage()])
    ),
    "concatenated": lambda: ConcatDataset([Drawing(10), Drawing(13)]),
}


def epochs_of(dataset: Dataset[Any], seed: int = 11, **arguments: Any) -> list[list[Any]]:
    """Return the batches of two epochs."""
    loader = DataLoader(dataset, 8, shuffle=True, seed=seed, **arguments)
    found = [list(loader) for _ in range(2)]
    loader.close()
    return found


@pytest.mark.parametrize(("name", "method"), [*((name, "thread") for name in DATASETS), ("mixed", "fork")])
def test_batches_are_the_same_for_any_workers_chunks_and_ranks_and_after_a_resume(name, method):
    loader = DataLoader(DATASETS[name](), 8, shuffle=True, seed=11)
    report = assert_deterministic(loader, batches=3, methods=[method])
    assert {check.verdict for check in report.checks} == {"equal"}
    assert {check.name for check in report.checks} == {"again", "workers", "next epoch", "world size", "resume"}


SLOW = [method for method in METHODS if method.startswith(("spawn", "forkserver"))]


@pytest.mark.parametrize(
    "method", [pytest.param(method, marks=[pytest.mark.slow] * (method in SLOW)) for method in METHODS]
)
def test_batches_are_the_same_for_every_kind_of_worker(method):
    assert difference(epochs_of(Mixed(), **METHODS[method]), epochs_of(Mixed())) is None


def test_epochs_and_seeds_have_other_augmentations():
    first, second = epochs_of(Mixed())
    other, _ = epochs_of(Mixed(), seed=12)
    assert all(difference(*pair) for pair in itertools.combinations([first, second, other], 2))


def test_the_batch_size_and_the_order_change_no_sample():
    whole = {row[0]: row for batch in batches(DataLoader(Drawing(), 8, shuffle=True, seed=11)) for row in batch}
    for loader in (
        DataLoader(Drawing(), 5, shuffle=True, seed=11, num_workers=2),
        DataLoader(Drawing(), 53, seed=11),
        DataLoader(Drawing(), batch_sampler=DistributedBatchSampler(Drawing(), 4, seed=3, tail="short"), seed=11),
    ):
        assert {row[0]: row for batch in batches(loader) for row in batch} == whole


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_users_generators_neither_change_the_batches_nor_are_changed_by_them(num_workers):
    given = []
    for seed in (1, 2):
        seed_generators(seed)
        iterator = iter(DataLoader(Drawing(), 8, shuffle=True, seed=11, num_workers=num_workers))
        before = generator_states()  # torch has drawn a base seed by then, and so have we
        given.append(batches(iterator))
        assert generator_states() == before
    assert given[0] == given[1]


def test_with_torchs_seeding_threads_have_the_streams_of_torchs_worker_processes():
    torchs = torch.utils.data.DataLoader(
        Drawing(), 8, shuffle=True, num_workers=2, generator=torch.Generator().manual_seed(4)
    )
    threads = DataLoader(
        Drawing(), 8, shuffle=True, num_workers=2, generator=torch.Generator().manual_seed(4), seeding="torch",
        worker_method="thread",
    )  # fmt: skip
    assert difference(list(threads), list(torchs)) is None
