"""Datasets and transforms of MONAI's, and of users of it, for tests/libraries/test_monai.py; to import it takes 5 s."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import monai
import numpy as np
from monai import transforms as of
from monai.data import list_data_collate
from monai.data.utils import worker_init_fn
from torch.utils.data import ConcatDataset, Dataset, Subset

import fastload

IMAGES = [np.random.RandomState(i).rand(1, 8, 8).astype(np.float32) for i in range(12)]


def arrays() -> list[Any]:
    return [
        of.RandFlip(prob=0.5, spatial_axis=0),
        of.RandAffine(prob=0.5, rotate_range=1.0),
        of.OneOf([of.RandGaussianNoise(prob=1.0), of.RandScaleIntensity(0.5, prob=1.0)]),
        of.SomeOf([of.RandShiftIntensity(0.5, prob=1.0), of.RandAdjustContrast(prob=1.0)], num_transforms=1),
        of.RandomOrder([of.RandZoom(prob=1.0), of.RandRotate90(prob=0.5)]),
    ]


def pipeline() -> Any:
    return of.Compose(arrays())


def dicts() -> Any:
    keys = ["image", "label"]
    return of.Compose(
        [
            of.RandSpatialCropSamplesd(keys, roi_size=(4, 4), num_samples=2, random_size=False),
            of.RandFlipd(keys, prob=0.5),
            of.Rand2DElasticd(keys, spacing=(2, 2), magnitude_range=(0, 1), prob=0.5),
            of.RandGaussianNoised("image", prob=0.8),
        ]
    )


def pairs() -> list[dict[str, Any]]:
    return [{"image": image, "label": (image > 0.5).astype(np.float32)} for image in IMAGES]


class Shift(of.Randomizable, of.Transform):  # type: ignore[misc]
    """A transform of the user's, which nobody calls set_random_state of."""

    def randomize(self, data: Any = None) -> None:
        self.shift = self.R.uniform(-1, 1)

    def __call__(self, image: Any) -> Any:
        self.randomize()
        return image + self.shift


class Own(Dataset[Any]):
    """An own dataset with transforms in a list, one of the user's, and one in a closure."""

    def __init__(self) -> None:
        self.stages = [*arrays(), closed_over(arrays()[0]), Shift()]

    def __len__(self) -> int:
        return len(IMAGES)

    def __getitem__(self, index: int) -> Any:
        image: Any = IMAGES[index]
        for stage in self.stages:
            image = stage(image)
        return image


def closed_over(transform: Any) -> Callable[[Any], Any]:
    return lambda image: transform(image)


class RandomDataset(Dataset[Any], of.Randomizable):  # type: ignore[misc]
    """A dataset that is a Randomizable itself, as in MONAI's documentation."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return self.R.randint(0, 1000, (1,))


DATASETS: dict[str, Callable[[Path], Any]] = {
    "Dataset": lambda _: monai.data.Dataset(IMAGES, pipeline()),
    "CacheDataset": lambda _: monai.data.CacheDataset(pairs(), dicts(), progress=False),
    "PersistentDataset": lambda folder: monai.data.PersistentDataset(pairs(), dicts(), cache_dir=folder),
    "ArrayDataset": lambda _: monai.data.ArrayDataset(IMAGES, pipeline(), IMAGES, pipeline()),
    "a Randomizable": lambda _: RandomDataset(),
    "own": lambda _: ConcatDataset([Subset(Own(), range(12))]),
}


def loader_of(dataset: Any, kind: Any = fastload.DataLoader, **arguments: Any) -> Any:
    """Return a loader as MONAI's own class makes it."""
    arguments = {"batch_size": 4, "collate_fn": list_data_collate, "worker_init_fn": worker_init_fn} | arguments
    return kind(dataset, **arguments)


def values(loader: Any) -> list[Any]:
    return [_values(batch) for batch in loader]


def _values(batch: Any) -> Any:
    if isinstance(batch, dict):
        return [_values(batch[key]) for key in ("image", "label")]
    return [_values(one) for one in batch] if isinstance(batch, list | tuple) else np.asarray(batch).tolist()
