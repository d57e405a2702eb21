"""``fastload profile``: its options, and what it does. Nothing that takes time is imported before it is needed.

The script runs in a process of its own, which keeps its standard output and its exit status; what the profiler has to
say goes to standard error, and into the recording's folder.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import itertools
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import TraceError
from ..targets import signals_passed_on
from .reading import add_settings, write_settings

VALUED = ("--steps", "--warmup", "--level", "--out", "--ceiling")
"""The options that take a value, which may be the word after them."""

EPILOG = """\
examples:  fastload profile train.py --epochs 3
           fastload profile --steps 500 -m package.train
           fastload profile --full -- torchrun --nproc-per-node=2 train.py

status:    the script's own; 2 if the command was not understood, or nothing was recorded
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give a parser the options of ``fastload profile``."""
    parser.add_argument("--steps", type=_count, default=200, metavar="N", help="end the script after N steps (200)")
    parser.add_argument(
        "--warmup", type=_count_or_none, default=20, metavar="M", help="and M steps before them that do not count (20)"
    )
    end = parser.add_mutually_exclusive_group()
    end.add_argument("--full", action="store_true", help="let the script run to its end")
    end.add_argument(
        "--ceiling",
        type=_count,
        metavar="K",
        help="then as many steps again with the last K batches from a cache: what the loop can do at most",
    )
    parser.add_argument(
        "--level", type=int, choices=(0, 1, 2), default=1, help="0: waits and tasks; 1: samples too; 2: stages too (1)"
    )
    parser.add_argument(
        "--cold", action="store_true", help="take files out of memory before workers open them: what reading costs then"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="a new folder for the recording (fastload-profile-...)")


def _count(word: str) -> int:
    if not word.isdigit() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer, got {word!r}")
    return int(word)


def _count_or_none(word: str) -> int:
    if not word.isdigit():
        raise argparse.ArgumentTypeError(f"must be an integer of at least 0, got {word!r}")
    return int(word)


class FolderError(Exception):
    """Nothing can be recorded, as when its folder cannot be made; the message is one line for the user."""


def record_script(options: argparse.Namespace, program: Sequence[str], command: list[str], paths: Any) -> int:
    """Run a script, recorded, and report on it.

    Args:
        options: the parsed options.
        program: the words that start the script.
        command: as the user has named it.
        paths: changes an environment so that our ``sitecustomize`` is executed first.

    Returns:
        The script's exit status, as a shell has it; 2 where that would be 0, and nothing was recorded.

    Raises:
        FolderError: the recording's folder cannot be made, or is not empty; or this system has no ``--cold``.
    """
    if options.cold and not hasattr(os, "posix_fadvise"):
        raise FolderError("--cold needs posix_fadvise, which this system does not have; leave it out")
    folder = _folder(options.out)
    try:
        write_settings(folder, command=command, warmup=options.warmup, full=options.full, cold=options.cold)
    except OSError as error:
        raise FolderError(f"{folder} cannot be written to: {error.strerror}; name another folder with --out") from error
    environment = dict(os.environ)
    paths(environment)
    environment["FASTLOAD_PROFILE"] = json.dumps(
        {
            "folder": folder,
            "level": options.level,
            "cold": options.cold,
            "stop_after": None if options.full else options.warmup + options.steps,
            "cached": options.ceiling or 0,
            "again": options.steps,
        }
    )
    print(end="", flush=True)  # which may be closed
    with subprocess.Popen(program, env=environment) as process, signals_passed_on(process):
        ended = process.wait()
    status = 128 - ended if ended < 0 else ended
    try:
        add_settings(folder, status=status)
        report(folder)
    except TraceError as error:
        _tell(f"fastload profile: {error}\n")
        return status or 2
    except OSError as error:  # as a full disk: the status is the script's all the same
        _tell(f"fastload profile: {error}\n")
    except Exception:  # a mistake of ours: so too
        _tell(traceback.format_exc())
    return status


def _tell(text: str) -> None:
    with contextlib.suppress(Exception):  # standard error may be on a full disk
        print(text, file=sys.stderr, end="")


def _folder(wanted: Path | None) -> str:
    try:
        path = _new_folder() if wanted is None else wanted
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise FolderError(f"{path} is not empty; name a folder that does not exist yet with --out")
    except OSError as error:
        raise FolderError(
            f"{error.filename} cannot be made: {error.strerror}; name another folder with --out"
        ) from error
    return str(path.resolve())


def _new_folder() -> Path:
    """Make a folder with a name that says when; others may be started in the same second (srun does so)."""
    stem = f"fastload-profile-{datetime.datetime.now().astimezone():%Y%m%d-%H%M%S}"
    for name in itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2))):
        with contextlib.suppress(FileExistsError):
            Path(name).mkdir()
            return Path(name)
    raise AssertionError  # names are without end


def report(folder: str) -> None:
    """Explain a recording: files in its folder, and a card on standard error.

    Raises:
        TraceError: there is nothing to explain.
        OSError: a file cannot be written.
    """
    from .card import print_card
    from .explained import analysis_of
    from .report_command import write_reports

    analysis = analysis_of(folder)
    write_reports(analysis, folder)
    print_card(analysis, sys.stderr)


__all__ = ["EPILOG", "VALUED", "FolderError", "add_options", "record_script", "report"]
