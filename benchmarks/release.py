"""Makes what a release consists of, and checks it: the sdist, and wheels for three systems.

    uv run -m benchmarks.release --out dist

ziglang builds all wheels, of the sdist. Each is compared with the sdist and with what git has, byte for byte. What its
library needs must be what the wheel's name says; ``twine check --strict`` reads the metadata. The wheel for this
machine is installed into an environment that has nothing else, and used there (``installed.py``). The others cannot be
run here: that is printed, too.
"""

import argparse
import base64
import csv
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.binaries import Library, read
from benchmarks.report import progress

ROOT = Path(__file__).parents[1]
UV = Path(os.environ.get("UV", "uv"))  # set by "uv run"
LIBRARY = "fastload/native/_fastload.so"
MOST_BYTES = 1_500_000


@dataclass(frozen=True, kw_only=True)
class Target:
    """A system that there is a wheel for."""

    platform: str
    """As Python's ``sysconfig.get_platform()`` names it there."""
    tag: str
    """What the wheel's name must end with."""
    system: str
    processor: str
    least: tuple[int, int]
    """The glibc or macOS of the tag: the library must not need a newer one."""
    needs: frozenset[str]
    """The libraries that every such system has."""

    @property
    def is_here(self) -> bool:
        system = {"linux": "linux", "darwin": "macos"}.get(sys.platform)
        return (self.system, self.processor) == (system, platform.machine())


_OF_LINUX = frozenset({"libc.so.6", "libm.so.6"})
TARGETS = (
    *(
        Target(
            platform=f"linux-{processor}",
            tag=f"manylinux_2_17_{processor}",
            system="linux",
            processor=processor,
            least=(2, 17),
            needs=_OF_LINUX,
        )
        for processor in ("x86_64", "aarch64")
    ),
    Target(
        platform="macosx-11.0-arm64",
        tag="macosx_11_0_arm64",
        system="macos",
        processor="arm64",
        least=(11, 0),
        needs=frozenset({"/usr/lib/libSystem.B.dylib"}),
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder of the sdist and the wheels")
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if left := sorted(path.name for path in out.iterdir()):
        parser.error(f"{out} has files already: {', '.join(left[:5])}")
    advance = progress(3 + len(TARGETS))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        advance("sdist")
        clone = clone_to(folder / "clone")
        python = toolbox(folder / "tools", clone)
        sdist = build("sdist", python, clone, out)
        with tarfile.open(sdist) as archive:
            archive.extractall(folder / "sdist", filter="data")
        (source,) = (folder / "sdist").iterdir()
        wheels = {}
        for target in TARGETS:
            advance(target.tag)
            wheels[target] = build("wheel", python, source, out, _PYTHON_HOST_PLATFORM=target.platform)
        advance("checks")
        libraries = {target: check_library(wheel, target) for target, wheel in wheels.items()}
        check_exports(libraries.values())
        for wheel in wheels.values():
            check_record(wheel)
            check_contents(wheel, clone, source)
        # Checked where they lie, by their names alone: twine wraps its lines.
        names = [path.name for path in (sdist, *wheels.values())]
        by_twine = [UV, *["tool", "run", "-q", "twine", "check", "--strict"], *names]
        print(output_of(*by_twine, cwd=out, env={**os.environ, "TERM": "dumb", "COLUMNS": "120"}).strip())
        print(f"{sdist.name}: {sdist.stat().st_size / 1e3:.0f} kB")
        for target, wheel in wheels.items():
            print("\n".join([size_of(wheel), *described(libraries[target])]), flush=True)
        advance("use")
        for target, wheel in wheels.items():
            if not target.is_here:
                print(f"{wheel.name}: compared with the sdist; not run, this machine is another")
            else:
                print(f"{wheel.name}: installed and used:\n{used(wheel, folder / 'used')}")
    return 0


def output_of(*words: str | Path, **options: Any) -> str:
    done = subprocess.run(words, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    return str(done.stdout)


# -- building ---------------------------------------------------------------------------------------------------------


def clone_to(folder: Path) -> Path:
    """Copy what git would commit, without anything that was built."""
    names = output_of("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())
    return folder


def toolbox(folder: Path, clone: Path) -> Path:
    """Make an environment with what a build wants, as installers do; return its Python."""
    output_of(UV, "venv", "--python", sys.executable, folder)
    python = folder / "bin" / "python"
    install: list[str | Path] = [UV, "pip", "install", "--python", python]
    output_of(*install, *tomllib.loads((clone / "pyproject.toml").read_text())["build-system"]["requires"])
    code = "import setup; print(*setup.get_requires_for_build_wheel())"
    output_of(*install, *output_of(python, "-c", code, cwd=clone, env={**os.environ, "CC": "ziglang"}).split())
    return python


def build(kind: str, python: Path, source: Path, out: Path, **environment: str) -> Path:
    """Build the sdist or a wheel, as installers do; return its path."""
    code = f"import setup; print(); print(setup.build_{kind}({str(out)!r}))"
    of_git = output_of("git", "log", "-1", "--format=%ct", cwd=ROOT).strip()
    said = output_of(
        python,
        "-c",
        code,
        cwd=source,
        env={
            **os.environ,
            "CC": "ziglang",
            "FASTLOAD_NATIVE_WERROR": "1",
            "FASTLOAD_REQUIRE_NATIVE": "1",
            "SOURCE_DATE_EPOCH": of_git,
            **environment,
        },
    )
    return out / said.splitlines()[-1]


# -- checks -----------------------------------------------------------------------------------------------------------


def check_library(wheel: Path, target: Target) -> Library:
    """Check that a wheel's library runs where its name says; return what the library needs."""
    assert wheel.name.endswith(f"-py3-none-{target.tag}.whl"), wheel.name
    library = read(zipfile.ZipFile(wheel).read(LIBRARY))
    assert (library.system, library.processor) == (target.system, target.processor), library
    assert library.needs <= target.needs, library.needs - target.needs
    assert library.least <= target.least, f"{wheel.name} needs {library.least}: {sorted(library.versions)}"
    assert all(one.startswith("GLIBC_2.") for one in library.versions), library.versions
    assert "/" not in library.name, f"{wheel.name} has a path of this machine: {library.name}"
    assert library.is_signed == (target.system == "macos"), f"{wheel.name}: signed: {library.is_signed}"
    return library


def check_exports(libraries: Iterable[Library]) -> None:
    first, *others = ({name for name in one.exports if name.startswith("fastload_")} for one in libraries)
    assert first, "no function of fastload's"
    assert all(one == first for one in others), [one ^ first for one in others]


def check_record(wheel: Path) -> None:
    """Check that a wheel lists all its files with their hashes."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (record,) = (name for name in names if name.endswith(".dist-info/RECORD"))
        listed = {path: digest for path, digest, _ in csv.reader(archive.read(record).decode().splitlines())}
        assert listed.keys() == names, listed.keys() ^ names
        for name in names - {record}:
            digest = base64.urlsafe_b64encode(hashlib.sha256(archive.read(name)).digest()).decode().rstrip("=")
            assert listed[name] == f"sha256={digest}", f"{wheel.name}: {name} has another hash"


def check_contents(wheel: Path, clone: Path, source: Path) -> None:
    """Check that a wheel has the files of the package as the sdist and git have them, its library, and nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        found = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}
    del found[LIBRARY]
    for folder in clone, source:
        expected = {
            str(path.relative_to(folder)): path.read_bytes()
            for path in [*(folder / "fastload").rglob("*"), folder / "_torch_fastload.py"]
            if path.is_file() and "native/src" not in path.as_posix() and "__pycache__" not in path.parts
        }
        assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
        differ = [name for name in found if found[name] != expected[name]]
        assert not differ, f"{wheel.name}: not as in {folder}: {differ}"
    sources = {path.name for path in (clone / "fastload/native/src").iterdir()}
    assert sources == {path.name for path in (source / "fastload/native/src").iterdir()}, "sources of C are missing"


def used(wheel: Path, folder: Path) -> str:
    """Install a wheel into an environment that has nothing else, and use it there; return what the checks said."""
    output_of(UV, "venv", "--python", sys.executable, folder)
    python = folder / "bin" / "python"
    # pip for the check of the packages; torch as it is here, which is in the cache.
    same = [f"{name}=={version(name).partition('+')[0]}" for name in ("torch", "torchvision")]
    output_of(UV, "pip", "install", "--python", python, wheel, "pip", *same)
    lone = {name: os.environ[name] for name in ("HOME", "TMPDIR", "LANG") if name in os.environ}
    shutil.copy(Path(__file__).with_name("installed.py"), folder)
    paths = f"{folder / 'bin'}:/usr/bin:/bin"
    return output_of(python, "installed.py", "ziglang", cwd=folder, env={**lone, "PATH": paths}).rstrip()


# -- words ------------------------------------------------------------------------------------------------------------


def size_of(wheel: Path) -> str:
    size = wheel.stat().st_size
    assert size < MOST_BYTES, f"{wheel} has {size} bytes, {MOST_BYTES} are allowed"
    return f"{wheel.name}: {size / 1e3:.0f} kB"


def described(library: Library) -> list[str]:
    system = {"linux": "glibc", "macos": "macOS"}[library.system]
    versions = f" ({', '.join(sorted(library.versions))})" if library.versions else ""
    signed = "; signed ad hoc" if library.is_signed else ""
    return [
        f"  for {library.processor}, {system} {'.'.join(map(str, library.least))} or later{versions}{signed}",
        f"  loads {', '.join(sorted(library.needs))}",
    ]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as failed:
        sys.exit(f"{failed.stdout}\n{failed}")
