"""OpenCV's and Albumentations' generators: seeded for each sample, by whatever worker."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from kit.datasets import Sized
from torch.utils.data import ConcatDataset, Subset

import fastload
from fastload.keys import seeding
from fastload.keys.library_generators import LibraryGenerators


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Import them where these tests run, not in every process that collects tests."""
    pytest.importorskip("albumentations", reason="albumentations is not installed")
    pytest.importorskip("cv2", reason="OpenCV is not installed")


WORKERS = {
    "inline": {},
    "forkserver": {"num_workers": 2, "multiprocessing_context": "forkserver"},
    "processes": {"num_workers": 3, "chunk_size": 1},
    "threads": {"num_workers": 3, "worker_method": "thread", "chunk_size": 1},
}


def pipeline(seed: int | None = None) -> Any:
    import albumentations

    return albumentations.Compose(
        [
            albumentations.RandomCrop(12, 12),
            albumentations.HorizontalFlip(p=0.5),
            albumentations.OneOf([albumentations.GaussNoise(p=1.0), albumentations.RandomBrightnessContrast(p=1.0)]),
            albumentations.SomeOf([albumentations.CoarseDropout(p=1.0), albumentations.Rotate(p=1.0)], n=1),
        ],
        seed=seed,
    )


def image(index: int) -> np.ndarray:
    return np.random.RandomState(index).randint(0, 255, (16, 16, 3), dtype=np.uint8)


class Augmented(Sized):
    """Images by a pipeline of Albumentations, and noise of OpenCV's."""

    def __init__(self, transform: Any, length: int = 12) -> None:
        self.transform = transform
        super().__init__(length)

    def __getitem__(self, index: int) -> torch.Tensor:
        import cv2

        noise = np.empty((12, 12, 3), np.uint8)
        cv2.randu(noise, 0, 2)
        return torch.from_numpy(self.transform(image=image(index))["image"] // 2 + noise)


def batches(dataset: Any, **arguments: Any) -> list[list[Any]]:
    return [batch.tolist() for batch in fastload.DataLoader(dataset, **{"batch_size": 4, "seed": 3, **arguments})]


def unchanged(image: np.ndarray) -> dict[str, Any]:
    return {"image": image[:12, :12]}


def in_two_closures() -> Any:
    transform = pipeline()

    def flipped(image: np.ndarray) -> Any:
        return {"image": transform(image=image)["image"][::-1].copy()}

    def either(image: np.ndarray) -> Any:
        return flipped(image) if image[0, 0, 0] % 2 else transform(image=image)

    return either


def collate_by(transform: Any, indices: list[int]) -> torch.Tensor:
    return torch.stack([torch.from_numpy(transform(image=image(index))["image"]) for index in indices])


def by_collate_fn(**workers: Any) -> list[list[Any]]:
    collate_fn = functools.partial(collate_by, pipeline())
    return batches(range(8), collate_fn=collate_fn, **workers | {"chunk_size": None})


LOADED: dict[str, Callable[..., Any]] = {
    "an attribute": lambda **workers: batches(Augmented(pipeline()), **workers),
    "OpenCV alone": lambda **workers: batches(Augmented(unchanged), **workers),
    "in a subset": lambda **workers: batches(ConcatDataset([Subset(Augmented(pipeline()), range(12))]), **workers),
    "in closures": lambda **workers: batches(Augmented(in_two_closures()), **workers),
    "in collate_fn": by_collate_fn,
}


@pytest.mark.filterwarnings("error:worker threads share")
@pytest.mark.parametrize(
    ("held", "workers"),
    [
        *itertools.product(LOADED, ("processes", "threads")),
        pytest.param("an attribute", "forkserver", marks=pytest.mark.slow),  # which pickles datasets
    ],
)
def test_samples_are_the_same_whoever_loads_them_wherever_transforms_are_held(held, workers):
    expected = LOADED[held]()
    assert LOADED[held](**WORKERS[workers]) == expected
    assert LOADED[held](**WORKERS[workers], seed=4) != expected


def test_a_seed_given_to_compose_changes_nothing():
    assert batches(Augmented(pipeline(seed=7))) == batches(Augmented(pipeline()))


@pytest.mark.parametrize("workers", ["inline", "threads"])
def test_transforms_of_this_process_have_their_own_generators_between_batches(workers):
    dataset = Augmented(pipeline(seed=7))
    state = dataset.transform.random_generator.bit_generator.state
    held = dataset.transform.random_generator, dataset.transform.py_random
    iterator = iter(fastload.DataLoader(dataset, batch_size=4, seed=3, **WORKERS[workers]))
    next(iterator)
    assert (dataset.transform.random_generator, dataset.transform.py_random) == held
    assert dataset.transform.random_generator.bit_generator.state == state


GLOBAL: Any = None


class ByGlobal(Augmented):
    def __init__(self) -> None:
        super().__init__(None)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(GLOBAL(image=image(index))["image"])


def test_a_transform_in_a_global_variable_is_seeded_and_threads_warn_of_it(monkeypatch):
    monkeypatch.setitem(globals(), "GLOBAL", pipeline())
    expected = batches(ByGlobal())
    assert batches(ByGlobal(), **WORKERS["processes"]) == expected
    with pytest.warns(RuntimeWarning, match=r"share Albumentations transforms \(Compose\).*attributes of it"):
        batches(ByGlobal(), num_workers=1, worker_method="thread")


def test_torchs_seeding_leaves_the_libraries_alone():
    dataset = Augmented(pipeline(seed=7), length=4)
    loader = fastload.DataLoader(dataset, batch_size=4, seeding="torch")
    before = dataset.transform.py_random.getstate()
    list(loader)
    assert dataset.transform.py_random.getstate() != before


def test_words_of_other_generators_are_not_used_again(monkeypatch):
    import cv2

    seeds = []
    monkeypatch.setattr(cv2, "setRNGSeed", seeds.append)
    keys = []
    LibraryGenerators(then=SimpleNamespace(seed=keys.append)).seed(bytes(range(16)))
    assert keys == [bytes(range(16))]
    assert seeds[0] not in seeding.words(bytes(range(16)))
    assert 0 <= seeds[0] < 2**31
