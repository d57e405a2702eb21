"""The lazy tensor: what ``ToImage`` makes of a lazy image, and crops, resizes, flips and tables of levels of that.

Of the file, only what was kept is decoded. A tensor that a user's code has made of an image becomes one too: what
transforms do with it is then done in one pass.

The native library resizes as torch's ``interpolate`` does tensors of uint8, where both were compared
(:func:`tensor_filters`). In all other cases the part that is kept is decoded, and torchvision resizes it.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision import tv_tensors

from ..native.rows import MOST_SIDE, TENSOR_FILTERS, Cut, row_of_image
from .geometry import Geometry
from .image import state_of
from .scope import is_watched, run_outside_sample, thread
from .source import FileSource
from .transform_lists import V2_FUNCTIONAL


class Table(NamedTuple):
    """The result of transforms that look at one value at a time, for each level of a PIL image in RGB."""

    signatures: tuple[Any, ...]
    """The transforms' classes and arguments."""
    levels: Tensor
    """[3, 256]: what becomes of each level of each channel."""
    channels_last: bool
    """The result's order in memory."""
    kind: type[Tensor]
    """The result's class."""
    is_identity: bool
    """True if the values are the image's levels themselves."""
    shares_memory: bool
    """True if the last transform returns a tensor in the memory of the one that it takes."""

    def example(self) -> Tensor:
        """Return what the transforms make of an image that has all levels: [3, 16, 16]."""
        memory = Storage(16, 16, 0, 0, self.channels_last).new(self.levels.dtype)
        return self.of_kind(memory.copy_(self.levels.reshape(3, 16, 16)))

    def of_kind(self, made: Tensor) -> Tensor:
        """Return a tensor as one of the result's class."""
        return made if type(made) is self.kind else made.as_subclass(self.kind)


class Storage(NamedTuple):
    """The memory of a tensor [3, height, width]: that of a larger tensor, of which it is a part."""

    width: int
    height: int
    left: int
    upper: int
    channels_last: bool
    given: Tensor | None = None
    """The larger tensor itself, where all that was done shares its memory; None: it is to be made."""

    def new(self, dtype: torch.dtype, is_part: bool = False) -> Tensor:
        """Return the larger tensor; full of zeros if only a part will be written, since all of it may be saved."""
        make = torch.zeros if is_part else torch.empty
        if self.channels_last:
            return make((self.height, self.width, 3), dtype=dtype, device="cpu").permute(2, 0, 1)
        return make((3, self.height, self.width), dtype=dtype, device="cpu")


class DeferredTensor(tv_tensors.Image):  # type: ignore[misc]  # torchvision has no types
    """An image [3, height, width] that is not made yet, and has no memory. Only torchvision's transforms see it.

    ``size``, ``crop``, ``resize`` and ``transpose`` are Pillow's in place of a tensor's, so that random transforms
    (:mod:`fastload.late.draws`) treat it as an image. What version 2's functions do is recorded by
    :mod:`fastload.late.kernels`; all else that torch is asked for is done with the tensor of :meth:`materialize`.
    """

    _source: FileSource
    _geometry: Geometry
    table: Table
    _storage: Storage

    @staticmethod
    def of(source: FileSource, geometry: Geometry, table: Table, storage: Storage | None = None) -> DeferredTensor:
        """Return the tensor of a source's pixels; ``storage``: None: memory of its own."""
        width, height = geometry.shown_size
        made: Any = Tensor._make_wrapper_subclass(DeferredTensor, (3, height, width), dtype=table.levels.dtype)
        made._source, made._geometry, made.table = source, geometry, table
        made._storage = storage or Storage(width, height, 0, 0, table.channels_last)
        return made  # type: ignore[no-any-return]

    @staticmethod
    def of_image(image: Any, table: Table) -> DeferredTensor | None:
        """Return what a transform that looks at one value at a time makes of a lazy image.

        None where the image must be materialized: it is grey, transposed, was used before, or has one row or column.
        """
        state = state_of(image, "__array_interface__") if image._mode == "RGB" and _tells_order(image.size) else None
        if state is None or state.geometry.transposed:
            return None
        return DeferredTensor.of(state.source, state.geometry, table)

    @staticmethod
    def of_tensor(image: Tensor) -> DeferredTensor:
        """Return what stands for a tensor of which :func:`can_defer` is true."""
        _, height, width = image.shape
        pixels = image.as_subclass(Tensor).permute(1, 2, 0).numpy()
        source = FileSource(pixels, width, height, is_grey=False)
        storage = Storage(width, height, 0, 0, channels_last=True, given=image)
        return DeferredTensor.of(source, Geometry.whole(width, height), _levels_of(type(image)), storage)

    @classmethod
    def __torch_function__(cls, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do with the tensor what torch is called for."""
        named = {name: materialized(value) for name, value in (kwargs or {}).items()}
        return func(*map(materialized, args), **named)

    # Of what torch does not ask the above for: as_subclass, as_tensor.
    __torch_dispatch__ = __torch_function__

    @property
    def size(self) -> tuple[int, int]:
        """(width, height)."""
        return self._geometry.shown_size

    def crop(self, box: tuple[int, int, int, int]) -> DeferredTensor | None:
        """Return a part, given its left, upper, right and lower edge; None if it is empty or not within the tensor."""
        geometry = self._geometry.cropped(box)
        if geometry is None:
            return None
        storage = self._storage._replace(left=self._storage.left + box[0], upper=self._storage.upper + box[1])
        return DeferredTensor.of(self._source, geometry, self.table, storage)

    def transpose(self, method: Image.Transpose) -> Tensor:
        """Return it flipped."""
        geometry = self._geometry.transposed_by(method) if _tells_order(self.size) else None
        if geometry is None:
            is_horizontal = method is Image.Transpose.FLIP_LEFT_RIGHT
            return _of_v2("horizontal_flip" if is_horizontal else "vertical_flip", self.materialize())
        return self._with_own_memory(geometry, self._storage.channels_last)

    def resize(self, size: tuple[int, int], resample: Image.Resampling) -> Tensor:
        """Return it resized to (width, height), with antialias."""
        if size == self.size:
            given = self._storage.given
            if given is None or self.table.kind is Tensor:
                return self
            # torchvision wraps it anew: another object of the same memory.
            storage = self._storage._replace(given=given.as_subclass(Tensor))
            return DeferredTensor.of(self._source, self._geometry, self.table, storage)
        name = f"tensor {resample.name.lower()}"
        geometry = None
        if self.table.is_identity and _tells_order(size) and _tells_order(self.size) and max(size) <= MOST_SIDE:
            if name in tensor_filters():
                geometry = self._geometry.resized(size, name)
            elif name in TENSOR_FILTERS and thread.scope is not None:
                thread.scope.count(f"resized by torchvision itself: its {name.split()[1]} values differ here")
        if geometry is None:
            return _of_v2("resize", self.materialize(), [size[1], size[0]], _mode_of(name), antialias=True)
        # What torch makes of a part of a channels-last image is contiguous, unless the part's rows follow each other.
        return self._with_own_memory(
            geometry, self._storage.channels_last and self._storage.width == self._geometry.shown_size[0]
        )

    def mapped(self, table: Table) -> DeferredTensor | None:
        """Return it after one more transform, which the table includes; None where that is to be called."""
        if not _tells_order(self.size) or table.channels_last != self.table.channels_last:
            return None
        if self._storage.given is not None:
            return None  # torch's operators change values sooner than a table, unless they are resized too
        storage = self._storage if table.shares_memory else Storage(*self.size, 0, 0, self._storage.channels_last)
        return DeferredTensor.of(self._source, self._geometry, table, storage)

    def _with_own_memory(self, geometry: Geometry, channels_last: bool) -> DeferredTensor:
        storage = Storage(*geometry.shown_size, 0, 0, channels_last)
        return DeferredTensor.of(self._source, geometry, self.table, storage)

    def materialize(self) -> Tensor:
        """Return the tensor: of the table's dtype and class."""
        table, storage, (width, height) = self.table, self._storage, self.size
        is_part = (width, height) != (storage.width, storage.height)
        made = storage.new(table.levels.dtype, is_part) if storage.given is None else storage.given
        if is_part:
            within = slice(storage.upper, storage.upper + height), slice(storage.left, storage.left + width)
            made = made.as_subclass(Tensor)[:, *within]
        if storage.given is None:
            self._source.row(self._geometry.cut, None if table.is_identity else table.levels, made, thread.scope)
        return table.of_kind(made)


def materialized(found: Any) -> Any:
    """Return what was found, with tensors in place of deferred ones; lists and tuples of them too."""
    if isinstance(found, DeferredTensor):
        return found.materialize()
    if isinstance(found, (list, tuple)) and any(isinstance(one, DeferredTensor) for one in found):
        return type(found)(map(materialized, found))
    return found


def can_defer(image: Tensor) -> bool:
    """Return whether a tensor is [3, height, width] of uint8, its pixels side by side without gaps."""
    if is_watched():  # which would see what is asked here
        return False
    if image.dtype is not torch.uint8 or image.ndim != 3 or image.layout is not torch.strided or not image.is_cpu:
        return False
    channels, height, width = image.shape
    if channels != 3 or not _tells_order((width, height)) or max(width, height) > MOST_SIDE:
        return False
    if torch._C._are_functorch_transforms_active():
        return False
    return image.as_subclass(Tensor).stride() == (1, 3 * width, 3)


@functools.cache
def _levels_of(kind: type[Tensor]) -> Table:
    """Return the table of a tensor as it is."""
    levels = torch.arange(256, dtype=torch.uint8, device="cpu").repeat(3, 1)
    return Table((kind,), levels, channels_last=True, kind=kind, is_identity=True, shares_memory=True)


def _tells_order(size: tuple[int, int]) -> bool:
    """Return whether strides tell a tensor's order in memory: with one row or column they do not."""
    return min(size) > 1


def _of_v2(name: str, *arguments: Any, **named: Any) -> Tensor:
    made: Tensor = getattr(sys.modules[V2_FUNCTIONAL], name)(*arguments, **named)
    return made


def _mode_of(name: str) -> Any:
    return sys.modules[V2_FUNCTIONAL].InterpolationMode(name.removeprefix("tensor "))


@functools.cache
def tensor_filters() -> frozenset[str]:
    """Return the filters with which the native library resizes as torchvision's version 2 does tensors of uint8.

    Compared once, in about 2 ms: of noise, made smaller and larger, in one direction and in both; the order in memory
    as well. Version 2 must be imported.
    """
    return frozenset(name for name in TENSOR_FILTERS if run_outside_sample(lambda name=name: _is_torchs(name)))  # type: ignore[misc]


def _is_torchs(name: str) -> bool:
    noise = np.random.Generator(np.random.PCG64(0)).integers(0, 256, (40, 46, 3), dtype=np.uint8)
    image = torch.from_numpy(noise).permute(2, 0, 1)
    for part in (image, image[:, 2:33], image[:, :, 3:30], image[:, 5:31, 7:40], image.contiguous()):
        _, height, width = part.shape
        pixels = np.ascontiguousarray(part.permute(1, 2, 0).numpy())
        for rows, columns in ((17, 23), (60, 31), (height, 51), (9, width)):
            size = rows, columns
            made = _of_v2("resize", part, list(size), _mode_of(name), antialias=True)
            cut = Cut((0, 0, height, width), size, name, (0, 0, *size), (False, False))
            follows = part.stride()[0] == 1 and width == 46
            ours: Any = row_of_image(pixels, cut)
            if not torch.equal(made, ours) or (made.stride()[0] == 1) != follows:
                return False
    return True
