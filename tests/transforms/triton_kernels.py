"""The kernels of Triton on the CPU, run by its interpreter; chains to run them with, and what their results may be."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fastload.transforms import fused, proof
from fastload.transforms.crop import RandomCrop, RandomHorizontalFlip
from fastload.transforms.values import Normalize, ToDtype, ToNormalized

triton = pytest.importorskip("triton", reason="Triton is there on Linux only")
tl = pytest.importorskip("triton.language", reason="Triton is there on Linux only")
interpreter = pytest.importorskip("triton.runtime.interpreter", reason="Triton is there on Linux only")


def interpreted() -> ModuleType:
    """Return the kernels' module once more, for the interpreter: Triton decides when a kernel is defined."""
    if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 4):
        pytest.skip("Triton's interpreter takes no tuples before 3.4")
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


def converted(numbers: Any, source: Any, target: Any, rounding: Any) -> Any:
    """Return bfloat16's bits as float32, or float32 rounded to them. Triton's interpreter would cut off."""
    if str(source) == "bf16":
        return (numbers.astype(np.uint32) << 16).view(np.float32)
    assert (str(source), str(target)) == ("fp32", "bf16")
    return torch.from_numpy(numbers).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)


_patch_tensor = interpreter._patch_lang_tensor


def patched(tensor: Any, *scope: Any) -> None:
    """Make the interpreter's scalars integers where they are asked for: Triton 3.6 and NumPy 2.5 do not get along."""
    _patch_tensor(tensor, *scope)
    tensor.__index__ = lambda self: int(self.handle.data.item())


class _Counted:
    """The kernel, whose launches a list counts."""

    def __init__(self, launches: list[None]) -> None:
        self._launches = launches

    def __getitem__(self, grid: Any) -> Any:
        self._launches.append(None)
        return interpreted().transformed[grid]


def launched(device: Any, kind: Any, launch: Any, by_torch: Any, difference: Any) -> Any:
    """Return the kernel's result in any case, for tests of the kernel itself: see ``fastload.transforms.proof``."""
    return launch()


def allow(monkeypatch: Any) -> list[None]:
    """Have the kernel take images of the CPU; return a list that grows with its launches."""
    launches: list[None] = []
    stands = SimpleNamespace(TYPES=interpreted().TYPES, transformed=_Counted(launches))
    monkeypatch.setattr(fused, "_kernel", lambda: stands)
    monkeypatch.setattr(proof, "served", launched)
    monkeypatch.setattr(interpreter, "_convert_float", converted)
    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)
    monkeypatch.setattr(fused, "available", lambda device: True)
    return launches


MEAN, STD = (0.485, -0.456, 0.406, 0.1), (0.229, 0.224, 0.225, 1.5)
VALUES = {
    "nothing": lambda channels, dtype: [],
    "to": lambda channels, dtype: [ToDtype(dtype)],
    "scaled": lambda channels, dtype: [ToDtype(dtype, scale=True)],
    "normalized": lambda channels, dtype: [ToDtype(dtype, scale=True), Normalize(MEAN[:channels], STD[:channels])],
    "alike": lambda channels, dtype: [ToDtype(dtype, scale=True), Normalize([0.4], [0.3])],
    "together": lambda channels, dtype: [ToNormalized(MEAN[:channels], STD[:channels], dtype)],
    "floats": lambda channels, dtype: [Normalize(MEAN[:channels], STD[:channels])],
}


def check_close(found, expected, source, values):
    """Normalised uint8, and what ToNormalized makes, as its docstring says; all else bit for bit.

    Triton multiplies and adds in one step, with one rounding; so does its interpreter, from 3.8 on.
    """
    in_one_step = source == torch.uint8 or values == "together"
    if not in_one_step or expected.dtype == torch.uint8 or torch.equal(found, expected):
        assert torch.equal(found, expected)
        return
    limit = torch.finfo(torch.float32).eps * expected.abs().max().item()  # of the last rounding
    limit += max(1e-6 * (1 + abs(mean)) / std for mean, std in zip(MEAN, STD, strict=True))
    if expected.dtype != torch.float32:
        limit += torch.finfo(expected.dtype).eps * expected.abs().max().item()
    assert (found.double() - expected.double()).abs().max() <= limit


CHAIN = [RandomCrop(8, 2, fill=(1, 2, 3)), RandomHorizontalFlip(), ToDtype(torch.bfloat16, scale=True)]
CHAIN += [Normalize(MEAN[:3], STD[:3])]
