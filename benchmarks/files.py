"""The files of a run: the JPEGs that the command line names, and what is made of them once."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path


def image_files(root: Path) -> list[tuple[Path, int]]:
    """Return each JPEG file of an ImageFolder tree with the number of its class, in ImageFolder's order."""
    classes = sorted(folder for folder in root.iterdir() if folder.is_dir())
    return [
        (file, label)
        for label, folder in enumerate(classes)
        for file in sorted(folder.iterdir())
        if file.suffix.lower() in {".jpg", ".jpeg"}
    ]


def make_once(folder: Path, recipe: Mapping[str, object], make: Callable[[], object]) -> None:
    """Let ``make`` fill a folder, unless it was made of the same recipe before.

    The recipe stands in the file ``NAME.json`` beside the folder.
    """
    marker = marker_of(folder)
    if folder.is_dir() and marker.exists() and json.loads(marker.read_text()) == recipe:
        return
    marker.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    make()
    # Last, so that a run that was ended does not leave half of the files as if they were all.
    marker.write_text(json.dumps(recipe))


def marker_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.json")
