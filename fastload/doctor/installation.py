"""The probe of this package itself: whether its files are those that were installed.

``fastload`` on the package index is another project with a folder of the same name. No installer knows that the two
exclude each other: the one that comes later overwrites files, and the one that is uninstalled takes them away.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import shlex
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from pathlib import Path

from ..base.version import DISTRIBUTION
from .finding import Finding, State, pip

_FOLDER = "fastload"
_SHOWN = 3


def own_files() -> Iterator[Finding]:
    """Compare this package's files with the list of the installer, and look for another package called fastload."""
    try:
        own = distribution(DISTRIBUTION)
    except PackageNotFoundError:
        yield Finding(DISTRIBUTION, "absent", f"is not installed: this is the folder {Path(__file__).parents[2]}")
        return
    missing, changed = differing(own)
    others = [f"{_FOLDER} {one.version}" for one in distributions(name=_FOLDER) if one.read_text("RECORD") is not None]
    door, imported = str(Path(__file__).parents[1] / "__init__.py"), sys.modules[_FOLDER].__file__
    troubles = [_listed(how, paths) for how, paths in (("missing", missing), ("changed", changed)) if paths]
    troubles += [f"import {_FOLDER} finds {imported}, not {door}"] * (imported not in (door, None))
    if troubles:
        state: State = "broken" if missing or others else "costs"
        cost = f"what is imported may not be {DISTRIBUTION}'s" if state == "broken" else "not the files of that version"
    else:
        state, cost = ("costs", f"to uninstall it takes files of {DISTRIBUTION} away") if others else ("ok", "")
    troubles += [f"{one}, another package that has the same folder, is installed too" for one in others]
    uninstall = " ".join([*[_FOLDER] * bool(others), DISTRIBUTION])
    remedy = "" if state == "ok" else pip(uninstall=uninstall, install=source())
    yield Finding(DISTRIBUTION, state, "; ".join([own.version, *troubles]), cost, remedy)


def differing(own: Distribution) -> tuple[list[str], list[str]]:
    """Return which files of the package are not there, and which have other bytes than were installed.

    RECORD of an editable installation lists none of the package's files, and some installers make none at all.
    """
    missing, changed = [], []
    for path, digest, *_ in csv.reader((own.read_text("RECORD") or "").splitlines()):
        name, _, expected = digest.partition("=")
        if not path.startswith(f"{_FOLDER}/") or name not in hashlib.algorithms_guaranteed:
            continue
        file = Path(str(own.locate_file(path)))
        try:
            found = hashlib.new(name, file.read_bytes()).digest()
        except OSError:
            missing.append(path)
            continue
        if base64.urlsafe_b64encode(found).decode().rstrip("=") != expected:
            changed.append(path)
    return missing, changed


def _listed(how: str, paths: list[str]) -> str:
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return f"{how}: {', '.join(paths[:_SHOWN])}{more}"


def source() -> str:
    """Return what to install fastload from, as an installer's words."""
    from .. import native

    checkout = Path(native.LIBRARY).parents[2]
    return f"-e {shlex.quote(str(checkout))}" if (checkout / "setup.py").exists() else "PATH_OF_THE_CLONE"
