"""The class of tensors by which torchvision's version 2 crops, resizes and flips images that are not decoded yet.

They are recorded (:class:`~fastload.late.undecoded.Undecoded`); everything else is done with the decoded tensor.
Importing this module registers the class by torchvision's own way to add one, ``register_kernel``.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

import torch
from PIL import Image
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional
from torchvision.transforms.v2.functional import _utils

from .originals import is_written_in
from .undecoded import Undecoded, takes_names

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

_RESAMPLINGS: dict[Any, Image.Resampling] = {
    form: resampling
    for resampling in (Image.Resampling.BILINEAR, Image.Resampling.BICUBIC)
    for form in (
        InterpolationMode(resampling.name.lower()),
        int(resampling),
        *[resampling.name.lower()] * takes_names(),
    )
}
"""By the forms in which torchvision takes them."""


class LateTensor(tv_tensors.Image):  # type: ignore[misc]  # torchvision has no types
    """An image that is not decoded yet, and has no memory. Only torchvision's transforms see it."""

    undecoded: Undecoded

    @staticmethod
    def of(undecoded: Undecoded) -> LateTensor:
        """Return the tensor of what is not decoded."""
        width, height = undecoded.size
        made: Any = Tensor._make_wrapper_subclass(LateTensor, (3, height, width), dtype=undecoded.table.levels.dtype)
        made.undecoded = undecoded
        return made  # type: ignore[no-any-return]

    @classmethod
    def __torch_function__(cls, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do with the decoded tensor what torch is called for."""
        return func(*map(decoded, args), **{name: decoded(value) for name, value in (kwargs or {}).items()})

    # Of what torch does not ask the above for: as_subclass, as_tensor.
    __torch_dispatch__ = __torch_function__


def decoded(found: Any) -> Any:
    """Return what was found, with decoded tensors in place of late ones; lists and tuples of them too."""
    if isinstance(found, LateTensor):
        return found.undecoded.tensor()
    if isinstance(found, (list, tuple)) and any(isinstance(one, LateTensor) for one in found):
        return type(found)(map(decoded, found))
    return found


# As long as a user's function stands in its place, one is found where torchvision keeps its kernels.
_torchvisions: dict[str, Any] = {
    function.__name__: function
    for function in (*getattr(_utils, "_KERNEL_REGISTRY", ()), *vars(functional).values())
    if isinstance(function, FunctionType) and is_written_in(function, "torchvision")
}
"""Torchvision's own functions, by name."""


_recorded: set[str] = set()
"""Names of torchvision's functions that are recorded."""


def _records(name: str) -> Callable[[Kernel], Kernel]:
    """Register what records one of torchvision's functions. Where it gives None, the function takes the tensor."""
    function: Any = _torchvisions.get(name)

    def register(record: Kernel) -> Kernel:
        def kernel(image: LateTensor, *args: Any, **named: Any) -> Any:
            made = record(image.undecoded, *args, **named)
            if made is None:
                return function(decoded(image), *args, **named)
            return LateTensor.of(made) if type(made) is Undecoded else made

        if function is not None:
            functional.register_kernel(function, LateTensor)(kernel)
        _recorded.add(name)
        return record

    return register


def _are_ints(*values: Any) -> bool:
    return all(type(value) is int for value in values)


@_records("crop")
def _crop(image: Undecoded, top: int, left: int, height: int, width: int) -> Any:
    return image.crop((left, top, left + width, top + height)) if _are_ints(top, left, height, width) else None


@_records("center_crop")
def _center_crop(image: Undecoded, output_size: Any) -> Any:
    if type(output_size) not in (list, tuple) or len(output_size) != 2 or not _are_ints(*output_size):
        return None
    (height, width), (columns, rows) = output_size, image.size
    left, top = round((columns - width) / 2.0), round((rows - height) / 2.0)
    return image.crop((left, top, left + width, top + height))


@_records("horizontal_flip")
def _horizontal_flip(image: Undecoded) -> Any:
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


@_records("vertical_flip")
def _vertical_flip(image: Undecoded) -> Any:
    return image.transpose(Image.Transpose.FLIP_TOP_BOTTOM)


@_records("resize")
def _resize(
    image: Undecoded, size: Any, interpolation: Any = "bilinear", max_size: Any = None, antialias: Any = True
) -> Any:
    is_known = type(interpolation) in (InterpolationMode, str, int) and interpolation in _RESAMPLINGS
    after = _size_after(image.size, size, max_size) if is_known and antialias is True else None
    return None if after is None else image.resize(after, _RESAMPLINGS[interpolation])


@_records("resized_crop")
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
    if cropped is None:
        return None
    resized = _resize(cropped, size, interpolation, antialias=antialias)
    return functional.resize(cropped.tensor(), size, interpolation, antialias=antialias) if resized is None else resized


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


def _kernel_of(name: str, function: Any) -> Any:
    if name == "get_size":
        return lambda image: list(image.undecoded.size[::-1])
    return lambda image, *args, **named: function(decoded(image), *args, **named)


for _name, _function in _torchvisions.items():
    # The other functions that take images.
    if f"{_name}_image" in vars(functional) and _name not in _recorded:
        functional.register_kernel(_function, LateTensor)(_kernel_of(_name, _function))
