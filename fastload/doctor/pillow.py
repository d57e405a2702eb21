"""Which Pillow is active: Pillow itself, or pillow-simd in its place.

In: what is installed beside the package ``PIL``, and what it says of itself. Out: findings. Both install the same
folder ``PIL``, and no installer knows that they exclude each other: the one that was installed last is active.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import NamedTuple

from .finding import Finding, State, in_one_line, python_install, python_uninstall

_NAMES = ("pillow", "pillow-simd")


class Active(NamedTuple):
    """What ``import PIL`` gives."""

    name: str
    """"pillow" or "pillow-simd"."""
    version: str
    trouble: str
    """What is wrong with the installation; "" where nothing is."""


def installed(folder: Path) -> dict[str, str]:
    """Return the versions of Pillow and pillow-simd that are installed into a folder, by their names.

    Args:
        folder: the one that ``PIL`` lies in.
    """
    found = {}
    for distribution in distributions(path=[str(folder)]):
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"] or "").lower()
        if name in _NAMES:
            found[name] = distribution.version
    return found


def active(version: str, there: Mapping[str, str]) -> Active:
    """Return which of the two is active, and whether they are in each other's way.

    Args:
        version: what the package ``PIL`` says: pillow-simd's versions end in ".post" and a number.
        there: see :func:`installed`.
    """
    name = "pillow-simd" if ".post" in version else "pillow"
    trouble = ""
    if len(there) > 1:
        names = " and ".join(f"{one} {there[one]}" for one in sorted(there))
        trouble = f"{names} are both installed into one folder, and have overwritten each other's files"
    elif there and version not in there.values():
        one = next(iter(there))
        trouble = f"{one} {there[one]} is installed, but the files are those of {name} {version}"
    return Active(name, version, trouble)


def anew() -> str:
    """Return the commands that leave Pillow alone in its place."""
    return f"{python_uninstall(*_NAMES)}; {python_install('pillow')}"


def probe() -> Iterator[Finding]:
    """Look at Pillow."""
    try:
        import PIL
    except ModuleNotFoundError:
        yield Finding("Pillow", "broken", "is not installed", remedy=python_install("pillow"))
        return
    there = installed(Path(PIL.__file__).parent.parent)
    found = active(PIL.__version__, there)
    try:
        from PIL import _imaging, features
    except ImportError as error:  # its compiled part is of another version
        words = f"{found.trouble}; {in_one_line(error)}" if found.trouble else in_one_line(error)
        yield Finding("Pillow", "broken", words, remedy=anew())
        return
    core = str(_imaging.PILLOW_VERSION)
    words = f"{'pillow-simd' if found.name == 'pillow-simd' else 'Pillow'} {found.version} is active"
    if found.trouble or core != found.version:
        trouble = found.trouble or f"its compiled part is of version {core}"
        yield Finding("Pillow", "costs", f"{words}; {trouble}", "which code decodes is a matter of chance", anew())
    else:
        yield Finding("Pillow", "ok", words)
    if features.check_feature("libjpeg_turbo"):
        yield Finding("its libjpeg", "ok", f"libjpeg-turbo {features.version_feature('libjpeg_turbo')}")
    else:
        reads = features.check_codec("jpg")
        state: State = "costs" if reads else "broken"
        words = "another libjpeg" if reads else "none: JPEG files cannot be read"
        cost = "files are decoded without vector instructions" if reads else ""
        yield Finding("its libjpeg", state, words, cost, anew())


__all__ = ["Active", "active", "anew", "installed", "probe"]
