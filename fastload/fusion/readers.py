"""A dataset's raw samples: bytes of a file or pixels, and the target before ``target_transform``.

In: an index of a leaf. Out: what its ``__getitem__`` begins with, without the object in between.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torchvision import datasets

from ..images.base import Data, Pixels
from ..pack.dataset import PackedImages
from ..pack.listing import refuse_pipe

# None: the system does not have the call or the flag (Linux has both).
_advise = getattr(os, "posix_fadvise", None)
_nowait = getattr(os, "RWF_NOWAIT", None)

# Opening a named pipe in a file's place must not wait for its writer.
_NONBLOCK = getattr(os, "O_NONBLOCK", 0)

# Number of files that are asked for after one that was not in memory.
_WATCHED = 64


class FileReader:
    """Reads an ImageFolder's or DatasetFolder's files. Threads may share it."""

    def __init__(self, dataset: Any) -> None:
        self._samples = dataset.samples
        # Falls to 0 where all files are in memory: asking for them is only work then. A count that threads get wrong
        # costs a request.
        self._to_ask = _WATCHED

    def path(self, index: Any) -> str:
        """Return where a sample lies."""
        path: str = self._samples[index][0]
        return path

    def ask_for(self, indices: Sequence[Any]) -> None:
        """Ask the kernel to read samples' files ahead, without waiting.

        Does nothing where the system has no such request, and while the files read lately were in memory.
        """
        if _advise is None or not self._to_ask:
            return
        for index in indices:
            try:
                file = os.open(self._samples[index][0], os.O_RDONLY | _NONBLOCK)
            except Exception:  # data() says what is wrong, in its place
                continue
            try:
                self._to_ask -= self._to_ask > 0
                if not _in_memory(file):
                    self._to_ask = _WATCHED
                    _advise(file, 0, 0, os.POSIX_FADV_WILLNEED)
            except OSError:  # a file system that takes no advice
                pass
            finally:
                os.close(file)

    def data(self, index: Any) -> Data:
        """Return a sample's file.

        Raises:
            OSError: it cannot be read.
        """
        path = self._samples[index][0]
        refuse_pipe(path)
        with open(path, "rb", buffering=0) as file:
            if not self._to_ask and not _in_memory(file.fileno()):
                self._to_ask = _WATCHED
            return file.readall()

    def targets(self, indices: Sequence[Any]) -> list[Any]:
        """Return the samples' classes."""
        return [self._samples[index][1] for index in indices]


class PackReader:
    """Reads a pack's files where they lie in memory."""

    def __init__(self, dataset: PackedImages) -> None:
        self._dataset = dataset

    def path(self, index: Any) -> str:
        """Return where a sample lies."""
        return f"{self._dataset.name(index)} in {self._dataset.root}"

    def ask_for(self, indices: Sequence[Any]) -> None:
        """Ask the kernel to read samples' files ahead."""
        self._dataset.will_need(indices)

    def data(self, index: Any) -> Data:
        """Return a sample's file, a view of the map.

        Raises:
            PackError: it cannot be read.
        """
        return self._dataset.encoded(index)

    def targets(self, indices: Sequence[Any]) -> list[Any]:
        """Return the samples' classes."""
        return [self._dataset.targets[index] for index in indices]


def reader_of_files(dataset: Any) -> FileReader | PackReader:
    """Return what reads a dataset's files."""
    return PackReader(dataset) if isinstance(dataset, PackedImages) else FileReader(dataset)


def _in_memory(file: int) -> bool:
    """Return whether the beginning of a file can be read without waiting; False where the system does not say."""
    if _nowait is None:
        return False
    try:
        os.preadv(file, [bytearray(1)], 0, _nowait)
    except OSError:  # it would wait, or the file system cannot say
        return False
    return True


class ArrayReader:
    """Reads a dataset whose images are one array in memory."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        data = dataset.data
        if isinstance(data, torch.Tensor):
            planes = data.numpy()[:, None]
        elif isinstance(dataset, datasets.CIFAR10):
            planes = data.transpose(0, 3, 1, 2)
        else:
            planes = data
        self.planes: npt.NDArray[np.uint8] = planes
        """[N, C, H, W], a view of the dataset's own."""
        self.images = torch.from_numpy(planes)
        """The same, as a tensor."""
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
        places = np.asarray(indices)
        if places.dtype.kind not in "iu" or places.ndim != 1:
            places = np.fromiter(map(operator.index, indices), dtype=np.intp, count=len(indices))
        count = len(self.planes)
        lowest, highest = places.min(initial=0), places.max(initial=0)
        if lowest < -count or highest >= count:
            raise IndexError(f"indices must be from {-count} to {count - 1}, got {lowest} to {highest}")
        return places if lowest >= 0 else np.where(places < 0, places + count, places)

    def block(self, places: npt.NDArray[np.intp]) -> torch.Tensor:
        """Return images: [N, C, H, W], uint8, a copy."""
        if self._is_together:
            return torch.from_numpy(self._together[places]).permute(0, 3, 1, 2)
        return torch.from_numpy(np.ascontiguousarray(self.planes[places]))

    def targets(self, indices: Sequence[Any]) -> list[Any]:
        """Return the samples' classes, as the dataset gives them."""
        dataset = self._dataset
        classes = dataset.targets if isinstance(dataset, (datasets.CIFAR10, datasets.MNIST)) else dataset.labels
        if classes is None:
            return [None] * len(indices)
        qmnist = isinstance(dataset, datasets.QMNIST)
        if isinstance(dataset, datasets.CIFAR10) or (qmnist and not dataset.compat):
            # Takes two thirds of the time of a loop; of a single index it makes no tuple.
            many = len(indices) > 1
            return list(operator.itemgetter(*indices)(classes)) if many else [classes[index] for index in indices]
        if isinstance(classes, (np.ndarray, torch.Tensor)):
            classes = classes[self.places(indices)].tolist()
        else:
            classes = [classes[index] for index in indices]
        return [int(one[0]) for one in classes] if qmnist else list(map(int, classes))


__all__ = ["ArrayReader", "FileReader", "PackReader", "reader_of_files"]
