"""Whether torchvision and Pillow are as they were written: fused steps stand in for their functions.

In: their modules, as they are now. Out: which function, method or hook makes them do something else, if any. No module
is imported, nothing is called.
"""

from __future__ import annotations

import operator
import sys
import types
from collections.abc import Mapping
from typing import Any

import torch
from PIL import Image, ImageFile, JpegImagePlugin

from ..late.origin import is_written_in

_MODULES = ("torchvision.transforms", "torchvision.datasets.folder")
"""With the modules inside of them."""
_PILLOW = ("PIL.Image", "PIL.ImageEnhance", "PIL.ImageFile", "PIL.ImageFilter", "PIL.ImageOps", "PIL.ImageStat")
_CLASSES = (Image.Image, ImageFile.ImageFile, JpegImagePlugin.JpegImageFile)
_PACKAGES = ("torch", "torchvision", "PIL", "typing", "fastload")  # ours: late decoding

_originals: dict[str, list[Any]] = {}
"""The contents of each place when all in it was original."""


def replaced() -> str | None:
    """Return what makes torchvision or Pillow do something else than they say; None if nothing does.

    Cost: 2 ms the first time, 0.2 ms while nothing has changed.
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
    """Return the modules and classes whose functions count, by their names."""
    modules = [(name, module) for name, module in list(sys.modules.items()) if name.startswith(_MODULES)]
    modules += [(name, sys.modules[name]) for name in _PILLOW if name in sys.modules]
    owners: list[tuple[str, Any]] = [(name, module) for name, module in modules if isinstance(module, types.ModuleType)]
    owners += [(f"{kind.__module__}.{kind.__qualname__}", kind) for kind in _CLASSES]
    return [(name, vars(owner)) for name, owner in owners]


def _is_original(function: Any) -> bool:
    if isinstance(function, types.BuiltinFunctionType):  # it has no namespace
        return str(function.__module__).split(".")[0] in _PACKAGES
    return is_written_in(function, *_PACKAGES)


__all__ = ["replaced"]
