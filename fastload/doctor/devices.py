"""CUDA devices, their driver, nvJPEG, Triton and page-locked memory: each is tried, not only looked for."""

from __future__ import annotations

import importlib.util
import mmap
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from ..memory import in_words
from .finding import Finding, State, in_one_line
from .measuring import SIDES, made_jpeg


def cuda() -> Iterator[Finding]:
    """Look for devices, and have each add two numbers."""
    import torch

    built = f"torch is built for CUDA {torch.version.cuda}"
    if torch.version.hip is not None:
        built = f"torch is built for ROCm {torch.version.hip}"
    elif torch.version.cuda is None:
        yield Finding("CUDA", "absent", "this build of torch has none", "batches stay on the CPU")
        return
    if not torch.cuda.is_available():
        driver = _driver()
        if driver is None:
            yield Finding("CUDA", "absent", f"{built}; there is no driver and no device here")
        else:
            remedy = "nvidia-smi; echo $CUDA_VISIBLE_DEVICES"
            words = f"{built} and there is a driver ({driver}), but no device can be used"
            yield Finding("CUDA", "costs", words, "batches stay on the CPU", remedy)
        return
    yield Finding("CUDA", "ok", f"{built}; driver {_driver() or 'of unknown version'}")
    for index in range(torch.cuda.device_count()):
        name = f"device {index}"
        about = torch.cuda.get_device_properties(index)
        words = f"{about.name}, {in_words(about.total_memory)}, compute capability {about.major}.{about.minor}"
        try:
            right = (torch.ones(1, device=f"cuda:{index}") + 1).item() == 2
        except RuntimeError as error:
            yield Finding(name, "broken", f"{words}: {in_one_line(error)}")
        else:
            yield Finding(name, "ok" if right else "broken", words if right else f"{words}: 1 + 1 is not 2")


def _driver() -> str | None:
    """Return the driver's version, or words if it does not say; None where there is none."""
    if shutil.which("nvidia-smi") is not None:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        said = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        lines = said.stdout.split()
        return lines[0] if said.returncode == 0 and lines else "nvidia-smi fails: " + in_one_line_of(said.stdout)
    return "loaded" if Path("/proc/driver/nvidia/version").exists() else None


def in_one_line_of(text: str) -> str:
    """Return the last line of a program's output."""
    lines = text.strip().splitlines()
    return lines[-1] if lines else "without a word"


def nvjpeg() -> Iterator[Finding]:
    """Have a device decode a file."""
    import torch

    if not torch.cuda.is_available():
        return
    from torchvision.io import decode_jpeg

    data = torch.frombuffer(bytearray(made_jpeg()), dtype=torch.uint8)
    try:
        image = decode_jpeg(data, device="cuda")
    except RuntimeError as error:
        yield Finding("nvJPEG", "absent", in_one_line(error), "files are decoded on the CPU")
        return
    right = tuple(image.shape) == (3, *SIDES)
    yield Finding("nvJPEG", "ok" if right else "costs", f"decodes to {list(image.shape)}")


def triton() -> Iterator[Finding]:
    """Ask whether the fused kernel of :mod:`fastload.transforms` runs."""
    import torch

    if not torch.cuda.is_available():
        return
    from ..transforms.fused import available

    state: State = "ok" if available(torch.device("cuda", torch.cuda.current_device())) else "absent"
    if state == "ok":
        yield Finding("Triton kernel", "ok", "is used for batches on the device")
        return
    if os.environ.get("FASTLOAD_TRITON") == "0":
        why, remedy = "FASTLOAD_TRITON=0 switches it off", "unset FASTLOAD_TRITON"
    elif importlib.util.find_spec("triton") is None:
        why, remedy = "triton is not installed", "install a build of torch that brings it"
    else:
        why = "it wants Triton 3.6, compute capability 8.0, a C compiler and Python's headers"
        remedy = "apt-get install -y gcc libc6-dev python3-dev"
    yield Finding("Triton kernel", state, why, "torch's own operations are used: more passes over the batch", remedy)


def page_locked() -> Iterator[Finding]:
    """Page-lock memory as slots are, and unlock it."""
    import torch

    if not torch.cuda.is_available():
        return
    import numpy as np

    from ..page_lock import CudaPages

    pages = CudaPages(torch.device("cuda", torch.cuda.current_device()))
    held = mmap.mmap(-1, 1 << 20)
    address = np.frombuffer(held, dtype=np.uint8).ctypes.data
    try:
        pages.register(address, len(held))
    except RuntimeError as error:
        cost = "one copy more on the host for each batch"
        yield Finding("page-locking", "costs", in_one_line(error), cost, "ulimit -l unlimited")
        return
    pages.unregister(address)
    yield Finding("page-locking", "ok", "slots can be page-locked: batches are copied to the device without a stop")


__all__ = ["cuda", "nvjpeg", "page_locked", "triton"]
