"""torchvision's containers of transforms: conversion, scaling and ``Normalize`` in the pass that decodes.

In: the transforms of a ``Compose`` or ``nn.Sequential``, and a late image. Out: what calling one transform after the
other returns, bit for bit, with the same strides and type. Transforms up to ``ToTensor`` (``ToImage``, ...) are called
as ever. Those behind it that look at one value at a time become a table of 256 levels for each channel, which the
transforms themselves make once, of an image that has all levels.

``__call__`` of v1's ``Compose`` and ``forward`` of v2's are replaced, and pass every call outside of samples on.
``forward`` of ``nn.Sequential`` is replaced in worker processes alone: models are made of it.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from ..native.rows import DTYPES
from .image import is_late, tensor_of
from .scope import thread

# All levels in all channels.
_LEVELS = np.repeat(np.arange(256, dtype=np.uint8).reshape(16, 16, 1), 3, axis=2)


class _Table(NamedTuple):
    """What a run of transforms makes of a PIL image in RGB."""

    levels: Tensor
    """[3, 256]: what becomes of each level of each channel."""
    channels_last: bool
    """The result's order in memory."""
    kind: type[Tensor]
    """``Tensor``, or a subclass of torchvision's."""


def prepare(in_worker_process: bool) -> None:
    """Replace the methods of the containers that are imported, unless somebody else has."""
    for module, name, method in _CONTAINERS:
        owner = getattr(sys.modules.get(module), name, None)
        if owner is None or (owner is nn.Sequential and not in_worker_process):
            continue
        known = getattr(owner, method)
        if not hasattr(known, "runs_late") and _is_own(known, module):
            setattr(owner, method, _around(known))


_CONTAINERS = (
    ("torchvision.transforms.transforms", "Compose", "__call__"),
    ("torchvision.transforms.v2._container", "Compose", "forward"),
    ("torch.nn.modules.container", "Sequential", "forward"),
)


def _is_own(function: Any, module: str) -> bool:
    """Whether a function was written in a module; a wrapper in its place was not, whatever it says of itself."""
    code = getattr(function, "__code__", None)
    return code is not None and code.co_filename == getattr(sys.modules[module], "__file__", None)


def _around(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def run(self: Any, *inputs: Any) -> Any:
        if thread.scope is None or len(inputs) != 1:
            return method(self, *inputs)
        transforms = self if isinstance(self, nn.Sequential) else self.transforms
        return _run(list(transforms), inputs[0])

    run.runs_late = True  # type: ignore[attr-defined]
    return run


def _run(transforms: Sequence[Any], image: Any) -> Any:
    """Return what the transforms make of an image, as their container calls them."""
    place = 0
    while place < len(transforms):
        run = _known_from(transforms, place) if is_late(image) else []
        table = _table_of(run) if run else None
        made = None if table is None else tensor_of(image, table.levels, table.channels_last)
        if table is None or made is None:
            image = transforms[place](image)
            place += 1
        else:
            image = made if table.kind is Tensor else made.as_subclass(table.kind)
            place += len(run)
    return image


def _known_from(transforms: Sequence[Any], place: int) -> list[Any]:
    """Return the transforms from a place on that are known to look at one value at a time; the first makes a tensor."""
    known = _known_classes()
    if type(transforms[place]) not in known or type(transforms[place]).__name__ not in _FIRST or _is_patched():
        return []
    members = itertools.takewhile(lambda one: type(one) in known, transforms[place + 1 :])
    later = itertools.takewhile(lambda one: type(one).__name__ not in _FIRST, members)
    return [transforms[place], *later]


def _table_of(run: Sequence[Any]) -> _Table | None:
    """Return what a run of transforms makes of each level; None if one of them was changed, or has odd arguments."""
    signature = tuple(map(_signature, run))
    if None in signature:
        return None
    key = (torch.get_default_dtype(), *signature)
    if key not in _tables:
        if len(_tables) >= _MOST_TABLES:
            _tables.clear()
        _tables[key] = _made_table(run)
    return _tables[key]


_tables: dict[tuple[Any, ...], _Table | None] = {}
_MOST_TABLES = 64


def _made_table(run: Sequence[Any]) -> _Table | None:
    scope, thread.scope = thread.scope, None
    try:
        made: Any = Image.fromarray(_LEVELS)
        for transform in run:
            made = transform(made)
    except Exception:  # the user's own call raises the same, at its place
        return None
    finally:
        thread.scope = scope
    if tuple(made.shape) != (3, 16, 16) or made.dtype not in DTYPES:
        return None
    channels_last = made.stride() == (1, 48, 3)
    if not channels_last and not made.is_contiguous():
        return None
    levels = made.as_subclass(Tensor).reshape(3, 256).contiguous()
    return _Table(levels, channels_last, type(made))


def _signature(transform: Any) -> tuple[Any, ...] | None:
    """Return a transform's class and arguments; None if it was changed, or an argument is of an unusual type."""
    own = vars(transform)
    if "__call__" in own or "forward" in own or own.get("_forward_hooks") or own.get("_forward_pre_hooks"):
        return None
    arguments: list[Any] = [type(transform)]
    for name in _known_classes()[type(transform)]:
        value = own.get(name)
        if isinstance(value, Tensor):
            value = value.dtype, *value.tolist()
        elif isinstance(value, list):
            value = tuple(value)
        if not isinstance(value, (bool, torch.dtype, tuple)):
            return None
        arguments.append(value)
    return tuple(arguments)


_FIRST = ("ToTensor", "PILToTensor", "ToImage", "MaybeToTensor", "MaybePILToTensor")
"""Names of the classes that make a tensor of a PIL image."""

_V1 = "torchvision.transforms.transforms"
_CLASSES: dict[str, dict[str, tuple[str, ...]]] = {
    _V1: {"ToTensor": (), "PILToTensor": (), "ConvertImageDtype": ("dtype",), "Normalize": ("mean", "std", "inplace")},
    "torchvision.transforms.v2": {
        "PILToTensor": (),
        "ToImage": (),
        "ToDtype": ("dtype", "scale"),
        "ConvertImageDtype": ("dtype",),
        "ToPureTensor": (),
        "Normalize": ("mean", "std", "inplace"),
    },
    "timm.data.transforms": {"MaybeToTensor": (), "MaybePILToTensor": ()},
}
"""The transforms that look at one value at a time, by module, and the attributes that hold their arguments."""

_FUNCTIONS = {
    "torchvision.transforms.functional": ("to_tensor", "pil_to_tensor", "convert_image_dtype", "normalize"),
    "torchvision.transforms._functional_tensor": ("convert_image_dtype", "normalize"),
    "torchvision.transforms.v2.functional": ("pil_to_tensor", "to_image", "to_dtype", "normalize"),
}
"""What they call. Where one of these was replaced, they are called one by one."""


def _known_classes() -> dict[type, tuple[str, ...]]:
    """Return the known classes, as far as their modules are imported, with the names of their arguments."""
    return _classes_in(tuple(name for name in _CLASSES if name in sys.modules))


@functools.cache
def _classes_in(modules: tuple[str, ...]) -> dict[type, tuple[str, ...]]:
    return {
        getattr(sys.modules[module], name): arguments
        for module in modules
        for name, arguments in _CLASSES[module].items()
    }


def _is_patched() -> bool:
    """Whether somebody has replaced what the known classes run, or hears all modules."""
    hooks = nn.modules.module
    if hooks._global_forward_hooks or hooks._global_forward_pre_hooks:
        return True
    known = _functions_in(tuple(name for name in (*_FUNCTIONS, *_CLASSES) if name in sys.modules))
    return any(getattr(owner, name, None) is not function for owner, name, function in known)


@functools.cache
def _functions_in(modules: tuple[str, ...]) -> list[tuple[Any, str, Any]]:
    """Return what is looked at, with what it is when first seen."""
    functions = [(sys.modules[module], name) for module in modules for name in _FUNCTIONS.get(module, ())]
    classes = [getattr(sys.modules[module], name) for module in modules for name in _CLASSES.get(module, ())]
    methods = [(kind, name) for kind in classes for name in ("__call__", "forward", "transform")]
    return [(owner, name, getattr(owner, name, None)) for owner, name in [*functions, *methods]]


__all__ = ["prepare"]
