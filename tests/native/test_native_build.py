"""The build succeeds without a compiler, and says what is missing; asked to insist, it fails."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fastload import native

pytest.importorskip("setuptools")
pytestmark = [pytest.mark.without_library, pytest.mark.slow]

ROOT = native.LIBRARY.parents[2]
NO_COMPILER = "no C compiler that works"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What a build needs, and nothing that was built."""
    if not (ROOT / "setup.py").exists():
        pytest.skip("the tests do not run in a checkout")
    root = tmp_path / "checkout"
    shutil.copytree(native.LIBRARY.with_name("src"), root / "fastload/native/src")
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, root)
    return root


@pytest.fixture
def quick_compiler(tmp_path: Path) -> str:
    """A compiler that does not optimise."""
    found = shutil.which("gcc")
    if found is None:
        pytest.skip("there is no gcc")
    wrapper = tmp_path / "quick"
    wrapper.write_text(f'#!/bin/sh\nexec {found} "$@" -O0\n')
    wrapper.chmod(0o755)
    return str(wrapper)


def build(root: Path, **environment: str) -> tuple[int, str, Path]:
    """Return the exit code, what was said, and where the library is if it was built."""
    done = subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--inplace"],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "FASTLOAD_REQUIRE_NATIVE": "0", "FASTLOAD_NATIVE_WERROR": "0", **environment},
    )
    return done.returncode, done.stdout, root / "fastload/native/_fastload.so"


def test_without_a_compiler_nothing_is_built_and_that_is_said(checkout):
    code, said, library = build(checkout, CC="/nowhere/cc")
    assert code == 0, said
    assert f"fastload: building without the native library: {NO_COMPILER}" in said
    assert not library.exists()


def test_without_a_compiler_the_build_fails_where_it_must_not(checkout):
    code, said, _ = build(checkout, CC="/nowhere/cc", FASTLOAD_REQUIRE_NATIVE="1")
    assert code == 1
    assert said.splitlines()[-1].startswith(f"fastload: {NO_COMPILER}")


def test_a_changed_header_builds_the_library_anew(checkout, quick_compiler):
    code, said, library = build(checkout, CC=quick_compiler)
    assert code == 0, said
    before = library.stat().st_mtime_ns
    assert "store.c" not in build(checkout, CC=quick_compiler)[1]
    header = checkout / "fastload/native/src/scratch.h"
    os.utime(header, ns=(before + 10**9, before + 10**9))
    assert "store.c" in build(checkout, CC=quick_compiler)[1]
