"""What Triton makes of the kernels of ``fastload.transforms``, for GPUs that need not be there.

    uv run python -m benchmarks.gpu.compiled

Prints a row for each kernel: registers of a thread, bytes of them that are spilled to memory, bytes of shared memory of
a program, and machine instructions, for each architecture. Claim: nothing is spilled; crops and flips need no shared
memory; resizing needs that of one tile. The pipelines are those of the subject ``transforms``; the version is the one
of Triton that is installed.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from benchmarks.gpu.made_data import MEAN, STD
from fastload import transforms as T  # noqa: N812  (as the documentation has it)
from fastload.transforms import fused, fused_kernel

CAPABILITIES = (80, 90, 100)

_VALUES = [T.ToNormalized(MEAN, STD, torch.bfloat16)]
PIPELINES: dict[str, tuple[Callable[[], list[Any]], tuple[int, ...]]] = {
    "pad-crop-32": (lambda: [T.RandomCrop(32, 4), T.RandomHorizontalFlip(), *_VALUES], (1024, 3, 32, 32)),
    "crop-224": (lambda: [T.RandomCrop(224), T.RandomHorizontalFlip(), *_VALUES], (256, 3, 256, 256)),
    "resized-crop-224": (lambda: [T.RandomResizedCrop(224), T.RandomHorizontalFlip(), *_VALUES], (4, 3, 256, 256)),
    "resized-crop-224, bicubic": (
        lambda: [T.RandomResizedCrop(224, interpolation="bicubic"), T.RandomHorizontalFlip(), *_VALUES],
        (4, 3, 256, 256),
    ),
}


class Usage(NamedTuple):
    """What a compiled kernel needs."""

    registers: int
    spilled: int
    """Bytes of a thread."""
    shared: int
    """Bytes of a program."""
    instructions: int


class _Pretended:
    """A GPU that Triton compiles for, and that is not there."""

    def __init__(self, capability: int) -> None:
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
    made: list[Any] = []
    kernels = (fused_kernel.transformed, fused_kernel.resized)
    launchers = mock.Mock(TYPES=fused_kernel.TYPES)
    launchers.transformed, launchers.resized = (_Launcher(kernel, made) for kernel in kernels)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(mock.patch.dict(os.environ, TRITON_CACHE_DIR=folder))
        stack.enter_context(mock.patch.object(driver, "_active", _Pretended(capability)))
        stack.enter_context(mock.patch.object(fused, "available", return_value=True))
        stack.enter_context(mock.patch.object(fused, "_kernels", return_value=launchers))
        for kernel in kernels:  # what they have compiled in this process
            kernel.device_caches.clear()
            stack.callback(kernel.device_caches.clear)
        yield made


def usage_of(kernel: Any) -> Usage:
    """Return what a compiled kernel needs, as NVIDIA's tools beside Triton's compiler say."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [tool, "-res-usage", "-sass", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    told = done.stdout + done.stderr
    found = re.search(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", told)
    assert found is not None, told[:500]
    registers, stack, local = map(int, found.groups())
    instructions = re.findall(r"^\s+/\*[0-9a-f]{4}\*/\s+\S", told, re.MULTILINE)
    return Usage(registers, stack + local, kernel.metadata.shared, len(instructions))


def main() -> None:
    """Print the table."""
    print(f"Triton {triton.__version__}: registers, bytes spilled, bytes of shared memory, instructions\n")
    print("| pipeline | layout |", " | ".join(f"sm_{capability}" for capability in CAPABILITIES), "|")
    print("| --- | --- |" + " --- |" * len(CAPABILITIES))
    for name, (members, shape) in PIPELINES.items():
        for layout, memory in (("NHWC", torch.channels_last), ("NCHW", torch.contiguous_format)):
            images = torch.zeros(shape, dtype=torch.uint8).contiguous(memory_format=memory)
            cells = []
            for capability in CAPABILITIES:
                with compiling(capability) as made:
                    T.Compose(members())(images)
                cells.append(", ".join(map(str, usage_of(made[-1]))))
            print(f"| {name} | {layout} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
