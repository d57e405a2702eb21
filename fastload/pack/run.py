"""Packs a folder: finds which images are stored, encodes the others, and describes the result."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import warnings
from collections import Counter
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Literal, NamedTuple

import PIL

from ..base.cgroups import processors
from ..base.terminal_bar import TerminalBar
from ..cache.kinds import REMEDY
from ..cache.record_file import OtherFormatError, RecordFile, open_files
from ..errors import ConfigError, PackError
from ..native.jpeg import is_record, why_not_as_pillow
from .description import FILE, NAMES, Description, read_description
from .encoding import encode
from .listing import Listing, list_images, refuse_pipe
from .options import PackOptions

_SHOWN = 20
_AT_ONCE = 32  # images for each thread, in memory
Failures = list[tuple[str, str]]
"""(name, reason) of files that cannot be packed."""


class Packed(NamedTuple):
    """The result of :func:`pack`."""

    description: Description
    """Description of the finished pack."""
    num_images: int
    num_before: int
    """How many of them were stored before."""
    skipped: Failures


def pack(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    options: PackOptions | None = None,
    *,
    workers: int | None = None,
    on_error: Literal["raise", "skip"] = "raise",
) -> Packed:
    """Pack a folder of images, or continue an unfinished pack. What is stored already is read and checked.

    Args:
        source: a folder with a folder for each class, as for ImageFolder.
        destination: the pack's folder: a new or empty one, or one of the same pack.
        options: how to store the images; None: as they are.
        workers: number of threads; None: one for each core. The files do not depend on it.
        on_error: for files that cannot be decoded: ``"raise"`` an error that lists them, after all files were tried;
            ``"skip"`` them.

    Raises:
        PackError: ``source`` is not such a folder; ``destination`` is not empty, or another pack; files cannot be
            decoded; for coefficients the native library is not installed.
        ConfigError: an argument is out of range.
        OSError: a file cannot be written.
    """
    options = PackOptions() if options is None else options
    if on_error not in ("raise", "skip"):
        raise ConfigError(f"on_error must be 'raise' or 'skip', got {on_error!r}")
    if workers is not None and workers < 1:
        raise ConfigError(f"workers must be at least 1, got {workers}")
    reason = why_not_as_pillow() if options.coefficients else None
    if reason is not None:
        raise PackError(
            f"coefficients are packed by fastload's native library, where it gives Pillow's pixels: {reason}; {REMEDY}"
            ", or pack without --coefficients"
        )
    listing = list_images(source)
    plan = Description(
        options=asdict(options),
        source=listing.source,
        made_by={"Pillow": PIL.__version__},
        classes=listing.classes,
    )
    folder = os.fspath(destination)
    if (os.path.realpath(folder) + os.sep).startswith(os.path.realpath(listing.root) + os.sep):
        raise PackError(
            f"{folder} is inside of {listing.root}, where it would be one of the classes; pack to another folder"
        )
    os.makedirs(folder, exist_ok=True)
    with locked(folder), TerminalBar() as progress, contextlib.closing(_begun(folder, plan)) as files:
        progress.begin(len(listing.names))
        progress.describe("packing images")
        stored = _stored(files, plan, progress)
        num_before = len(stored)
        left = [number for number in range(len(listing.names)) if number not in stored]
        failures: Failures = []
        with warnings.catch_warnings(), contextlib.closing(_made(listing, left, options, workers)) as all_made:
            warnings.simplefilter("ignore")  # such as of broken EXIF data, which torchvision's loader accepts too
            for number, made in zip(left, all_made, strict=True):
                if isinstance(made, str):
                    failures.append((listing.names[number], made))
                else:
                    _append(files, plan.key(number), made)
                    stored[number] = is_record(made)
                progress.advance()
        if failures and on_error == "raise":
            raise _refused(failures)
        description = _finished(folder, files, plan, listing, stored)
    return Packed(description=description, num_images=len(stored), num_before=num_before, skipped=failures)


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
    """Lock a folder, where its file system has locks. Raises PackError: another process has locked it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise PackError(f"another process writes to {folder}; wait until it ends, or stop it") from None
            # Otherwise the file system has no locks.
        yield
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _begun(folder: str, plan: Description) -> RecordFile:
    """Return the files of a pack, which are made if it is new. Raises PackError: the folder contains something else."""
    names = set(os.listdir(folder)) - {f"{FILE}.tmp"}  # left by a run that was killed
    if FILE in names:
        plan.check_same(read_description(folder), folder)
    elif names:
        raise PackError(f"{folder} is not empty, and not a pack: it has {min(names)!r}; pack to another folder")
    else:
        plan.write(folder)
    try:
        files = open_files(folder, create=True)
    except OtherFormatError as error:
        raise PackError(
            f"{os.path.join(folder, str(error))} is damaged; remove {folder}, and pack the images again"
        ) from None
    files.cut()
    return files


def _append(files: RecordFile, key: tuple[int, int, int], data: bytes) -> None:
    line = files.write(key, data)
    assert line is not None  # without a limit there is always room
    files.add(line)


def _stored(files: RecordFile, plan: Description, progress: TerminalBar) -> dict[int, bool]:
    """Return which images are stored, by their numbers, and whether as coefficients. Each is read and checked."""
    stored: dict[int, bool] = {}
    for number, (_, *place) in enumerate(plan.places(files)[:-1].tolist()):
        data = files.read(*place) if place[1] else None
        if data is not None:
            stored[number] = is_record(data)
            progress.advance()
    return stored


def _made(
    listing: Listing, left: list[int], options: PackOptions, workers: int | None
) -> Generator[bytes | str, None, None]:
    """Yield what is stored of files, by their numbers and in order; or, as text, why they cannot be packed."""
    workers = processors() if workers is None else workers

    def make(number: int) -> bytes | str:
        try:
            path = os.path.join(listing.root, *listing.names[number].split("/"))
            refuse_pipe(path)
            with open(path, "rb") as file:
                return encode(file.read(), options)
        except MemoryError:
            raise
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    if workers == 1:
        yield from map(make, left)
        return
    with ThreadPoolExecutor(workers) as executor:  # nearly all of it is done without the interpreter's lock
        for first in range(0, len(left), _AT_ONCE * workers):
            yield from executor.map(make, left[first : first + _AT_ONCE * workers])


def _finished(
    folder: str, files: RecordFile, plan: Description, listing: Listing, stored: dict[int, bool]
) -> Description:
    """Write the names and the description of a pack in which all is stored; return that."""
    numbers = sorted(stored)
    names = json.dumps([listing.names[number] for number in numbers]).encode()
    _, *place = plan.places(files)[-1].tolist()
    if bytes(files.read(*place) or b"") != names:
        _append(files, plan.key(NAMES), names)
    files.flush()
    labels = Counter(listing.labels[number] for number in numbers)
    description = replace(
        plan,
        files=files.sizes(),
        images_per_class=[labels[label] for label in range(len(plan.classes))],
        skipped={name: number for number, name in enumerate(listing.names) if number not in stored},
        num_records=sum(stored.values()),
    )
    if description != read_description(folder):
        description.write(folder)
    return description


def _refused(failures: Failures) -> PackError:
    lines = [f"  {name}: {reason}" for name, reason in failures[:_SHOWN]]
    if len(failures) > _SHOWN:
        lines.append(f"  and {len(failures) - _SHOWN:,} more")
    what = "file" if len(failures) == 1 else "files"
    return PackError(
        "\n".join([f"{len(failures):,} {what} cannot be packed:", *lines])
        + "\nrun again with --on-error skip to leave them out: what was packed so far is kept. If files are mended or "
        "removed instead, the folder has to be packed from the beginning"
    )
