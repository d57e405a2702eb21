"""The files of a run: a tree of links to the JPEGs, and each side's own files, made once and kept.

In: an ImageFolder tree and a folder. Out, in that folder: ``images-<n>``, an ImageFolder tree of n links, as many of
each file as it takes; and ``<side>-<n>``, the side's own files. A file ``<name>.json`` beside each says what it is made
of; what was made of something else is made anew.
"""

import itertools
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.peers.catalogue import Beside
from benchmarks.runner import Child, MeasurementFailed
from benchmarks.spec import Side

_SECONDS_PER_SIDE = 300.0
_SUFFIXES = {".jpg", ".jpeg"}


def link_images(data: Path, folder: Path, num_images: int) -> Path:
    """Return a tree of ``num_images`` links to the files below ``data``; it is made if it is not there."""
    files = sorted(file for file in data.glob("*/*") if file.suffix.lower() in _SUFFIXES)
    if not files:
        raise ValueError(
            f"--data must be an ImageFolder tree, but {data} has no folder with a .jpg or .jpeg file in it"
        )
    tree = folder / f"images-{num_images}"
    recipe = {"files": [str(file) for file in files]}
    if not _is_made(tree, recipe):
        _empty(tree)
        for number, file in zip(range(num_images), itertools.cycle(files), strict=False):
            link = tree / file.parent.name / f"{number // len(files):04d}_{file.name}"
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(file.resolve())
        _finish(tree, recipe)
    return tree


async def pack(
    side: Beside, python: str, folder: Path, arguments: Mapping[str, object], advance: Callable[[str], None]
) -> None:
    """Make a side's own files in ``folder``, unless they are there."""
    sizes = {name: arguments[name] for name in ("images", "num_images", "num_workers")}
    source = json.loads(_marker(Path(str(arguments["images"]))).read_text()) if arguments["work"] == "images" else {}
    recipe = {**sizes, "options": dict(side.options), "of": source}
    if _is_made(folder, recipe):
        return
    advance(f"files for {side.name}")
    _empty(folder)
    async with Child(python) as child:
        plain = Side(name=side.name, package=side.package, options=side.options)
        child.ask("benchmarks.peers.measuring:pack", arguments, [plain])
        try:
            await child.answer(f"making the files for {side.name}", _SECONDS_PER_SIDE)
        except MeasurementFailed:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    _finish(folder, recipe)


def _marker(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.json")


def _is_made(folder: Path, recipe: Mapping[str, object]) -> bool:
    marker = _marker(folder)
    return folder.is_dir() and marker.exists() and json.loads(marker.read_text()) == recipe


def _empty(folder: Path) -> None:
    _marker(folder).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _finish(folder: Path, recipe: Mapping[str, object]) -> None:
    # Last, so that a run that was ended does not leave half of the files as if they were all.
    _marker(folder).write_text(json.dumps(recipe))
