"""Triton's kernels on the CPU: run by its interpreter, or compiled for GPUs that are not there."""

from __future__ import annotations

from pathlib import Path

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
def compiled(target, monkeypatch):
    """Have launches compile the kernels for a GPU, and do nothing else; return what was compiled."""
    pytest.importorskip("triton", reason="Triton is there on Linux only")
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    from benchmarks.gpu.compiled import compiling

    with compiling(target) as made:
        yield made
