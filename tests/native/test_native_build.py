"""The library is built by what compiler there is, or by one that the installer gets; what is missing is said."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from fastload import native

pytest.importorskip("setuptools")
pytestmark = [pytest.mark.without_library, pytest.mark.slow]

ROOT = native.LIBRARY.parents[2]
NO_COMPILER = "no C compiler that works, and no package ziglang==0.17.* in this environment"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What a build needs, and nothing that was built."""
    if not (ROOT / "setup.py").exists():
        pytest.skip("the tests do not run in a checkout")
    root = tmp_path / "checkout"
    shutil.copytree(native.LIBRARY.with_name("src"), root / "fastload/native/src")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "_torch_fastload.py"):
        shutil.copy(ROOT / name, root)
    return root


def wrapper(path: Path, line: str) -> str:
    """Return a compiler that runs a line of shell, with gcc's path as $gcc."""
    found = shutil.which("gcc")
    if found is None:
        pytest.skip("there is no gcc")
    path.write_text(f"#!/bin/sh\ngcc={found}\n{line}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def folder_with(tmp_path: Path) -> Callable[..., str]:
    """Make a folder with commands of these names, and what a line of shell needs."""

    def make(**commands: str) -> str:
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        for name, target in {**commands, "as": shutil.which("as"), "ld": shutil.which("ld")}.items():
            (folder / name).symlink_to(str(target))
        return str(folder)

    return make


@pytest.fixture
def quick_compiler(tmp_path: Path) -> str:
    """A compiler that does not optimise."""
    return wrapper(tmp_path / "quick", 'exec $gcc "$@" -O0')


@pytest.fixture
def old_compiler(tmp_path: Path) -> str:
    """A compiler without the functions for the instructions of 2018, as gcc before 8."""
    return wrapper(tmp_path / "old", 'exec $gcc "$@" -D__AVX512VBMI2INTRIN_H_INCLUDED -D_AVX512VBMI2INTRIN_H_INCLUDED')


def run(root: Path, *words: str, **environment: str) -> tuple[int, str, Path]:
    """Run Python in a checkout; return the exit code, what was said, and where the library is if it was built."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "FASTLOAD_REQUIRE_NATIVE": "", "FASTLOAD_NATIVE_WERROR": "0", "CC": "", **environment},
    )
    return done.returncode, done.stdout, root / "fastload/native/_fastload.so"


def build(root: Path, **environment: str) -> tuple[int, str, Path]:
    return run(root, "setup.py", "build_ext", "--inplace", **environment)


def requirements(root: Path, **environment: str) -> str:
    code, said, _ = run(root, "-c", "import setup; print(setup.get_requires_for_build_wheel())", **environment)
    assert code == 0, said
    return said.splitlines()[-1]


def test_a_compiler_is_asked_for_only_where_none_works(checkout, folder_with, quick_compiler, old_compiler):
    assert requirements(checkout, CC=quick_compiler) == "[]"
    assert requirements(checkout, CC="ziglang") == "['ziglang==0.17.*']"
    assert requirements(checkout, PATH=folder_with(cc=old_compiler)) == "['ziglang==0.17.*']"
    assert requirements(checkout, PATH=folder_with(cc=old_compiler, gcc=quick_compiler)) == "[]"
    assert requirements(checkout, CC="ziglang", FASTLOAD_REQUIRE_NATIVE="0") == "[]"


def test_a_compiler_that_is_named_and_does_not_work_ends_the_build(checkout, old_compiler):
    for named in ("/nowhere/cc", old_compiler):
        code, said, library = build(checkout, CC=named)
        assert (code, library.exists()) == (1, False)
        assert f"fastload: CC={named} is not a C compiler that works; unset CC, or name another" in said


@pytest.mark.thorough
def test_sources_that_do_not_compile_end_the_build_with_the_compilers_words(checkout, quick_compiler):
    (checkout / "fastload/native/src/store.c").write_text("#error not today\n")
    code, said, library = build(checkout, CC=quick_compiler)
    assert (code, library.exists()) == (1, False)
    assert re.search("fastload: the native library does not compile(.|\n)*not today", said)


def test_without_a_compiler_the_build_fails_and_says_what_helps_unless_it_may_go_without(checkout):
    code, said, library = build(checkout, CC="ziglang")
    assert (code, library.exists()) == (1, False)
    for words in (f"fastload: {NO_COMPILER}", "pip install 'ziglang==0.17.*'", "FASTLOAD_REQUIRE_NATIVE=0"):
        assert words in said
    code, said, library = build(checkout, CC="ziglang", FASTLOAD_REQUIRE_NATIVE="0")
    assert (code, library.exists()) == (0, False)
    assert f"fastload: building without the native library: {NO_COMPILER}" in said


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_what_was_built_before_is_not_in_the_next_wheel(checkout, quick_compiler):
    module = checkout / "fastload/native/gone.py"
    module.touch()
    for compiler in ({"CC": "ziglang", "FASTLOAD_REQUIRE_NATIVE": "0"}, {"CC": quick_compiler}):
        code, said, _ = run(checkout, "setup.py", "bdist_wheel", **compiler)
        assert code == 0, said
        (wheel,) = (checkout / "dist").iterdir()
        names = zipfile.ZipFile(wheel).namelist()
        assert ("fastload/native/gone.py" in names) == module.exists()
        assert ("fastload/native/_fastload.so" in names) != module.exists()
        assert not [name for name in names if name.endswith((".c", ".h"))]
        wheel.unlink()
        module.unlink(missing_ok=True)
    assert re.fullmatch(r"torch_fastload-[\d.]+-py3-none-manylinux_2_\d+_\w+\.whl", wheel.name)


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_an_installation_writes_nothing_into_the_clone(checkout, quick_compiler, tmp_path):
    """So that it may be read-only."""
    if shutil.which("uv") is None:
        pytest.skip("there is no uv")
    before, target = sorted(checkout.rglob("*")), tmp_path / "target"
    words = ["uv", "pip", "install", "--python", sys.executable, "--offline", "--no-deps", "--no-build-isolation"]
    environment = {**os.environ, "CC": quick_compiler}
    subprocess.run([*words, "--target", str(target), str(checkout)], env=environment, check=True)
    assert (target / "fastload/native/_fastload.so").exists()
    assert sorted(checkout.rglob("*")) == before


def test_wheels_are_named_for_the_oldest_systems_that_have_what_the_library_names_and_built_for_old_ones(checkout):
    tags = {
        "libc.so.6 GLIBC_2.2.5 GLIBC_2.14": "manylinux_2_17_x86_64",
        "libc.so.6 libm.so.6 GLIBC_2.4 GLIBC_2.29": "manylinux_2_29_x86_64",
        "libc.so.6 libjpeg.so.62 GLIBC_2.14": "linux_x86_64",
        "libc.musl-x86_64.so.1": "linux_x86_64",
    }
    code = (
        "import os, platform, sys\n"
        "from setup import host, platform_tag, zig_target\n"
        "for names in sys.argv[1:]:\n"
        "    print(platform_tag('linux_x86_64', f' {names} '.replace(' ', chr(0)).encode()))\n"
        "for sys.platform, machine in [('linux', 'aarch64'), ('darwin', 'x86_64')]:\n"
        "    platform.machine = lambda: machine\n"
        "    print(zig_target(*host()))\n"
        "for os.environ['_PYTHON_HOST_PLATFORM'] in ('linux-x86_64', 'macosx-11.0-arm64'):\n"
        "    print(zig_target(*host()))"
    )
    targets = ["aarch64-linux-gnu.2.17", "x86_64-macos.11.0", "x86_64-linux-gnu.2.17", "aarch64-macos.11.0"]
    assert run(checkout, "-c", code, *tags)[1].split() == [*tags.values(), *targets]
