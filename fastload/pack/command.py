"""The command lines of ``fastload pack`` and ``fastload unpack``. What takes time is imported when it is needed."""

from __future__ import annotations

import argparse
import sys
import time

from ..errors import PackError

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
    parser.add_argument("--max-side", type=int, metavar="N", help="shrink images until the longer side is at most N")
    parser.add_argument("--min-side", type=int, metavar="N", help="shrink images until the shorter side is at most N")
    parser.add_argument(
        "--quality",
        type=int,
        metavar="Q",
        help="store every image as a JPEG of this quality, 1 to 95 (default: only those that are shrunk, with 90)",
    )
    parser.add_argument("--raw", action="store_true", help="store pixels: large, but nothing to decode")
    parser.add_argument(
        "--coefficients",
        action="store_true",
        help="store JPEG files without their Huffman codes: the same pixels, faster to decode, 1.4 times the bytes",
    )
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
    from .description import PackOptions

    wanted = PackOptions(**{name: getattr(options, name) for name in PackOptions.__slots__})
    began = time.monotonic()
    try:
        from .run import pack as pack_folder

        done = pack_folder(
            options.source, options.destination, wanted, workers=options.workers, on_error=options.on_error
        )
    except (PackError, OSError, KeyboardInterrupt) as error:
        return _ended("pack", error, options.destination)
    for name, reason in done.skipped:
        print(f"fastload pack: left out {name}: {reason}", file=sys.stderr)
    description = done.description
    before = f" ({done.num_before:,} were stored before)" if done.num_before else ""
    num_others = done.num_images - (description.num_records or 0)
    if options.coefficients and num_others:
        print(
            f"{num_others:,} of {done.num_images:,} images are no baseline JPEG files of one scan: they are stored as "
            "they are"
        )
    num_bytes = sum((description.files or {}).values())
    share = num_bytes / max(1, description.source["bytes"])
    print(
        f"{done.num_images:,} images of {len(description.classes):,} classes in {_printable(options)}{before}, "
        f"{num_bytes / 1e6:,.1f} MB ({share:.0%} of the source), {time.monotonic() - began:.1f} s"
    )
    return 0


def add_unpack_options(parser: argparse.ArgumentParser) -> None:
    """Give a parser the options of ``fastload unpack``."""
    parser.add_argument("source", metavar="SRC", help="the folder of a pack")
    parser.add_argument("destination", metavar="DST", help="a new folder, or one to continue; no file is overwritten")


def unpack(options: argparse.Namespace) -> int:
    """Write the files of a pack back into a folder for each class, as for ImageFolder.

    Coefficients become JPEG files that have them, pixels PPM files; all else is written as it is stored. The pack may
    be one of the old format, in Arrow files.
    """
    began = time.monotonic()
    try:
        from .unpack import unpack as unpack_folder

        done = unpack_folder(options.source, options.destination)
    except (PackError, OSError, KeyboardInterrupt) as error:
        return _ended("unpack", error, options.destination)
    before = f" ({done.num_before:,} were there before)" if done.num_before else ""
    size, taken = done.num_bytes / 1e6, time.monotonic() - began
    print(f"{done.num_images:,} files in {_printable(options)}{before}, {size:,.1f} MB, {taken:.1f} s")
    return 0


def _ended(command: str, error: BaseException, destination: str) -> int:
    """Print why a command ended early; return its status."""
    if isinstance(error, KeyboardInterrupt):
        print(f"fastload {command}: interrupted; the same command continues where this one stopped", file=sys.stderr)
        return 130
    where = ""
    if isinstance(error, OSError) and error.filename is None:  # errors of the source name their file
        where = f", while {destination} was written; once that is mended, the same command continues"
    print(f"fastload {command}: {error}{where}", file=sys.stderr)
    return 1


def _printable(options: argparse.Namespace) -> str:
    """Return the destination's name, which may have characters that standard output cannot encode."""
    encoding = sys.stdout.encoding or "utf-8"
    name: str = options.destination
    return name.encode(encoding, "backslashreplace").decode(encoding)
