"""Tensors of late images before they are decoded: what ``ToImage`` makes, and crops, resizes and flips of it.

In: a late image, and the transforms that make a tensor of it. Out: the same tensor as torch's operators make, bit for
bit, in the same place of a tensor with the same strides; of the file, only what was kept is decoded.

A resize is made by a kernel that computes as torch's ``interpolate`` does for tensors of uint8, if that was compared
(:func:`tensor_filters`); where it is not the same, and for other dtypes, the part that is kept is decoded, and the
user's own function resizes it.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..native.rows import MOST_SIDE, TENSOR_FILTERS, Cut, row_of_image
from .scope import thread, tried
from .source import FileSource
from .view import View


class Table(NamedTuple):
    """What a run of transforms makes of a PIL image in RGB."""

    levels: Tensor
    """[3, 256]: what becomes of each level of each channel."""
    channels_last: bool
    """The result's order in memory."""
    kind: type[Tensor]
    """``Tensor``, or a subclass of torchvision's."""
    is_identity: bool
    """Whether the values are the image's levels themselves."""


class Place(NamedTuple):
    """Where a tensor [3, height, width] lies in memory: in a larger one, of which it is a part."""

    whole: tuple[int, int]
    """(width, height) of the tensor that has the memory."""
    left: int
    upper: int
    channels_last: bool


class Undecoded:
    """A tensor [3, height, width] that is not made yet.

    ``crop``, ``resize`` and ``transpose`` are named and called as Pillow's; they return another one, or the tensor
    where torch's own operator has made it.
    """

    __slots__ = ("_place", "_source", "_view", "functional", "run", "table")

    def __init__(self, source: FileSource, view: View, run: tuple[Any, ...], table: Table, place: Place) -> None:
        self._source = source
        self._view = view
        self.run = run
        """The transforms whose values it has."""
        self.table = table
        self._place = place
        self.functional: Any = None
        """torchvision's functions of the version whose transform is called: with them it is resized in the end."""

    @property
    def size(self) -> tuple[int, int]:
        """(width, height)."""
        return self._view.shown_size

    @property
    def _is_dense(self) -> bool:
        return self._place.whole == self.size

    def _with(self, view: View, place: Place | None = None, channels_last: bool | None = None) -> Undecoded:
        if place is None:  # a new tensor
            place = Place(view.shown_size, 0, 0, self._place.channels_last if channels_last is None else channels_last)
        made = Undecoded(self._source, view, self.run, self.table, place)
        made.functional = self.functional
        return made

    def crop(self, box: tuple[int, int, int, int]) -> Any:
        """Return a part, given its left, upper, right and lower edge; None where it is not within the tensor."""
        view = self._view.cropped(box)
        if view is None:
            return None
        whole, left, upper, channels_last = self._place
        return self._with(view, Place(whole, left + box[0], upper + box[1], channels_last))

    def transpose(self, method: Image.Transpose) -> Any:
        """Return the tensor flipped; None for a turn."""
        view = self._view.transposed_by(method)
        return None if view is None or view.transposed else self._with(view)

    def resize(self, size: tuple[int, int], resample: Image.Resampling) -> Any:
        """Return it resized to (width, height), with antialias."""
        if size == self.size:
            return self
        name = f"tensor {resample.name.lower()}"
        is_v2 = self.functional.__name__ == "torchvision.transforms.v2.functional"
        view = None
        if is_v2 and name in tensor_filters() and self.table.is_identity and max(size) <= MOST_SIDE:
            view = self._view.resized(size, name)
        if view is None:
            mode = self.functional.InterpolationMode(resample.name.lower())
            return self.functional.resize(self.real(), [size[1], size[0]], interpolation=mode, antialias=True)
        # What torch makes of a part of a channels-last image is contiguous, unless the part's rows follow each other.
        follows = self._place.whole[0] == self.size[0]
        return self._with(view, channels_last=self._place.channels_last and follows)

    def valued(self, run: tuple[Any, ...], table: Table | None, begun: Table) -> Undecoded | None:
        """Return it after transforms that look at one value at a time.

        Args:
            run: the transforms from the first, and ``table``: what they make.
            begun: what the first one makes.

        Returns:
            None where the transforms are to be called.
        """
        changes_order = table is None or table.channels_last != begun.channels_last
        if table is None or changes_order or min(self.size) == 1:  # with one row or column, strides are not an order
            return None
        if table.is_identity:
            return Undecoded(self._source, self._view, run, table, self._place)
        if not self._is_dense and any(getattr(one, "inplace", False) for one in run):
            return None
        place = Place(self.size, 0, 0, self._place.channels_last)
        return Undecoded(self._source, self._view, run, table, place)

    def real(self) -> Tensor:
        """Return the tensor: of the table's dtype and class."""
        (columns, rows), left, upper, channels_last = self._place
        levels = self.table.levels
        if channels_last:
            memory = torch.empty((rows, columns, 3), dtype=levels.dtype, device="cpu").permute(2, 0, 1)
        else:
            memory = torch.empty((3, rows, columns), dtype=levels.dtype, device="cpu")
        width, height = self.size
        made = memory if self._is_dense else memory[:, upper : upper + height, left : left + width]
        self._source.row(self._view.cut, None if self.table.is_identity else levels, made, thread.scope)
        return made if self.table.kind is Tensor else made.as_subclass(self.table.kind)


@functools.cache
def tensor_filters() -> frozenset[str]:
    """Return the filters with which the native library resizes as torchvision's v2 does tensors of uint8.

    Compared once, in about 2 ms: of photograph-like noise, made smaller and larger, in one direction and in both; the
    order in memory as well. Empty where v2 is not imported.
    """
    v2 = sys.modules.get("torchvision.transforms.v2.functional")
    if v2 is None:
        return frozenset()
    return frozenset(name for name in TENSOR_FILTERS if tried(lambda name=name: _is_torchs(name, v2)))  # type: ignore[misc]


def _is_torchs(name: str, v2: Any) -> bool:
    noise = np.random.Generator(np.random.PCG64(0)).integers(0, 256, (40, 46, 3), dtype=np.uint8)
    mode = sys.modules["torchvision.transforms.functional"].InterpolationMode(name.removeprefix("tensor "))
    image = torch.from_numpy(noise).permute(2, 0, 1)
    for part in (image, image[:, 2:33], image[:, :, 3:30], image[:, 5:31, 7:40], image.contiguous()):
        _, height, width = part.shape
        pixels = np.ascontiguousarray(part.permute(1, 2, 0).numpy())
        for rows, columns in ((17, 23), (60, 31), (height, 51), (9, width)):
            size = rows, columns
            made = v2.resize(part, list(size), interpolation=mode, antialias=True)
            cut = Cut((0, 0, height, width), size, name, (0, 0, *size), (False, False))
            follows = part.stride()[0] == 1 and width == 46
            if not torch.equal(made, row_of_image(pixels, cut)) or (made.stride()[0] == 1) != follows:
                return False
    return True
