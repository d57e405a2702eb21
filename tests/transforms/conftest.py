"""Triton's kernels on the CPU: run by its interpreter, or compiled for GPUs that are not there."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest


@pytest.fixture
def on_cpu(monkeypatch):
    """Have the kernels take images of the CPU, and count their launches."""
    from triton_kernels import allow

    return allow(monkeypatch)


@pytest.fixture
def target():
    """The compute capability that kernels are compiled for; tests that take several have it as a parameter."""
    return 90


@pytest.fixture
def compiled(target):
    """Have launches compile the kernels for a GPU, and do nothing else; return what was compiled."""
    pytest.importorskip("triton", reason="Triton is there on Linux only")
    with compiling(target) as made:
        yield made


class _Pretended:
    """A GPU that Triton compiles for, and that is not there."""

    def __init__(self, capability: int) -> None:
        from triton.backends.compiler import GPUTarget

        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


class _Launcher:
    """Takes a kernel's launches, and compiles it instead."""

    def __init__(self, kernel: Any, made: list[Any]) -> None:
        self._kernel = kernel
        self._made = made

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **kwargs: self._made.append(self._kernel.warmup(*args, grid=grid, **kwargs))


@contextlib.contextmanager
def compiling(capability: int) -> Iterator[list[Any]]:
    """Have transforms of images on the CPU compile the kernels for a GPU, and do nothing else.

    Yields:
        What has been compiled so far.
    """
    from triton.runtime.driver import driver
    from triton_kernels import launched

    from fastload.transforms import fused, fused_kernel, proof

    made: list[Any] = []
    kernel = fused_kernel.transformed
    launcher = mock.Mock(TYPES=fused_kernel.TYPES, transformed=_Launcher(kernel, made))
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(mock.patch.dict(os.environ, TRITON_CACHE_DIR=folder))
        stack.enter_context(mock.patch.object(driver, "_active", _Pretended(capability)))
        stack.enter_context(mock.patch.object(fused, "available", return_value=True))
        stack.enter_context(mock.patch.object(fused, "_kernel", return_value=launcher))
        stack.enter_context(mock.patch.object(proof, "served", launched))
        kernel.device_caches.clear()  # what it has compiled in this process
        stack.callback(kernel.device_caches.clear)
        yield made
