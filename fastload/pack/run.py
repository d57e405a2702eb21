"""Packs a folder: finds the parts that are missing, makes them, and checks the result."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Literal

from ..base.terminal_bar import TerminalBar
from ..errors import ConfigError, PackError
from .description import FILE, Description, PackOptions, read_description
from .listing import Listing, list_images
from .lock import locked
from .parts import Part, load_pyarrow
from .tasks import Failures, PackTask, make_all

# Each part costs every process that reads it a memory map and a file descriptor.
_MOST_PARTS = 256
_LEAST_IMAGES = 256
_SHOWN = 20
_TEMPORARY = re.compile(rf"({re.escape(FILE)}|part-\d+-of-\d+\.arrow)\.\d+\.tmp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """The result of :func:`pack`."""

    description: Description
    """Of the finished pack."""
    num_parts_before: int
    """How many parts existed before."""
    skipped: Failures

    @property
    def num_images(self) -> int:
        """Of all parts."""
        return sum(part["images"] for part in self.description.parts or ())

    @property
    def num_bytes(self) -> int:
        """Size of all parts."""
        return sum(part["bytes"] for part in self.description.parts or ())

    @property
    def num_without_coefficients(self) -> int:
        """How many images have no record, though coefficients were asked for."""
        description = self.description
        return self.num_images - (description.num_records or 0) if description.options["coefficients"] else 0


def pack(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    options: PackOptions | None = None,
    *,
    workers: int | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    images_per_part: int | None = None,
) -> Packed:
    """Pack a folder of images, or continue an unfinished pack.

    Args:
        source: a folder with a folder for each class, as for ImageFolder.
        destination: the pack's folder: a new or empty one, or one of the same pack.
        options: how to store the images; None: as they are.
        workers: number of processes; None: one for each core. The files do not depend on it. With more than one, a
            script that calls this needs ``if __name__ == "__main__"``.
        on_error: for files that cannot be decoded: ``"raise"`` an error that lists them, after all files were tried;
            ``"skip"`` them.
        images_per_part: in each file but the last; None: 256, or more if there would be more than 256 files.

    Returns:
        What was done.

    Raises:
        PackError: ``source`` is not such a folder; ``destination`` is not empty, or another pack; files cannot be
            decoded; pyarrow, or for coefficients the native library, is not installed; a process died.
        ConfigError: an argument is out of range.
        OSError: a file cannot be written.
    """
    options = PackOptions() if options is None else options
    if on_error not in ("raise", "skip"):
        raise ConfigError(f"on_error must be 'raise' or 'skip', got {on_error!r}")
    for name, value in (("workers", workers), ("images_per_part", images_per_part)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}")
    load_pyarrow()
    if options.coefficients:
        from .records import check_can_pack  # takes time: torch

        check_can_pack()
    listing = list_images(source)
    plan = _plan(listing, options, images_per_part)
    folder = os.fspath(destination)
    inside = os.path.realpath(folder) + os.sep
    if inside.startswith(os.path.realpath(listing.root) + os.sep):
        raise PackError(
            f"{folder} is inside of {listing.root}, where it would be one of the classes; pack to another folder"
        )
    os.makedirs(folder, exist_ok=True)
    with locked(folder), TerminalBar() as progress:
        there = _prepare(folder, plan)
        tasks = [
            PackTask(
                path=os.path.join(folder, plan.part_name(number)),
                root=listing.root,
                names=listing.names[first : first + plan.images_per_part],
                labels=listing.labels[first : first + plan.images_per_part],
                classes=listing.classes,
                options=options,
                skip=on_error == "skip",
            )
            for number, first in enumerate(range(0, len(listing.names), plan.images_per_part))
        ]
        left = [task for number, task in enumerate(tasks) if number not in there]
        progress.begin(len(listing.names), len(listing.names) - sum(len(task.names) for task in left))
        progress.describe("packing images")
        failures = _made(left, workers, progress.advance, folder)
        description, skipped = _describe(plan, tasks, dict(failures), on_error == "skip")
        if description != read_description(folder):
            description.write(folder)
    return Packed(description=description, num_parts_before=len(there), skipped=skipped)


def _plan(listing: Listing, options: PackOptions, images_per_part: int | None) -> Description:
    import PIL
    import pyarrow

    count = len(listing.names)
    if images_per_part is None:
        images_per_part = max(_LEAST_IMAGES, math.ceil(count / _MOST_PARTS))
    return Description(
        options=asdict(options),
        source={"images": count, "bytes": listing.num_bytes, "digest": listing.digest},
        made_by={"Pillow": PIL.__version__, "pyarrow": pyarrow.__version__},
        classes=listing.classes,
        images_per_part=images_per_part,
        num_parts=math.ceil(count / images_per_part),
    )


def _prepare(folder: str, plan: Description) -> set[int]:
    """Prepare the folder of a pack, and return the numbers of the parts that exist.

    Raises:
        PackError: it contains something else.
    """
    _remove_temporary(folder)  # left by a run that was killed
    names = set(os.listdir(folder))
    if FILE not in names:
        if names:
            raise PackError(f"{folder} is not empty, and not a pack: it has {min(names)!r}; pack to another folder")
        plan.write(folder)
        return set()
    begun = read_description(folder)
    plan.check_same(begun, folder)
    there = {number for number in range(plan.num_parts) if plan.part_name(number) in names}
    # A finished pack may have lost files since.
    sizes = None if begun.parts is None else [part["bytes"] for part in begun.parts]
    paths = {number: os.path.join(folder, plan.part_name(number)) for number in there}
    return {number for number, path in paths.items() if sizes is None or os.path.getsize(path) == sizes[number]}


def _remove_temporary(folder: str) -> None:
    for name in filter(_TEMPORARY.fullmatch, os.listdir(folder)):
        with contextlib.suppress(FileNotFoundError):  # the process that made it may remove it
            os.unlink(os.path.join(folder, name))


def _made(left: list[PackTask], workers: int | None, tell: Callable[[], object], folder: str) -> Failures:
    """Make the missing parts, and return the files that cannot be packed.

    Raises:
        PackError: there are such files, and they are not skipped.
    """
    if workers is None:
        workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    failures: Failures = []
    try:
        for failed in make_all(left, workers, tell):
            failures += failed
    finally:
        _remove_temporary(folder)
    failures.sort()
    if failures and not left[0].skip:
        raise _refused(failures)
    return failures


def _describe(
    plan: Description, tasks: list[PackTask], reasons: dict[str, str], skip: bool
) -> tuple[Description, Failures]:
    """Return the description of the finished pack, read from its files, and the files that were skipped.

    Raises:
        PackError: a file is not a part of this pack; or an earlier run has skipped files, and this one must not.
    """
    parts: list[dict[str, int]] = []
    labels: Counter[int] = Counter()
    num_records = 0
    skipped: Failures = []
    for task in tasks:
        part = Part(task.path)
        parts.append({"images": len(part), "bytes": os.path.getsize(task.path)})
        labels.update(part.labels)
        if task.options.coefficients:
            from ..native.jpeg import is_record

            num_records += sum(is_record(part.encoded(place)) for place in range(len(part)))
        names = part.names()
        there = set(names)
        wanted = [(name, label) for name, label in zip(task.names, task.labels, strict=True) if name in there]
        if list(zip(names, part.labels, strict=True)) != wanted:
            raise PackError(f"{task.path} has images of another pack; remove it, and run fastload pack again")
        skipped += [(name, reasons.get(name, "in an earlier run")) for name in task.names if name not in there]
    if skipped and not skip:
        raise _refused(skipped)
    counts = [labels[label] for label in range(len(plan.classes))]
    names = [name for name, _ in skipped]
    return replace(plan, parts=parts, images_per_class=counts, skipped=names, num_records=num_records), skipped


def _refused(failures: Failures) -> PackError:
    lines = [f"  {name}: {reason}" for name, reason in failures[:_SHOWN]]
    if len(failures) > _SHOWN:
        lines.append(f"  and {len(failures) - _SHOWN:,} more")
    what = "file" if len(failures) == 1 else "files"
    return PackError(
        "\n".join([f"{len(failures):,} {what} cannot be packed:", *lines])
        + "\nrun again with --on-error skip to leave them out: the parts made so far are kept. If files are mended or "
        "removed instead, the folder has to be packed from the beginning"
    )
