"""Runs test files against a library that is built with AddressSanitizer and UndefinedBehaviorSanitizer.

Tensors are then surrounded by memory that nobody may touch, so that a read or a write beside one ends the process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fastload import native

SOURCES = native.LIBRARY.with_name("src")
ACTIVE = "FASTLOAD_SANITIZED"
FLAGS = ["-std=c11", "-g", "-ffp-contract=off", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]

_SCRIPT = """
import sys
from pathlib import Path
from fastload import native
native.LIBRARY = Path(sys.argv[1])
import pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-x", *sys.argv[2:]]))
"""


def sanitized() -> bool:
    """Return whether this is such a run."""
    return ACTIVE in os.environ


def run(folder: Path, tests: list[Path]) -> subprocess.CompletedProcess[str]:
    """Build the library, and run test files against it; skip where that is impossible."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no gcc to build the library with sanitizers")
    library = folder / "sanitized.so"
    files = sorted(map(str, SOURCES.glob("*.c")))
    built = subprocess.run(
        [compiler, *FLAGS, "-shared", "-fPIC", *files, "-o", str(library), "-lm"], capture_output=True, text=True
    )
    if built.returncode:
        pytest.skip(f"gcc cannot build with -fsanitize=address,undefined here: {built.stderr[-300:]}")
    # The sanitizer has to come first; and C++ behind it, since it looks for what exceptions are thrown by at its start.
    first = [
        subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True).stdout.strip()
        for name in ("libasan.so", "libstdc++.so.6")
    ]
    environment = {
        **os.environ,
        ACTIVE: "1",
        "FASTLOAD_NATIVE": "1",
        "LD_PRELOAD": ":".join(first),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0",
        "PYTHONPATH": os.pathsep.join([str(native.LIBRARY.parents[2]), os.environ.get("PYTHONPATH", "")]),
        "PYTEST_ADDOPTS": "",  # not as many processes as this run has
    }
    return subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(library), *map(str, tests)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=Path(__file__).parents[2],
    )
