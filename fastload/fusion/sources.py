"""Two sources of images: files, and arrays in memory; how they are recognised, and how they are read.

Recognition only looks at objects: it reads nothing from disk, and calls nothing of the user's. A subclass of a known
dataset is known as long as it overrides nothing that ``__getitem__`` is made of.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torchvision
from torch.utils.data import Subset
from torchvision import datasets
from torchvision.datasets import folder

from ..base.overrides import is_written_in
from ..base.share import SharedSequence
from ..cache.record_file import will_need
from ..cache.records import Records
from ..images.decoder import Data
from ..pack.dataset import PackedImages
from ..pack.listing import refuse_pipe
from .transforms import NotFused, Size

# What their __getitem__ depends on.
_RELIED_ON = {
    *("__getitem__", "__getitems__", "__getattr__", "__getattribute__", "transform", "target_transform", "loader"),
    *("samples", "data", "targets", "labels", "dataset", "indices", "encoded", "image", "_find"),
}


class Source:
    """Reads the images of a dataset. Threads may share it."""

    channels = 3
    """1 (mode L) or 3 (RGB)."""
    size: Size | None = None
    """Size of all images; None: each has its own."""
    shown = ""
    """Description for ``explain``."""

    def open(self, place: Any, opened: ExitStack) -> Any:
        """Return what :meth:`data` reads, which is asked for from now on; ``opened`` closes it."""
        return place

    def data(self, place: Any) -> Data:
        """Return an image's file, a record of it, or its pixels: [H, W, 3], or [H, W] of a grey one."""
        raise NotImplementedError

    def targets(self, places: Sequence[Any]) -> list[Any]:
        """Return the samples' classes, as the dataset gives them."""
        raise NotImplementedError


class Files(Source):
    """An ImageFolder's or DatasetFolder's. ``cache``: where records of files are kept, and read in their place."""

    def __init__(self, dataset: Any, cache: Records | None) -> None:
        loader, samples = vars(dataset).get("loader"), vars(dataset).get("samples")
        if loader not in (folder.default_loader, folder.pil_loader):
            raise NotFused(f"its loader is {getattr(loader, '__qualname__', loader)!r}, not one of torchvision's")
        if loader is folder.default_loader and torchvision.get_image_backend() != "PIL":
            raise NotFused(f"torchvision.get_image_backend() is {torchvision.get_image_backend()!r}, not 'PIL'")
        if type(samples) not in (list, SharedSequence):
            raise NotFused(f"its samples are a {type(samples).__name__}, not a list")
        self.shown = f"{len(samples):,} files"
        self._samples: Any = samples
        self._cache = cache

    def open(self, place: Any, opened: ExitStack) -> Any:
        path = self._samples[place][0]
        refuse_pipe(path)
        file = opened.enter_context(open(path, "rb", buffering=0))  # noqa: SIM115 - the stack closes it
        if self._cache is None or not self._cache.ask_for(file.fileno()):
            will_need(file.fileno(), 0, 0)
        return file

    def data(self, file: Any) -> Data:
        data: Data = file.readall() if self._cache is None else self._cache.read(file)
        return data

    def targets(self, places: Sequence[Any]) -> list[Any]:
        return [self._samples[place][1] for place in places]


class Packed(Source):
    """A pack's files or records, where they lie in memory."""

    def __init__(self, dataset: PackedImages) -> None:
        self.shown = f"{len(dataset):,} {dataset.stored_as}"
        self._dataset = dataset

    def open(self, place: Any, opened: ExitStack) -> Any:
        self._dataset.will_need(place)
        return place

    def data(self, place: Any) -> Data:
        return self._dataset.encoded(place)

    def targets(self, places: Sequence[Any]) -> list[Any]:
        return [self._dataset.targets[place] for place in places]


class Arrays(Source):
    """A dataset whose images are one array in memory."""

    def __init__(self, dataset: Any, planes: npt.NDArray[np.uint8], classes: Any) -> None:
        self.planes = planes
        """[N, C, H, W], a view of the dataset's own."""
        self.channels, height, width = planes.shape[1:]
        self.size = height, width
        self.shown = f"{len(planes):,} images of {height} x {width}, {'RGB' if self.channels == 3 else 'L'}"
        self._classes = classes
        self._as_given = isinstance(dataset, datasets.CIFAR10)  # others make an int of each

    def data(self, place: Any) -> Data:
        image: npt.NDArray[np.uint8] = self.planes[place]
        return image[0] if len(image) == 1 else image.transpose(1, 2, 0).copy()

    def places(self, indices: Sequence[Any]) -> npt.NDArray[np.int64]:
        """Return indices as places from 0 on."""
        places = np.asarray(indices)
        if places.dtype.kind not in "iu" or places.ndim != 1:
            places = np.fromiter(map(operator.index, indices), dtype=np.int64, count=len(indices))
        count = len(self.planes)
        lowest, highest = places.min(initial=0), places.max(initial=0)
        if lowest < -count or highest >= count:
            raise IndexError(f"indices must be from {-count} to {count - 1}, got {lowest} to {highest}")
        return (places if lowest >= 0 else np.where(places < 0, places + count, places)).astype(np.int64, copy=False)

    def targets(self, places: Sequence[Any]) -> list[Any]:
        classes = self._classes
        if classes is None:
            return [None] * len(places)
        if not self._as_given and isinstance(classes, np.ndarray | torch.Tensor):
            return list(map(int, classes[self.places(places)].tolist()))
        # In two thirds of the time of a loop; of a single place it makes no tuple.
        found = operator.itemgetter(*places)(classes) if len(places) > 1 else [classes[place] for place in places]
        return list(found if self._as_given else map(int, found))


_FOLDERS = (datasets.ImageFolder, datasets.DatasetFolder)

ARRAYS: dict[type, tuple[type, tuple[int | None, ...], Callable[[Any], Any], str]] = {
    datasets.CIFAR10: (np.ndarray, (None, None, None, 3), lambda data: data.transpose(0, 3, 1, 2), "targets"),
    datasets.MNIST: (torch.Tensor, (None, None, None), lambda data: data.numpy()[:, None], "targets"),
    datasets.SVHN: (np.ndarray, (None, 3, None, None), lambda data: data, "labels"),
    datasets.STL10: (np.ndarray, (None, 3, None, None), lambda data: data, "labels"),
}
"""Datasets in memory: the type and shape of ``data``, what sees it as [N, C, H, W], and the name of the classes."""


def source_of(dataset: Any, cache: Records | None = None) -> tuple[Any, list[Any], Source]:
    """Return the dataset that Subsets are of, their indices, the outermost first, and the source of its images.

    Raises:
        NotFused: it is not known.
    """
    chosen: list[Any] = []
    while isinstance(dataset, Subset):
        _base_of(dataset, (Subset,))
        chosen.append(dataset.indices)
        dataset = dataset.dataset
    base = _base_of(dataset, (*_FOLDERS, PackedImages, *ARRAYS))
    if vars(dataset).get("target_transform") is not None:
        raise NotFused("it has a target_transform; map the targets in collate_fn or in the loop")
    if base in _FOLDERS:
        return dataset, chosen, Files(dataset, cache)
    if base is PackedImages:
        return dataset, chosen, Packed(dataset)
    kind, shape, see, classes = ARRAYS[base]
    data: Any = vars(dataset).get("data")
    if (found := type(data)) is not kind:
        raise NotFused(f"its data is a {found.__name__}, not a {kind.__name__}")
    fits = len(data.shape) == len(shape) and all(
        wanted in (None, side) for wanted, side in zip(shape, data.shape, strict=True)
    )
    if data.dtype not in (torch.uint8, np.dtype(np.uint8)) or not fits or str(getattr(data, "device", "cpu")) != "cpu":
        raise NotFused(f"its data are {data.dtype} {tuple(data.shape)}, not images of uint8 in memory")
    return dataset, chosen, Arrays(dataset, see(data), getattr(dataset, classes))


def _base_of(dataset: Any, known: tuple[type, ...]) -> Any:
    """Return the known class that a dataset is of; or raise NotFused, also where it overrides what matters."""
    kind = type(dataset)
    base: Any = next((parent for parent in kind.__mro__ if parent in known), None)
    if base is None:
        raise NotFused(f"{kind.__name__} is not one of the datasets that fuse=True knows")
    if not is_written_in(base.__getitem__, base.__module__.split(".")[0]):
        raise NotFused(f"__getitem__ of {base.__name__} was replaced")
    for parent in kind.__mro__[: kind.__mro__.index(base)]:
        overridden = sorted(_RELIED_ON & vars(parent).keys())
        if overridden:
            raise NotFused(f"{parent.__name__} overrides {', '.join(overridden)} of {base.__name__}")
    return base
