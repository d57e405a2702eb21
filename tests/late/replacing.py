"""What a worker process replaces of other packages: done here, and put back."""

from __future__ import annotations

import sys
from typing import Any

from PIL import Image, ImageEnhance
from torch import nn
from torchvision import transforms as v1
from torchvision.transforms import _functional_pil, _functional_tensor, v2
from torchvision.transforms.v2 import functional
from torchvision.transforms.v2.functional import _utils

import fastload.late
from fastload.base import overrides
from fastload.late import containers, tensor_colors

REGISTRY: dict[Any, dict[type, Any]] = _utils._KERNEL_REGISTRY

_ENHANCERS = ImageEnhance.Brightness, ImageEnhance.Color, ImageEnhance.Contrast, ImageEnhance.Sharpness
_PLACES: list[tuple[Any, tuple[str, ...]]] = [
    *((kind, ("__init__",)) for kind in _ENHANCERS),
    (Image, ("blend",)),
    (_functional_pil, ("adjust_hue", "to_grayscale")),
    (_functional_tensor, tuple(name for name in tensor_colors.KNOWN if hasattr(_functional_tensor, name))),
    (v2.RandomIoUCrop, ("make_params",)),
    (v1.Compose, ("__call__",)),
    (v2.Compose, ("forward",)),
    (nn.Sequential, ("forward",)),
]
_BEFORE = [(owner, name, vars(owner).get(name)) for owner, names in _PLACES for name in names]
_FUNCTIONS = [getattr(functional, name) for name in tensor_colors.KNOWN]
_KERNELS = [(REGISTRY[function], dict(REGISTRY[function])) for function in _FUNCTIONS]


def put_back() -> None:
    """Put back what was replaced, and let it be replaced again."""
    overrides.undo()
    for one in containers.OVERRIDES:
        one.undo()
    assert not replaced()
    containers._known.in_worker_process = False
    containers._known.modules.clear()


def forget(monkeypatch: Any) -> None:
    """Let what is known of functions be found anew, as in a process that has made no sample."""
    monkeypatch.setattr(containers, "_known", containers._Known())
    monkeypatch.setattr(containers, "_tables", {})
    of_files = {key: agrees for key, agrees in overrides.results.items() if "fastload.native" in key[0]}
    monkeypatch.setattr(overrides, "results", of_files)
    for kernels in _utils._KERNEL_REGISTRY.values():
        monkeypatch.delitem(kernels, containers.DeferredTensor, raising=False)
    monkeypatch.delitem(sys.modules, "fastload.late.kernels", raising=False)
    monkeypatch.delattr(fastload.late, "kernels", raising=False)


def replaced() -> set[str]:
    """Return what is replaced now."""
    found = {f"{owner.__name__}.{name}" for owner, name, one in _BEFORE if vars(owner).get(name) is not one}
    for kernels, originals in _KERNELS:
        found |= {f"{one.__name__} of {kind.__name__}" for kind, one in originals.items() if kernels[kind] is not one}
    return found
