"""The command line of ``fastload unpack``. Nothing that takes time is imported before it is needed."""

from __future__ import annotations

import argparse
import sys
import time

from ..errors import PackError


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give a parser the options of ``fastload unpack``."""
    parser.add_argument("source", metavar="SRC", help="the folder of a pack")
    parser.add_argument("destination", metavar="DST", help="a new folder, or one to continue; no file is overwritten")


def unpack(options: argparse.Namespace) -> int:
    """Write the files of a pack back into a folder for each class, as for ImageFolder.

    Coefficients become JPEG files that have them; all else is written as it is stored. Packs of pixels have no files.
    """
    began = time.monotonic()
    try:
        from .unpack import unpack as unpack_folder

        done = unpack_folder(options.source, options.destination)
    except (PackError, OSError) as error:
        print(f"fastload unpack: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("fastload unpack: interrupted; the same command continues where this one stopped", file=sys.stderr)
        return 130
    before = f" ({done.num_before:,} were there before)" if done.num_before else ""
    encoding = sys.stdout.encoding or "utf-8"  # the folder's name may have characters that it lacks
    destination = options.destination.encode(encoding, "backslashreplace").decode(encoding)
    size, taken = done.num_bytes / 1e6, time.monotonic() - began
    print(f"{done.num_images:,} files in {destination}{before}, {size:,.1f} MB, {taken:.1f} s")
    return 0
