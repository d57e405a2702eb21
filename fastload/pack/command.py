"""The command lines of ``fastload pack`` and ``fastload unpack``. What takes time is imported when it is needed."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from ..errors import PackError
from .options import PackOptions

EPILOG = """\
examples:  fastload pack imagenet/train packed                                    the files as they are
           fastload pack imagenet/train packed --coefficients                     the same pixels, faster to decode
           fastload pack imagenet/train packed --max-side 500 --quality 90        smaller, as JPEG
           fastload pack imagenet/train packed --min-side 256 --raw               pixels: nothing to decode

fastload.images.PackedImages("packed", transform) is the dataset that replaces ImageFolder.
If the command is interrupted, run it again: it continues where it stopped.

status:    0 everything is packed; 1 something cannot be packed; 2 the command was not understood
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give a parser the options of ``fastload pack``."""
    parser.add_argument("source", metavar="SRC", help="a folder with a folder for each class, as for ImageFolder")
    parser.add_argument("destination", metavar="DST", help="the folder of the pack: a new one, or one to continue")
    for option in fields(PackOptions):
        how: dict[str, Any] = {"action": "store_true"} if option.default is False else {"type": int}
        parser.add_argument(f"--{option.name.replace('_', '-')}", **how, **option.metadata)
    parser.add_argument("--workers", type=int, metavar="N", help="number of threads (one for each core)")
    parser.add_argument(
        "--on-error",
        choices=("raise", "skip"),
        default="raise",
        help="files that cannot be decoded: fail and list them (raise), or leave them out (skip)",
    )


def pack(options: argparse.Namespace) -> int:
    """Store the images of an ImageFolder tree in two files, for slow disks and small CPUs.

    The files' bytes are stored as they are, or images are shrunk and encoded again, or their pixels are stored.
    """
    wanted = PackOptions(**{option.name: getattr(options, option.name) for option in fields(PackOptions)})

    def work() -> str:
        from .run import pack as pack_folder

        done = pack_folder(
            options.source, options.destination, wanted, workers=options.workers, on_error=options.on_error
        )
        for name, reason in done.skipped:
            print(f"fastload pack: left out {name}: {reason}", file=sys.stderr)
        description = done.description
        before = f" ({done.num_before:,} were stored before)" if done.num_before else ""
        num_others = done.num_images - (description.num_records or 0)
        if options.coefficients and num_others:
            print(
                f"{num_others:,} of {done.num_images:,} images are no baseline JPEG files of one scan: they are stored "
                "as they are"
            )
        num_bytes = sum((description.files or {}).values())
        share = num_bytes / max(1, description.source["bytes"])
        return (
            f"{done.num_images:,} images of {len(description.classes):,} classes in {options.destination}{before}, "
            f"{num_bytes / 1e6:,.1f} MB ({share:.0%} of the source)"
        )

    return _status_of(work, "pack", options.destination)


def add_unpack_options(parser: argparse.ArgumentParser) -> None:
    """Give a parser the options of ``fastload unpack``."""
    parser.add_argument("source", metavar="SRC", help="the folder of a pack")
    parser.add_argument("destination", metavar="DST", help="a new folder, or one to continue; no file is overwritten")


def unpack(options: argparse.Namespace) -> int:
    """Write the files of a pack back into a folder for each class, as for ImageFolder.

    Coefficients become JPEG files that have them, pixels PPM files; all else is written as it is stored.
    """

    def work() -> str:
        from .unpack import unpack as unpack_folder

        done = unpack_folder(options.source, options.destination)
        before = f" ({done.num_before:,} were there before)" if done.num_before else ""
        return f"{done.num_images:,} files in {options.destination}{before}, {done.num_bytes / 1e6:,.1f} MB"

    return _status_of(work, "unpack", options.destination)


def _status_of(work: Callable[[], str], command: str, destination: str) -> int:
    """Do what a command does, print what it returns or why it ended early, and return its status."""
    began = time.monotonic()
    try:
        done = f"{work()}, {time.monotonic() - began:.1f} s"
    except KeyboardInterrupt:
        print(f"fastload {command}: interrupted; the same command continues where this one stopped", file=sys.stderr)
        return 130
    except (PackError, OSError) as error:
        where = ""
        if isinstance(error, OSError) and error.filename is None:  # errors of the source name their file
            where = f", while {destination} was written; once that is mended, the same command continues"
        print(f"fastload {command}: {error}{where}", file=sys.stderr)
        return 1
    encoding = sys.stdout.encoding or "utf-8"  # the folder's name may have other characters
    print(done.encode(encoding, "backslashreplace").decode(encoding))
    return 0
