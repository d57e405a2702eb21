"""What machine this is, and what is missing on it: ``python -m benchmarks.gpu.machine --device D --commit C``.

Out: lines on standard output. The status is 1 if nothing can be measured or tested: torch or the device is missing.
"""

import argparse
import contextlib
import importlib.util
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version

# Module -> (distribution, what it is needed for).
PACKAGES = {
    "torch": ("torch", "everything"),
    "torchvision": ("torchvision", "everything"),
    "numpy": ("numpy", "everything"),
    "PIL": ("pillow", "everything"),
    "rich": ("rich", "the benchmarks"),
    "pytest": ("pytest", "the tests"),
    "hypothesis": ("hypothesis", "the tests"),
    "pytest_timeout": ("pytest-timeout", "time limits of single tests"),
    "xdist": ("pytest-xdist", "tests in parallel"),
    "setuptools": ("setuptools", "building the native library"),
    "triton": ("triton", "the fused kernels"),
    "nvidia.dali": ("nvidia-dali-cuda130", "images by DALI"),
}


def main() -> int:
    """Print what there is; return 1 if nothing can be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.machine", description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--commit", default="unknown")
    options = parser.parse_args()
    print(f"commit {options.commit}")
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.platform()}")
    for module, (distribution, purpose) in PACKAGES.items():
        print(f"{distribution}: {_installed(module, distribution) or f'MISSING, needed for {purpose}'}")
    try:
        import torch
    except ImportError as error:
        print(f"torch cannot be imported: {error}")
        return 1
    _print_native()
    return _print_device(torch, options.device)


def _installed(module: str, distribution: str) -> str | None:
    """Return the version of a package, or something else that says that it is there; None if it is not."""
    try:
        there = importlib.util.find_spec(module) is not None
    except ImportError:  # of the package around it
        there = False
    if not there:
        return None
    with contextlib.suppress(PackageNotFoundError):
        return version(distribution)
    return "of unknown version"


def _print_native() -> None:
    try:
        import fastload
        from fastload import native
    except Exception as error:
        print(f"fastload cannot be imported: {error}")
        return
    print(f"fastload: {fastload.__file__}")
    print(f"native library: {native.unavailable_reason() or 'yes'}")


def _print_device(torch: object, device: str) -> int:
    """Say which device this is; return 1 if it is not there."""
    cuda = torch.cuda  # type: ignore[attr-defined]
    print(f"CUDA of torch: {torch.version.cuda}; devices: {cuda.device_count()}")  # type: ignore[attr-defined]
    if device == "cpu":
        return 0
    if not cuda.is_available():
        print(f"{device}: torch sees no CUDA device; DEVICE=cpu tries the script without one")
        return 1
    for index in range(cuda.device_count()):
        properties = cuda.get_device_properties(index)
        print(f"cuda:{index}: {properties.name}, {properties.total_memory / 2**30:.0f} GiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
