"""Builds the C library of :mod:`fastload.native`; all else stands in pyproject.toml.

Out: ``fastload/native/_fastload.so``, a plain shared library without Python's ABI in it or in its name. Without a
compiler the package is built without it, which is said.

For work on the sources: ``python setup.py build_ext --inplace``. In the environment:

* ``FASTLOAD_REQUIRE_NATIVE=1``: a missing compiler is an error.
* ``FASTLOAD_NATIVE_WERROR=1``: so are the compiler's warnings.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

NAME = "fastload.native._fastload"
SOURCES = Path("fastload/native/src")
# Contraction would make of a product and a sum what no other build computes.
FLAGS = ["-std=c11", "-O3", "-fvisibility=hidden", "-ffp-contract=off", "-Wall", "-Wextra"]


def asked(name: str) -> bool:
    """Return whether a variable of the environment is set to something that means yes."""
    return os.environ.get(name, "") not in ("", "0")


def lack(what: str, cost: str) -> None:
    """Say what is missing, or end the build where that was asked for."""
    if asked("FASTLOAD_REQUIRE_NATIVE"):
        raise SystemExit(f"fastload: {what}")
    print(f"fastload: building without {cost}: {what}", file=sys.stderr)


class BuildLibrary(build_ext):
    """Builds a shared library where setuptools would build an extension module."""

    def get_ext_filename(self, fullname: str) -> str:
        """Return the library's place, without the tag of a Python version."""
        if fullname.split(".")[-1] == NAME.split(".")[-1]:
            return os.path.join(*fullname.split(".")) + ".so"
        return super().get_ext_filename(fullname)

    def build_extension(self, ext: Any) -> None:
        """Build it, and say where there is no compiler."""
        if not self._builds("int main(void) { return 0; }"):
            lack("no C compiler that works; on Debian: apt-get install gcc libc6-dev", "the native library")
        # Without a compiler this fails, too; setuptools then says so and goes on, as the library is optional.
        super().build_extension(ext)

    def _builds(self, program: str) -> bool:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "probe.c")
            source.write_text(program)
            try:
                objects = self.compiler.compile([str(source)], output_dir=folder)
                self.compiler.link_executable(objects, str(Path(folder, "probe")))
            except Exception as error:  # whatever this platform's compiler raises
                print(f"fastload: {error}", file=sys.stderr)
                return False
        return True


class TagWheel(bdist_wheel):
    """Names the wheel for the platform and for any Python 3."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the three tags of the wheel's name."""
        return "py3", "none", super().get_tag()[2]


def extensions() -> list[Extension]:
    """Return what is to be built here."""
    if sys.platform == "win32":
        print("fastload: the native library is not built on Windows", file=sys.stderr)
        return []
    return [
        Extension(
            NAME,
            sources=sorted(map(str, SOURCES.glob("*.c"))),
            depends=sorted(map(str, SOURCES.glob("*.h"))),
            extra_compile_args=[*FLAGS, *(["-Werror"] if asked("FASTLOAD_NATIVE_WERROR") else [])],
            optional=not asked("FASTLOAD_REQUIRE_NATIVE"),
        )
    ]


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildLibrary, "bdist_wheel": TagWheel})
