"""Whether what a plan was made from is unchanged: torchvision, Pillow, and a dataset's own objects.

Of a dataset, its parts and its known transforms: whether an attribute is another object, and whether a list or dict
among them has other items. Changes inside an array or tensor are not seen. Nothing is called.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Iterable
from typing import Any

from PIL import Image, ImageFile, JpegImagePlugin
from torch import nn
from torch.utils.data import ConcatDataset, Subset

from ..base.overrides import is_written_in
from ..late.originals import Originals
from .recognition import is_looked_into

_OF_A_DATASET = (
    *("transform", "target_transform", "loader", "samples", "data"),
    *("dataset", "indices", "datasets", "cumulative_sizes"),
)
_UNUSED = vars(nn.Module()).keys() - {"_modules", "_forward_hooks", "_forward_pre_hooks"}
"""Attributes of all modules, which do not change what a known transform does."""

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


@functools.cache
def _originals() -> Originals:
    """Return the functions that fused steps stand in for."""
    originals = Originals(*_PACKAGES)
    names = [name for name in sys.modules if name.startswith(_MODULES) and name != _PACKAGE]
    for module in [sys.modules[name] for name in (*names, *_PILLOW) if name in sys.modules]:
        items = vars(module).items()
        originals.add(module, [name for name, value in items if callable(value) and not isinstance(value, type)])
    for kind, methods in _METHODS.items():
        originals.add(kind, methods.split())
    return originals


def replaced() -> str | None:
    """Return what makes torchvision or Pillow do something else than they say; None if nothing does."""
    name = _originals().replaced()
    if name is not None:
        return f"{name} was replaced"
    opener = Image.OPEN.get("JPEG")
    if opener is not None and not is_written_in(opener[0], *_PACKAGES):
        return "Pillow's opener of JPEG files was replaced"
    hooks = nn.modules.module
    if hooks._global_forward_hooks or hooks._global_forward_pre_hooks:
        return "all modules have hooks (torch.nn.modules.module)"
    return None


class Objects:
    """A dataset's own objects, as they are now."""

    def __init__(self, dataset: Any) -> None:
        self._datasets: list[dict[str, Any]] = []
        self._live: list[Iterable[Any]] = []
        self._add_dataset(dataset)
        self._before = self._values()

    def are_the_same(self) -> bool:
        """Return whether they still are the same objects."""
        now = self._values()
        return len(now) == len(self._before) and all(map(operator.is_, now, self._before))

    def _values(self) -> list[Any]:
        values = [own.get(name) for own in self._datasets for name in _OF_A_DATASET]
        for live in self._live:
            values.extend(live)  # in one step of C, since another thread may add to a dict
        return values

    def _add_dataset(self, dataset: Any) -> None:
        own = getattr(dataset, "__dict__", {})
        self._datasets.append(own)
        if isinstance(dataset, Subset):
            self._add_dataset(own.get("dataset"))
        elif isinstance(dataset, ConcatDataset):
            parts = own.get("datasets")
            if isinstance(parts, list):
                self._live.append(parts)
                for part in parts:
                    self._add_dataset(part)
        else:
            self._add(own.get("transform"))

    def _add(self, thing: Any) -> None:
        """Add a transform, or what one holds."""
        items: Iterable[Any]
        if isinstance(thing, list):
            self._live.append(thing)
            items = thing
        elif isinstance(thing, dict):
            self._live.append(thing.values())
            items = thing.values()
        elif is_looked_into(thing):
            own = vars(thing)
            self._live.append(own.values())
            items = [value for name, value in own.items() if name not in _UNUSED]
        else:
            return
        for item in items:
            self._add(item)
