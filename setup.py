"""Builds fastload with setuptools, and the C library of :mod:`fastload.native` with any C compiler.

In: ``fastload/native/src``; pyproject.toml, which names this file as the build backend (PEP 517). Out: a wheel or an
editable installation with ``fastload/native/_fastload.so``, a plain shared library without Python's ABI in it or in its
name. Where there is no C compiler that works, the installer is asked to put one into the build environment: ziglang.

For work on the sources: ``python setup.py build_ext --inplace``. In the environment:

* ``CC``: the compiler. ``CC=ziglang``: that of the package, also where there is another.
* ``FASTLOAD_REQUIRE_NATIVE=0``: where there is no compiler, none is asked for, and fastload is installed without the
  library.
* ``FASTLOAD_NATIVE_WERROR=1``: the compiler's warnings are errors.
* ``_PYTHON_HOST_PLATFORM``: with ``CC=ziglang``, the system and processor to build for, as ``linux-aarch64`` or
  ``macosx-11.0-arm64``; setuptools names the wheel for it, too.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from setuptools import Extension, setup
from setuptools.build_meta import (  # noqa: F401  (called by the installer)
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

NAME = "fastload.native._fastload"
SOURCES = Path("fastload/native/src")
ZIGLANG = "ziglang==0.17.*"
GLIBC = 17  # 2.17 of 2014: the oldest one that pip's tags and ziglang know for both kinds of processors
MACOS = 11  # of 2020: the first for ARM
# Contraction would make of a product and a sum what no other build computes.
FLAGS = ["-std=c11", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-Wall", "-Wextra"]
# What a compiler must know: those from before 2018 lack the last instructions.
PROBE = """
#include <math.h>
#include <string.h>
#include "fastload.h"
#ifdef FASTLOAD_X86
#include <immintrin.h>
FASTLOAD_TARGET_AVX512 FASTLOAD_EXPORT void vector(__m512i *a)
{
    a[0] = _mm512_maskz_compress_epi8(5, _mm512_permutexvar_epi8(a[0], _mm512_dpbusd_epi32(a[0], a[1], a[2])));
}
#endif
FASTLOAD_EXPORT double scalar(double x) { return sin(x) + (double)strlen("x"); }
"""
NO_COMPILER = f"""no C compiler that works, and no package {ZIGLANG} in this environment. One of these helps:
    apt-get install gcc libc6-dev       or what your system calls them
    pip install '{ZIGLANG}'        a compiler of 101 MB; with build isolation the installer gets it itself
    export FASTLOAD_REQUIRE_NATIVE=0    install without the library: images then take three times as long"""


def asked(name: str) -> bool:
    """Return whether a variable of the environment is set to something that means yes."""
    return os.environ.get(name, "") not in ("", "0")


# -- the compiler -----------------------------------------------------------------------------------------------------


class Compiler(NamedTuple):
    """A command that compiles, and what it needs for that and for linking."""

    command: list[str]
    options: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ("-lm",)

    def run(self, *arguments: str) -> str | None:
        """Compile or link; return what the compiler said if it failed."""
        done = subprocess.run(
            [*self.command, *self.options, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={
                "ZIG_GLOBAL_CACHE_DIR": temporary_folder("zig"),
                "ZIG_LOCAL_CACHE_DIR": temporary_folder("zig"),
                **os.environ,
            },
        )
        if done.returncode == 0:
            print(done.stdout, end="", file=sys.stderr)
            return None
        return f"{shlex.join([*self.command, *self.options, *arguments])}\n{done.stdout}"

    def build(self, out: Path, sources: Sequence[Path]) -> str | None:
        """Build a shared library; return what the compiler said if it failed."""
        own = shlex.split(os.environ.get("CFLAGS", ""))
        flags = [*own, *FLAGS, f"-I{SOURCES}", *(["-Werror"] if asked("FASTLOAD_NATIVE_WERROR") else [])]
        # With options of one's own, a debugger may want the names.
        strip = ["-s"] if sys.platform == "linux" and not own else []
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = [str(Path(folder, f"{source.stem}.o")) for source in sources]
            words = pool.map(lambda source, made: self.run(*flags, "-c", str(source), "-o", made), sources, objects)
            failure = next((one for one in words if one is not None), None)
            return failure or self.run("-shared", *strip, *objects, "-o", str(out), *self.libraries)

    def works(self) -> bool:
        """Return whether it can build what the kernels need; say why not."""
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "probe.c")
            source.write_text(PROBE)
            failure = self.build(Path(folder, "probe.so"), [source])
        if failure is not None:
            print(f"fastload: {failure}", file=sys.stderr)
        return failure is None


@functools.cache
def temporary_folder(name: str) -> str:
    """Return a folder that is gone at the end."""
    folder = tempfile.mkdtemp(prefix=f"fastload-{name}-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def system_compiler() -> Compiler | None:
    """Return the first of this machine's compilers that works; say of the others why not.

    Raises:
        SystemExit: ``CC`` names one that does not work.
    """
    named = os.environ.get("CC")
    if named == "ziglang":
        return None
    commands = [shlex.split(named)] if named else [["cc"], ["gcc"], ["clang"]]
    found = (Compiler(command) for command in commands if shutil.which(command[0]))
    compiler = next((one for one in found if one.works()), None)
    if named and compiler is None:
        raise SystemExit(f"fastload: CC={named} is not a C compiler that works; unset CC, or name another")
    return compiler


def host() -> tuple[str, str]:
    """Return system and processor to build for, as Python names them: this machine's, if no variable names others."""
    named = os.environ.get("_PYTHON_HOST_PLATFORM")
    if named is None:
        return sys.platform, platform.machine()
    return ("darwin" if named.startswith("macosx-") else "linux"), named.rpartition("-")[2]


def zig_target(system: str, machine: str) -> str:
    """Return the oldest systems that a library is for, as ziglang calls them; Python names system and processor."""
    if system == "darwin":
        return f"{machine.replace('arm64', 'aarch64')}-macos.{MACOS}.0"
    return f"{machine}-linux-gnu.2.{GLIBC}"


def packaged_compiler() -> Compiler | None:
    """Return the compiler of the package ziglang, if that is installed: for any such processor, and for old systems."""
    zig = [sys.executable, "-m", "ziglang"]
    if importlib.util.find_spec("ziglang") is None:
        return None
    # Of itself: in pip's environment for the build, the package's metadata were seen to be taken for another's.
    version = subprocess.run([*zig, "version"], check=True, text=True, stdout=subprocess.PIPE).stdout.strip()
    system, machine = host()
    # Else a library of macOS bears the path of the folder that it was built in.
    named = ("-Wl,-install_name,_fastload.so",) if system == "darwin" else ()
    return Compiler(
        [*zig, "cc"],
        ("-target", zig_target(system, machine), f'-DFASTLOAD_COMPILER_PACKAGE="ziglang {version}"'),
        # Else it links a memcpy and a sin of its own: slower, and not always of the same bits.
        ("-rtlib=none", "-lm", *named),
    )


# -- what the installer asks ------------------------------------------------------------------------------------------


def get_requires_for_build_wheel(config_settings: object = None) -> list[str]:
    """Return what to install before the build: a compiler, where there is none."""
    is_known = sys.platform == "linux" and platform.libc_ver()[0] == "glibc"
    is_needed = is_known and os.environ.get("FASTLOAD_REQUIRE_NATIVE") != "0" and system_compiler() is None
    return [ZIGLANG] if is_needed else []


get_requires_for_build_editable = get_requires_for_build_wheel


# -- what setuptools does ---------------------------------------------------------------------------------------------


class BuildLibrary(build_ext):
    """Builds a shared library where setuptools would build an extension module."""

    def get_ext_filename(self, fullname: str) -> str:
        """Return the library's place, without the tag of a Python version."""
        if fullname.split(".")[-1] == NAME.split(".")[-1]:
            return os.path.join(*fullname.split(".")) + ".so"
        return super().get_ext_filename(fullname)

    def build_extension(self, ext: Any) -> None:
        """Build it, and say where there is no compiler."""
        out = Path(self.get_ext_fullpath(ext.name))
        compiler = system_compiler() or packaged_compiler()
        if compiler is None:
            if os.environ.get("FASTLOAD_REQUIRE_NATIVE") != "0":
                raise SystemExit(f"fastload: {NO_COMPILER}")
            print(f"fastload: building without the native library: {NO_COMPILER}", file=sys.stderr)
            return
        out.parent.mkdir(parents=True, exist_ok=True)
        failure = compiler.build(out, list(map(Path, ext.sources)))
        if failure is not None:
            raise SystemExit(f"fastload: the native library does not compile: {failure}")
        print(f"fastload: built {out} by {shlex.join(compiler.command)}", file=sys.stderr)


class TagWheel(bdist_wheel):
    """Names the wheel for any Python 3, and for all systems that have what the library asks for."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the three tags of the wheel's name."""
        tag = super().get_tag()[2]
        library = Path(self.get_finalized_command("build_ext").get_ext_fullpath(NAME))
        return "py3", "none", platform_tag(tag, library.read_bytes()) if library.exists() else tag


def platform_tag(tag: str, library: bytes) -> str:
    """Return for which systems a library is: for all with a glibc that has what it names, if it names nothing else."""
    names = library.split(b"\0")
    needed = {name for name in names if re.fullmatch(rb"lib[\w+.-]+\.so[.\d]*", name)}
    versions = [int(name[8:]) for name in names if re.fullmatch(rb"GLIBC_2\.\d+", name)]
    if not tag.startswith("linux_") or not versions or not needed <= {b"libc.so.6", b"libm.so.6"}:
        return tag
    return tag.replace("linux", f"manylinux_2_{max(GLIBC, *versions)}", 1)


def extensions() -> list[Extension]:
    """Return what is to be built here."""
    if sys.platform == "win32":
        print("fastload: the native library is not built on Windows", file=sys.stderr)
        return []
    sources, headers = (sorted(map(str, SOURCES.glob(pattern))) for pattern in ("*.c", "*.h"))
    return [Extension(NAME, sources=sources, depends=[*sources, *headers, "setup.py"], optional=True)]


if __name__ == "__main__":
    setup(
        ext_modules=extensions(),
        cmdclass={"build_ext": BuildLibrary, "bdist_wheel": TagWheel},
        # In a folder that stays, what was built before, and deleted since, would get into the wheel; and the clone may
        # be read-only. A source archive is made beside the sources all the same, and contains the second one.
        options={
            "build": {"build_base": temporary_folder("build")},
            **({} if "sdist" in sys.argv else {"egg_info": {"egg_base": temporary_folder("egg-info")}}),
        },
    )
