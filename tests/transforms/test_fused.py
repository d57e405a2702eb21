"""The kernel, run by Triton's interpreter on the CPU, gives what torch's operations give; and it compiles for GPUs."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from geometry_references import MEMORY, batches, keyed, made_images
from hypothesis import given, settings
from hypothesis import strategies as st

from fastload.transforms import fused, gather
from fastload.transforms.base import DTYPES
from fastload.transforms.compose import Compose
from fastload.transforms.crop import CenterCrop, RandomCrop, RandomHorizontalFlip, RandomVerticalFlip
from fastload.transforms.gather import IndexMap
from fastload.transforms.recipe import Arithmetic, Kind, Operation, Step
from fastload.transforms.resize import RandomResizedCrop, Resize
from fastload.transforms.values import Normalize, ToDtype, ToNormalized

pytest.importorskip("triton", reason="Triton is there on Linux only")

COMPUTED = (torch.uint8, torch.float16, torch.bfloat16, torch.float32)


def interpreted() -> ModuleType:
    """Return the kernel's module once more, for the interpreter: Triton decides when the kernel is defined."""
    name = "fastload.transforms.fused_kernel_interpreted"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(fused.__file__).with_name("fused_kernel.py"))
        module = importlib.util.module_from_spec(spec)
        os.environ["TRITON_INTERPRET"] = "1"
        try:
            spec.loader.exec_module(module)
        finally:
            del os.environ["TRITON_INTERPRET"]
        sys.modules[name] = module
    return sys.modules[name]


@pytest.fixture
def on_cpu(monkeypatch):
    """Have the kernel take images of the CPU, and count its launches."""
    return allow(monkeypatch)


def allow(monkeypatch: Any) -> list[Any]:
    launches: list[Any] = []
    module = interpreted()

    def kernels() -> Any:
        launches.append(None)
        return module

    monkeypatch.setattr(fused, "_kernels", kernels)
    monkeypatch.setattr(fused, "available", lambda device: True)
    return launches


def test_one(on_cpu):
    images = made_images(0, (4, 3, 12, 10))
    composed = Compose([RandomCrop(8, 2, fill=(1, 2, 3)), RandomHorizontalFlip(), ToNormalized((0.4, 0.5, 0.6), (0.2, 0.25, 0.3))])
    found, params = composed(images, draws=keyed(4), return_params=True)
    assert len(on_cpu) == 1
    expected = images
    for m, p in zip(composed.transforms, params.values()):
        expected = m(expected, params=p)
    print((found - expected).abs().max())
