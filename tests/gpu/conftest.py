"""Tests that need a GPU. Without one they are skipped; with ``FASTLOAD_REQUIRE_GPU=1`` a skip is a failure."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch

REQUIRED = os.environ.get("FASTLOAD_REQUIRE_GPU") == "1"

# Compiled in this process: others would outlive the test that began them.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")


def _prepare_sanitizer() -> None:
    """Let torch's sanitizer, which TORCH_CUDA_SANITIZER=1 switches on, see what it can judge."""
    from torch.cuda._sanitizer import CUDASanitizerDispatchMode, cuda_sanitizer

    # It asks the device about each operation, and a forked worker has none.
    os.register_at_fork(after_in_child=lambda: cuda_sanitizer.disable() if cuda_sanitizer.enabled else None)

    # Older versions take record_stream for a kernel that writes.
    dispatched = CUDASanitizerDispatchMode.__torch_dispatch__

    def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.record_stream.default:
            return func(*args, **(kwargs or {}))
        return dispatched(self, func, types, args, kwargs)

    CUDASanitizerDispatchMode.__torch_dispatch__ = dispatch


if os.environ.get("TORCH_CUDA_SANITIZER"):
    _prepare_sanitizer()


@pytest.fixture(scope="session", autouse=True)
def _cuda_has_begun() -> None:
    """Open what CUDA keeps open to the end, so that no test seems to leave it behind."""
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            with torch.cuda.device(number), torch.cuda.stream(torch.cuda.Stream()):
                torch.ones(2, 2, pin_memory=True).cuda(non_blocking=True).mm(torch.ones(2, 2, device="cuda"))
                event = torch.cuda.Event(blocking=True)
                event.record()
                event.synchronize()
        torch.cuda.synchronize()


@pytest.fixture(autouse=True)
def _gpu() -> Iterator[None]:
    if not torch.cuda.is_available():
        if REQUIRED:
            pytest.fail("FASTLOAD_REQUIRE_GPU=1, and torch sees no CUDA device")
        pytest.skip("needs a CUDA device; FASTLOAD_REQUIRE_GPU=1 makes this a failure")
    yield
    torch.cuda.synchronize()


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture
def without_waiting() -> Callable[[], AbstractContextManager[None]]:
    """Make waiting for the device an error, as far as torch can tell."""

    @contextmanager
    def never() -> Iterator[None]:
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")

    return never
