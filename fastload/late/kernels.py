"""Records what torchvision's version 2 does with a lazy tensor: crops, resizes and flips.

All other functions of images take the tensor that it makes. Importing this module registers
:class:`~fastload.late.deferred.DeferredTensor` by torchvision's own way to add a class, ``register_kernel``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional

from ..base.overrides import is_written_in
from .deferred import DeferredTensor
from .transform_lists import registry


def _takes_words() -> bool:
    try:  # the kernel: who has replaced the public function is not to be called
        functional.resize_image(torch.empty((1, 2, 2), device="cpu"), [1], "bilinear")
    except Exception:  # torchvision 0.26 and earlier
        return False
    return True


_RESAMPLINGS: dict[Any, Image.Resampling] = {
    mode: one
    for one in (Image.Resampling.BILINEAR, Image.Resampling.BICUBIC)
    for mode in (InterpolationMode(one.name.lower()), *([one.name.lower()] if _takes_words() else []), int(one))
}
"""Values, by the forms in which torchvision takes them."""


def _are_ints(*values: Any) -> bool:
    return all(type(value) is int for value in values)


def _crop(image: DeferredTensor, top: int, left: int, height: int, width: int) -> Any:
    return image.crop((left, top, left + width, top + height)) if _are_ints(top, left, height, width) else None


def _center_crop(image: DeferredTensor, output_size: Any) -> Any:
    if type(output_size) not in (list, tuple) or len(output_size) != 2 or not _are_ints(*output_size):
        return None
    (height, width), (columns, rows) = output_size, image.size
    left, top = round((columns - width) / 2.0), round((rows - height) / 2.0)
    return image.crop((left, top, left + width, top + height))


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


_RECORDS: dict[str, Callable[..., Any]] = {
    "get_size": lambda image: list(image.size[::-1]),
    "crop": _crop,
    "center_crop": _center_crop,
    "horizontal_flip": lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    "vertical_flip": lambda image: image.transpose(Image.Transpose.FLIP_TOP_BOTTOM),
    "resize": _resize,
    "resized_crop": _resized_crop,
}
"""Implementations for lazy tensors, by a function's name; None: the function takes the tensor itself."""


def _kernel(function: Any, record: Callable[..., Any] | None) -> Callable[..., Any]:
    def kernel(image: DeferredTensor, *args: Any, **named: Any) -> Any:
        made = None if record is None else record(image, *args, **named)
        return function(image.materialize(), *args, **named) if made is None else made

    return kernel


# Functions are found where torchvision keeps its kernels, also while a user's has their place.
for _function, _kernels in [*registry().items()]:
    if tv_tensors.Image in _kernels and is_written_in(_function, "torchvision"):
        functional.register_kernel(_function, DeferredTensor)(_kernel(_function, _RECORDS.get(_function.__name__)))
