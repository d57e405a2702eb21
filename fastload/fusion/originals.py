"""Whether torchvision and Pillow are as they were written: fused steps stand in for their functions.

In: their modules, as they are now. Out: the function, method or hook that changes what they do, if any. Nothing is
called. Methods that were added to Pillow's classes do not count.
"""

from __future__ import annotations

import functools
import operator
import sys
import types
from collections.abc import Mapping
from typing import Any

import torch
from PIL import Image, ImageFile, JpegImagePlugin

from ..late.originals import is_written_in

_MODULES = ("torchvision.transforms.", "torchvision.datasets.folder")
_PACKAGE = "torchvision.transforms.v2"  # it only names what is in its modules
_PILLOW = ("PIL.Image", "PIL.ImageEnhance", "PIL.ImageFile", "PIL.ImageFilter", "PIL.ImageOps", "PIL.ImageStat")
_IMAGE = (
    "__array_interface__ __init__ _new convert copy crop filter getbands getdata height histogram load mode paste "
    "point quantize reduce resize rotate size split tobytes transform transpose width"
)
_METHODS: dict[type, str] = {
    Image.Image: _IMAGE,
    ImageFile.ImageFile: "__init__ load load_end load_prepare",
    JpegImagePlugin.JpegImageFile: "__init__ _open draft load load_end load_prepare load_read",
}
_PACKAGES = ("torch", "torchvision", "PIL", "typing", "fastload")  # ours: late decoding

_originals: dict[str, list[Any]] = {}
"""The contents of each place when all in it was original."""


def replaced() -> str | None:
    """Return what makes torchvision or Pillow do something else than they say; None if nothing does.

    Cost: 2 ms the first time, 0.1 ms while nothing has changed.
    """
    for place, space in _places():
        values, known = list(space.values()), _originals.get(place, [])
        if len(values) == len(known) and all(map(operator.is_, values, known)):
            continue
        for name, value in list(space.items()):
            function = value.fget if isinstance(value, property) else value
            if callable(function) and not isinstance(function, type) and not _is_original(function):
                return f"{place}.{name} was replaced"
        _originals[place] = values
    opener = Image.OPEN.get("JPEG")
    if opener is not None and not _is_original(opener[0]):
        return "Pillow's opener of JPEG files was replaced"
    hooks = torch.nn.modules.module
    if hooks._global_forward_hooks or hooks._global_forward_pre_hooks:
        return "all modules have hooks (torch.nn.modules.module)"
    return None


def _places() -> list[tuple[str, Mapping[str, Any]]]:
    """Return the modules and classes whose functions count, and what is in them, by their names."""
    places: list[tuple[str, Mapping[str, Any]]] = [(module.__name__, vars(module)) for module in _modules()]
    for kind, names in _METHODS.items():
        methods = {name: getattr(kind, name, None) for name in names.split()}
        places.append((f"{kind.__module__}.{kind.__qualname__}", methods))
    return places


@functools.cache
def _modules() -> list[types.ModuleType]:
    names = [name for name in list(sys.modules) if name.startswith(_MODULES) and name != _PACKAGE]
    found = [sys.modules.get(name) for name in (*names, *_PILLOW)]
    return [module for module in found if isinstance(module, types.ModuleType)]


def _is_original(function: Any) -> bool:
    if isinstance(function, types.BuiltinFunctionType):  # it has no namespace
        return str(function.__module__).split(".")[0] in _PACKAGES
    return is_written_in(function, *_PACKAGES)


__all__ = ["replaced"]
