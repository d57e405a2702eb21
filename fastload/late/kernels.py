"""Records what torchvision's version 2 does with a lazy tensor: crops, resizes and flips.

All other functions of images take the tensor that it makes. Importing this module registers
:class:`~fastload.late.deferred.DeferredTensor` by torchvision's own way to add a class, ``register_kernel``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional

from ..base.overrides import is_written_in
from .deferred import DeferredTensor, materialized
from .transform_lists import registry

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

_RESAMPLINGS: dict[Any, Image.Resampling] = {
    mode: one
    for one in (Image.Resampling.BILINEAR, Image.Resampling.BICUBIC)
    for mode in (InterpolationMode(one.name.lower()), one.name.lower(), int(one))
}
"""By the forms in which torchvision takes them."""

_torchvisions: dict[str, Any] = {
    function.__name__: function
    for function, kernels in registry().items()
    if tv_tensors.Image in kernels and is_written_in(function, "torchvision")
}
"""Torchvision's functions of images, by name: found where it keeps its kernels, also while a user's has their place."""
_recorded: set[str] = set()
"""Names of those that are recorded."""


def _records(name: str) -> Callable[[Kernel], Kernel]:
    """Register what records one of torchvision's functions. Where it gives None, the function takes the tensor."""
    function: Any = _torchvisions.get(name)

    def register(record: Kernel) -> Kernel:
        def kernel(image: DeferredTensor, *args: Any, **named: Any) -> Any:
            made = record(image, *args, **named)
            return function(image.materialize(), *args, **named) if made is None else made

        if function is not None:
            functional.register_kernel(function, DeferredTensor)(kernel)
        _recorded.add(name)
        return record

    return register


def _are_ints(*values: Any) -> bool:
    return all(type(value) is int for value in values)


@_records("get_size")
def _get_size(image: DeferredTensor) -> list[int]:
    return list(image.size[::-1])


@_records("crop")
def _crop(image: DeferredTensor, top: int, left: int, height: int, width: int) -> Any:
    return image.crop((left, top, left + width, top + height)) if _are_ints(top, left, height, width) else None


@_records("center_crop")
def _center_crop(image: DeferredTensor, output_size: Any) -> Any:
    if type(output_size) not in (list, tuple) or len(output_size) != 2 or not _are_ints(*output_size):
        return None
    (height, width), (columns, rows) = output_size, image.size
    left, top = round((columns - width) / 2.0), round((rows - height) / 2.0)
    return image.crop((left, top, left + width, top + height))


@_records("horizontal_flip")
def _horizontal_flip(image: DeferredTensor) -> Any:
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


@_records("vertical_flip")
def _vertical_flip(image: DeferredTensor) -> Any:
    return image.transpose(Image.Transpose.FLIP_TOP_BOTTOM)


@_records("resize")
def _resize(
    image: DeferredTensor,
    size: Any,
    interpolation: Any = InterpolationMode.BILINEAR,
    max_size: Any = None,
    antialias: Any = True,
) -> Any:
    is_known = type(interpolation) in (InterpolationMode, str, int) and interpolation in _RESAMPLINGS
    after = _size_after(image.size, size, max_size) if is_known and antialias is True else None
    return None if after is None else image.resize(after, _RESAMPLINGS[interpolation])


@_records("resized_crop")
def _resized_crop(
    image: DeferredTensor,
    top: int,
    left: int,
    height: int,
    width: int,
    size: Any,
    interpolation: Any = InterpolationMode.BILINEAR,
    antialias: Any = True,
) -> Any:
    cropped = _crop(image, top, left, height, width)
    return None if cropped is None else functional.resize(cropped, size, interpolation, antialias=antialias)


def _size_after(size: tuple[int, int], wanted: Any, max_size: Any) -> tuple[int, int] | None:
    """Return the (width, height) to which torchvision resizes an image; None for arguments that are not plain."""
    if type(wanted) not in (list, tuple) or not _are_ints(*wanted, 0 if max_size is None else max_size):
        return None
    if len(wanted) == 2 and max_size is None:
        return wanted[1], wanted[0]
    if len(wanted) != 1:
        return None
    try:
        # torchvision is asked: it resizes the boxes of an image, of which there are none, and returns the image's size.
        no_boxes = torch.empty((0, 4), device="cpu")
        _, (height, width) = functional.resize_bounding_boxes(no_boxes, size[::-1], list(wanted), max_size)
    except ValueError:  # the function raises it again, for the user
        return None
    return width, height


def _on_tensor(function: Any) -> Any:
    return lambda image, *args, **named: function(materialized(image), *args, **named)


for _name in _torchvisions.keys() - _recorded:
    functional.register_kernel(_torchvisions[_name], DeferredTensor)(_on_tensor(_torchvisions[_name]))
