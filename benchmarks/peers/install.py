"""Make an environment for each peer: ``python -m benchmarks.peers.install DIR``, from the repository's root.

Each peer gets a virtual environment of its own in ``DIR/<name>``, made by uv, with the Python, torch and torchvision of
the interpreter that runs this, so that all sides decode with the same libraries. uv links the wheels from its cache, so
nine environments take about as much disk as one.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from benchmarks.report import complain

_SECONDS_PER_PEER = 900.0


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a peer is installed from."""

    packages: tuple[str, ...]
    """Beside torch and torchvision."""
    module: str
    """Imported at the end, to see whether it can be."""
    debian: tuple[str, ...] = ()
    """Packages of the system that it needs, by their names in Debian 12."""


RECIPES = {
    "dali": Recipe(packages=("nvidia-dali-cuda130==2.*",), module="nvidia.dali.plugin.pytorch"),
    "ffcv": Recipe(
        packages=("ffcv==1.0.2",),
        module="ffcv",
        debian=("libopencv-dev", "libturbojpeg0-dev", "pkg-config", "g++"),
    ),
    "grain": Recipe(packages=("grain==0.2.*",), module="grain.python"),
    "litdata": Recipe(packages=("litdata==0.2.*",), module="litdata"),
    # Its decoder is FFmpeg's: libavdevice, libavfilter and what they bring, of any version from 4 to 9.
    "spdl": Recipe(
        packages=("spdl==0.8.*", "spdl-core==0.8.*", "spdl-io==0.8.*"),
        module="spdl.io",
        debian=("libavdevice59", "libavfilter8"),
    ),
    "streaming": Recipe(packages=("mosaicml-streaming==0.13.*",), module="streaming"),
    "timm": Recipe(packages=("timm==1.0.*",), module="timm"),
    "webdataset": Recipe(packages=("webdataset==1.0.*",), module="webdataset"),
}


def python_of(folder: Path, name: str) -> Path:
    """Return where the interpreter of a peer's environment is, or would be."""
    return folder / name / "bin" / "python"


def main() -> int:
    """Install the peers that the command line names; return 1 if one could not be."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.install", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="DIR", help="where the environments go")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(RECIPES)}; all if none is given")
    parser.add_argument("--debian", action="store_true", help="only print the packages that the system must have")
    options = parser.parse_args()
    if unknown := set(options.names) - RECIPES.keys():
        parser.error(f"no peer is called {sorted(unknown)[0]!r}; peers: {', '.join(RECIPES)}")
    names = options.names or list(RECIPES)
    if options.debian:
        print(*sorted({package for name in names for package in RECIPES[name].debian}))
        return 0
    options.folder.mkdir(parents=True, exist_ok=True)
    failed = [name for name in names if not _install(options.folder.resolve(), name)]
    if failed:
        complain(f"not installed: {', '.join(failed)}; the benchmark goes on without them")
    return 1 if failed else 0


def _install(folder: Path, name: str) -> bool:
    """Make one environment; return whether its module can be imported."""
    recipe = RECIPES[name]
    start = time.monotonic()
    complain(f"{name}: {', '.join(recipe.packages)}")
    python = str(python_of(folder, name))
    both = [f"{package}=={version(package)}" for package in ("torch", "torchvision")]
    steps: list[list[str]] = [
        ["uv", "venv", "--quiet", "--clear", "--python", sys.executable, str(folder / name)],
        ["uv", "pip", "install", "--quiet", "--python", python, *both, *recipe.packages],
        [python, "-c", f"import {recipe.module}"],
    ]
    for step in steps:
        if (problem := _problem_of(step, start + _SECONDS_PER_PEER - time.monotonic())) is not None:
            needs = f"; it needs {', '.join(recipe.debian)} of the system" if recipe.debian else ""
            complain(f"{name}: {problem}{needs}")
            return False
    complain(f"{name}: installed in {time.monotonic() - start:.0f} s")
    return True


def _problem_of(step: Sequence[str], limit_s: float) -> str | None:
    """Run a command; return what went wrong, or None."""
    try:
        done = subprocess.run(step, capture_output=True, text=True, check=False, timeout=max(1.0, limit_s))
    except FileNotFoundError:
        return f"{step[0]} was not found; pip install uv"
    except subprocess.TimeoutExpired:
        return f"took more than {_SECONDS_PER_PEER:.0f} s"
    if done.returncode == 0:
        return None
    return "\n".join([f"{' '.join(step[:3])} ... failed", *done.stderr.strip().splitlines()[-15:]])


if __name__ == "__main__":
    sys.exit(main())
