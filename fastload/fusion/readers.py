"""A dataset's raw samples: bytes of a file or pixels, and the target before ``target_transform``.

In: an index of a leaf. Out: what its ``__getitem__`` begins with, without the object in between.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torchvision import datasets

Pixels: TypeAlias = npt.NDArray[np.uint8]
"""[H, W, C]."""


class FileReader:
    """Reads an ImageFolder's or DatasetFolder's files."""

    def __init__(self, dataset: Any) -> None:
        self._samples = dataset.samples

    def path(self, index: Any) -> str:
        """Return where a sample lies."""
        path: str = self._samples[index][0]
        return path

    def data(self, index: Any) -> bytes:
        """Return a sample's file.

        Raises:
            OSError: it cannot be read.
        """
        with open(self._samples[index][0], "rb") as file:
            return file.read()

    def target(self, index: Any) -> Any:
        """Return a sample's class."""
        return self._samples[index][1]


class ArrayReader:
    """Reads a dataset whose images are one array in memory."""

    def __init__(self, dataset: Any) -> None:
        self._kind = dataset
        data = dataset.data
        if isinstance(data, torch.Tensor):
            planes = data.numpy()[:, None]
        elif isinstance(dataset, datasets.CIFAR10):
            planes = data.transpose(0, 3, 1, 2)
        else:
            planes = data
        self.planes: npt.NDArray[np.uint8] = planes
        """[N, C, H, W], a view of the dataset's own."""
        # As it lies in memory, so that images are copied and not gathered pixel by pixel.
        self._together = planes.transpose(0, 2, 3, 1)
        self._is_together = self._together.flags.c_contiguous and not planes.flags.c_contiguous

    def pixels(self, index: Any) -> Pixels:
        """Return an image: [H, W, C], a view."""
        image: Pixels = self.planes[index]
        return image.transpose(1, 2, 0)

    def places(self, indices: Sequence[Any]) -> npt.NDArray[np.intp]:
        """Return indices as places from 0 on.

        Raises:
            IndexError: one of them is beyond the end.
        """
        count = len(self.planes)
        places = np.fromiter(map(operator.index, indices), dtype=np.intp, count=len(indices))
        if len(places) and not -count <= places.min() <= places.max() < count:
            raise IndexError(f"indices must be below {count}, the number of images, got {places.max()}")
        return np.where(places < 0, places + count, places)

    def block(self, places: npt.NDArray[np.intp]) -> torch.Tensor:
        """Return images: [N, C, H, W], uint8, a copy."""
        if self._is_together:
            return torch.from_numpy(self._together[places]).permute(0, 3, 1, 2)
        return torch.from_numpy(np.ascontiguousarray(self.planes[places]))

    def target(self, index: Any) -> Any:
        """Return a sample's class, as the dataset gives it."""
        dataset = self._kind
        if isinstance(dataset, datasets.QMNIST):
            target = dataset.targets[index]
            return int(target[0]) if dataset.compat else target
        if isinstance(dataset, datasets.MNIST):
            return int(dataset.targets[index])
        if isinstance(dataset, datasets.CIFAR10):
            return dataset.targets[index]
        return None if dataset.labels is None else int(dataset.labels[index])


__all__ = ["ArrayReader", "FileReader", "Pixels"]
