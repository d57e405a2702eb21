"""Describe this machine and name what is missing on it: ``python -m benchmarks.gpu.machine --device D --commit C``.

The status is 1 if nothing can be measured or tested: torch or the device is missing.
"""

import argparse
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version

# Distribution -> what it is needed for.
PACKAGES = {
    **dict.fromkeys(("torch", "torchvision", "numpy", "pillow"), "everything"),
    "rich": "the benchmarks",
    **dict.fromkeys(("pytest", "hypothesis"), "the tests"),
    "pytest-timeout": "time limits of single tests",
    "pytest-xdist": "tests in parallel",
    "setuptools": "building the native library",
    "triton": "the fused kernels",
    "nvidia-dali-cuda130": "images by DALI",
}


def main() -> int:
    """Print what there is; return 1 if nothing can be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.machine", description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--commit", default="unknown")
    options = parser.parse_args()
    print(f"commit {options.commit}")
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.platform()}")
    for name, purpose in PACKAGES.items():
        try:
            print(f"{name}: {version(name)}")
        except PackageNotFoundError:
            print(f"{name}: MISSING, needed for {purpose}")
    try:
        from benchmarks.gpu.measuring import describe
        from fastload import native
    except ImportError as error:
        print(f"torch or fastload cannot be imported: {error}")
        return 1
    print(f"native library: {native.unavailable_reason() or native.LIBRARY}")
    found = describe(options.device)
    print(", ".join(f"{name}: {value}" for name, value in found.items()))
    return 1 if "missing" in found else 0


if __name__ == "__main__":
    sys.exit(main())
