"""Tensors that are not decoded yet, which torchvision's version 2 crops, resizes and flips as its own.

In: what a :class:`~torchvision.transforms.v2.Transform` does with an image of its own class, beside boxes and masks.
Out: the same, recorded (:class:`~fastload.late.undecoded.Undecoded`); whatever else is done with the tensor, is done
with the real one. Uses torchvision's own way of adding a class of tensors: ``register_kernel``.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from PIL import Image
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional

from .undecoded import Undecoded

Record = TypeVar("Record", bound=Callable[..., Any])

_RESAMPLINGS: dict[Any, Image.Resampling] = {
    form: resampling
    for resampling in (Image.Resampling.BILINEAR, Image.Resampling.BICUBIC)
    for form in (InterpolationMode(resampling.name.lower()), resampling.name.lower(), int(resampling))
}
"""By the forms in which torchvision takes them."""


class LateTensor(tv_tensors.Image):  # type: ignore[misc]  # torchvision has no types
    """An image that is not decoded yet, and has no memory. Only torchvision's transforms see it."""

    undecoded: Undecoded
    _made: Tensor | None

    @staticmethod
    def of(undecoded: Undecoded) -> LateTensor:
        """Return the tensor of what is not decoded."""
        width, height = undecoded.size
        made: Any = Tensor._make_wrapper_subclass(LateTensor, (3, height, width), dtype=undecoded.table.levels.dtype)
        made.undecoded = undecoded
        made._made = None
        return made  # type: ignore[no-any-return]

    @property
    def is_late(self) -> bool:
        """Whether nothing was done with it but what is recorded."""
        return self._made is None

    def real(self) -> Tensor:
        """Return the tensor."""
        if self._made is None:
            self._made = self.undecoded.real()
        return self._made

    @classmethod
    def __torch_function__(cls, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do with the real tensor what torch is called for."""
        return func(*map(real, args), **{name: real(value) for name, value in (kwargs or {}).items()})

    # What torch does not ask the above for, as_subclass and as_tensor among it.
    __torch_dispatch__ = __torch_function__


def real(found: Any) -> Any:
    """Return what was found, with real tensors in place of late ones; lists and tuples of them too."""
    if isinstance(found, LateTensor):
        return found.real()
    if isinstance(found, (list, tuple)) and any(isinstance(one, LateTensor) for one in found):
        return type(found)(map(real, found))
    return found


def _add_kernel(function: Any, kernel: Any) -> None:
    functional.register_kernel(function, LateTensor)(kernel)


def _recorded(name: str) -> Callable[[Record], Record]:
    """Register a kernel for one of torchvision's functions; where it gives None, the real tensor is used."""
    function = getattr(functional, name)

    def register(record: Record) -> Record:
        def kernel(image: LateTensor, *args: Any, **named: Any) -> Any:
            made = record(image.undecoded, *args, **named) if image.is_late else None
            if made is None:
                return function(image.real(), *args, **named)
            return LateTensor.of(made) if type(made) is Undecoded else made

        _add_kernel(function, kernel)
        return record

    return register


@_recorded("crop")
def _crop(image: Undecoded, top: int, left: int, height: int, width: int) -> Any:
    return image.crop((left, top, left + width, top + height))


@_recorded("center_crop")
def _center_crop(image: Undecoded, output_size: Any) -> Any:
    if not isinstance(output_size, (list, tuple)) or len(output_size) != 2:
        return None
    (height, width), (columns, rows) = output_size, image.size
    left, top = round((columns - width) / 2.0), round((rows - height) / 2.0)
    return image.crop((left, top, left + width, top + height))


@_recorded("horizontal_flip")
def _horizontal_flip(image: Undecoded) -> Any:
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


@_recorded("vertical_flip")
def _vertical_flip(image: Undecoded) -> Any:
    return image.transpose(Image.Transpose.FLIP_TOP_BOTTOM)


@_recorded("resize")
def _resize(
    image: Undecoded, size: Any, interpolation: Any = "bilinear", max_size: Any = None, antialias: Any = True
) -> Any:
    resampling = _RESAMPLINGS.get(interpolation)
    if resampling is None or antialias is not True:
        return functional.resize(image.real(), size, interpolation, max_size, antialias)
    try:
        rows, columns = _size_after(image.size, tuple(size) if isinstance(size, list) else size, max_size)
    except (TypeError, ValueError):  # the function raises it again, for the user
        return None
    image.functional = functional
    return image.resize((columns, rows), resampling)


@_recorded("resized_crop")
def _resized_crop(
    image: Undecoded,
    top: int,
    left: int,
    height: int,
    width: int,
    size: Any,
    interpolation: Any = "bilinear",
    antialias: Any = True,
) -> Any:
    cropped = _crop(image, top, left, height, width)
    return None if cropped is None else _resize(cropped, size, interpolation, antialias=antialias)


@functools.lru_cache(1024)
def _size_after(size: tuple[int, int], wanted: Any, max_size: Any) -> tuple[int, int]:
    """Return the height and width that a resize gives an image of this width and height."""
    wanted = list(wanted) if isinstance(wanted, tuple) else wanted
    none = torch.empty((0, 4), device="cpu")
    _, canvas = functional.resize_bounding_boxes(none, size[::-1], wanted, max_size)
    return canvas[0], canvas[1]


def _add_kernels_of_the_others() -> None:
    """For all other functions of images: what they make of the real tensor, and the sizes."""

    def of_real(function: Any) -> Any:
        return lambda image, *args, **named: function(image.real(), *args, **named)

    sizes = {
        "get_size": lambda image: list(image.shape[-2:]),
        "get_dimensions": lambda image: list(image.shape),
        "get_num_channels": lambda image: 3,
    }
    recorded = {"crop", "center_crop", "horizontal_flip", "vertical_flip", "resize", "resized_crop"}
    for name, function in vars(functional).items():
        if isinstance(function, types.FunctionType) and name not in recorded:
            with contextlib.suppress(ValueError):  # it is one of another module
                _add_kernel(function, sizes.get(name) or of_real(function))


_add_kernels_of_the_others()
