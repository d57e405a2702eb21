"""``fastload profile``, ``fastload report`` and ``fastload compare``: their options and what they do.

The script runs in its own process and keeps its standard output and exit status; the profiler prints to standard error
and writes into the recording's folder. Slow imports happen only where they are needed.
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
from typing import Any, TextIO

from ..errors import TraceError
from ..targets import signals_passed_on
from .analysis import LARGEST, Analysis
from .recording import SETTINGS, add_settings, write_settings
from .summary import print_card, write_lines

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
        _report_on(folder)
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


def _report_on(folder: str) -> None:
    """Explain a recording: files in its folder, and a card on standard error.

    Raises:
        TraceError: there is nothing to explain.
        OSError: a file cannot be written.
    """
    from .analyze import analysis_of
    from .summary import print_card

    analysis = analysis_of(folder)
    write_reports(analysis, folder)
    print_card(analysis, sys.stderr)


JSON, HTML, TRACE = "profile.json", "profile.html", "trace.json"
"""Files of a recording's folder."""

REPORT_EPILOG = """\
examples:  fastload report fastload-profile-20260305-143000
           fastload report fastload-profile-20260305-143000 --html -o page.html

status:    0 reported; 1 it could not be read or written; 2 the command was not understood
"""

COMPARE_EPILOG = """\
examples:  fastload compare before after
           fastload compare before/profile.json after/profile.json --json

status:    0 compared; 1 one of them could not be read; 2 the command was not understood
"""


def add_report_options(parser: argparse.ArgumentParser) -> None:
    """Give a parser the options of ``fastload report``."""
    parser.add_argument("recording", metavar="DIR", help="a recording's folder, or its profile.json")
    kinds = parser.add_mutually_exclusive_group()
    for kind, words in (
        ("text", "the card (what is printed without any of these)"),
        ("html", "one HTML file that needs nothing else"),
        ("perfetto", "a trace for ui.perfetto.dev and chrome://tracing"),
        ("json", "the analysis"),
    ):
        kinds.add_argument(f"--{kind}", dest="kind", action="store_const", const=kind, help=words)
    kinds.add_argument("--tensorboard", metavar="FOLDER", help="scalars for TensorBoard, into this folder")
    parser.add_argument("-o", "--output", metavar="FILE", help="where to (standard output); not with --tensorboard")
    parser.set_defaults(kind="text")


def add_compare_options(parser: argparse.ArgumentParser) -> None:
    """Give a parser the options of ``fastload compare``."""
    parser.add_argument("before", metavar="A", help="a recording's folder, or its profile.json")
    parser.add_argument("after", metavar="B", help="the same of another recording")
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")


def report(options: argparse.Namespace) -> int:
    """Carry out ``fastload report``; return the exit status."""
    from ..errors import ConfigError

    if options.tensorboard is not None and options.output is not None:
        print("fastload report: --tensorboard names its folder itself; leave -o out", file=sys.stderr)
        return 2
    try:
        analysis = load_analysis(options.recording)
        if options.tensorboard is not None:
            from .tensorboard import write_scalars

            write_scalars(analysis, options.tensorboard)
        elif options.output is None:
            _print(analysis, options.kind)
        else:
            with open(options.output, "w", encoding="utf-8") as file:
                _print(analysis, options.kind, file)
    except (ConfigError, TraceError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        print(f"fastload report: {error}", file=sys.stderr)
        return 1
    return 0


def _print(analysis: Analysis, kind: str, file: TextIO | None = None) -> None:
    out = sys.stdout if file is None else file
    if kind == "text":
        print_card(analysis, out)
    else:
        print(rendered(analysis, kind), file=out, end="")


def rendered(analysis: Analysis, kind: str) -> str:
    """Return a report's text: ``html``, ``perfetto`` or ``json``."""
    if kind == "html":
        from .page import page

        return page(analysis)
    if kind == "perfetto":
        from .perfetto import trace_json

        return trace_json(analysis) + "\n"
    return analysis.to_json() + "\n"


def compare(options: argparse.Namespace) -> int:
    """Carry out ``fastload compare``; return the exit status."""
    from .compare import compare as compared
    from .compare import in_words

    try:
        comparison = compared(load_analysis(options.before), load_analysis(options.after))
    except (TraceError, OSError) as error:
        print(f"fastload compare: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(comparison.to_json())
    else:
        write_lines(sys.stdout, lambda columns: in_words(comparison, columns))
    return 0


def load_analysis(where: str) -> Analysis:
    """Read an analysis; make it, where a folder has the recording alone, as :func:`fastload.profile` leaves it.

    Args:
        where: a recording's folder, or a file.

    Raises:
        TraceError: it is none, or cannot be read.
    """
    path = Path(where)
    if path.is_dir():
        if not (path / JSON).exists() and (path / SETTINGS).exists():
            from .analyze import analysis_of

            return analysis_of(where)
        path = path / JSON
    try:
        with open(path, "rb") as file:
            text = file.read(LARGEST + 1).decode()  # one more is refused
    except FileNotFoundError:
        raise TraceError(f"there is no {path}; name a folder that fastload profile made, or its {JSON}") from None
    except (OSError, ValueError) as error:
        raise TraceError(f"{path} cannot be read: {error}; name a file that fastload profile wrote") from error
    return Analysis.from_json(text, str(path))


def write_reports(analysis: Analysis, folder: str) -> None:
    """Write a recording's reports into its folder: ``profile.json``, ``profile.html``, ``trace.json``.

    Raises:
        OSError: one cannot be written.
    """
    for name, kind in ((JSON, "json"), (HTML, "html"), (TRACE, "perfetto")):
        Path(folder, name).write_text(rendered(analysis, kind), encoding="utf-8")


__all__ = [
    "COMPARE_EPILOG",
    "EPILOG",
    "HTML",
    "JSON",
    "REPORT_EPILOG",
    "TRACE",
    "VALUED",
    "FolderError",
    "add_compare_options",
    "add_options",
    "add_report_options",
    "compare",
    "load_analysis",
    "print_card",
    "record_script",
    "rendered",
    "report",
    "write_reports",
]
