"""``fastload profile``, ``fastload report`` and ``fastload compare``: their options and what they do.

The script runs in its own process and keeps its standard output and exit status; the profiler prints to standard error
and writes into the recording's folder. Slow imports happen only where they are needed.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import itertools
import os
import shutil
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from ..base.console import show
from ..errors import ConfigError, TraceError
from ..run.child import Child, exit_status
from ..run.targets import UsageError, add_json_option, positive, write_json
from .recording import begin, empty_folder
from .schema import Analysis
from .trace import Trace

REPORTS = {"json": "profile.json", "html": "profile.html", "perfetto": "trace.json"}
"""Files in a recording's folder, by kind."""

EPILOG = """\
examples:  fastload profile train.py --epochs 3
           fastload profile --steps 500 -m package.train
           fastload profile --full -- torchrun --nproc-per-node=2 train.py

status:    the script's own; 2 if the command was not understood, or nothing was recorded
"""

REPORT_EPILOG = """\
examples:  fastload report fastload-profile-20260305-143000
           fastload report fastload-profile-20260305-143000 --html -o page.html

status:    0 reported; 1 it could not be read or written; 2 the command was not understood
"""

COMPARE_EPILOG = """\
examples:  fastload compare before after
           fastload compare fastload-profile-20260305-143000 fastload-profile-20260305-151500

status:    0 compared; 1 one of them could not be read; 2 the command was not understood
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fastload profile`` to a parser."""
    parser.add_argument("--steps", type=positive, default=200, metavar="N", help="end the script after N steps (200)")
    parser.add_argument(
        "--warmup", type=_not_negative, default=20, metavar="M", help="steps before these that do not count (20)"
    )
    parser.add_argument("--full", action="store_true", help="let the script run to its end")
    parser.add_argument(
        "--level", type=int, choices=(1, 2), default=1, help="1: waits, tasks and samples; 2: stages too (1)"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="a new folder for the recording (fastload-profile-...)")
    add_json_option(parser)


def _not_negative(word: str) -> int:
    if not word.isdigit():
        raise argparse.ArgumentTypeError(f"must be an integer of at least 0, got {word!r}")
    return int(word)


def record_script(options: argparse.Namespace, program: Sequence[str], command: list[str]) -> int:
    """Run a script, record it, and report on it.

    ``program`` starts it, and ``command`` is what the user wrote. Returns its exit status, as in a shell; 2 instead of
    0 if nothing was recorded.

    Raises:
        ConfigError: the recording's folder cannot be made or is not empty.
    """
    folder = empty_folder(options.out or _new_folder(), "--out")
    stop_after = None if options.full else options.warmup + options.steps
    wanted = begin(folder, level=options.level, stop_after=stop_after, command=command, warmup=options.warmup)
    _tell(f"fastload profile: {_plan(options)}\n")
    print(end="", flush=True)  # standard output may be closed
    to_output = sys.stderr.fileno() if options.json == "-" else None  # of the script
    with Child(program, env={**os.environ, **wanted}, stdout=to_output) as child:
        pass
    status = exit_status(child.process.wait())
    try:
        trace, analysis = _read(folder)
        for kind, name in REPORTS.items():
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                _report(trace, analysis, kind, file)
        if options.json != "-":
            _report(trace, analysis, "text", sys.stderr)
        write_json(options.json, analysis.to_json())
        _tell(f"page: {os.path.relpath(os.path.join(folder, REPORTS['html']))}\n")
    except TraceError as error:
        _tell(f"fastload profile: {str(error).removeprefix(f'{folder}: ')}\n")
        if not list(Path(folder).glob("*.ring")):  # nothing was recorded
            shutil.rmtree(folder, ignore_errors=True)
        return status or 2
    except (OSError, UsageError) as error:  # such as a full disk: the status is the script's all the same
        _tell(f"fastload profile: {error}\n")
    except Exception:  # a bug of fastload: the same
        _tell(traceback.format_exc())
    return status


def _plan(options: argparse.Namespace) -> str:
    """Return what the user is about to see, in words."""
    if options.full:
        return "records the script until it ends"
    warm = f" (the first {options.warmup} are warm-up)" if options.warmup else ""
    return (
        f"records {options.warmup + options.steps} steps{warm}, and then ends the script; --steps N changes "
        "the number, --full lets the script run to its end"
    )


def _tell(text: str) -> None:
    with contextlib.suppress(Exception):  # standard error may be on a full disk
        print(text, file=sys.stderr, end="")


def _new_folder() -> Path:
    """Make a folder with a new name: others may be made at the same time (with srun, for example)."""
    now = datetime.datetime.now().astimezone()
    for number in itertools.count(1):
        path = Path(f"fastload-profile-{now:%Y%m%d-%H%M%S}{'' if number == 1 else f'-{number}'}")
        try:
            path.mkdir()
            break
        except FileExistsError:
            continue
        except OSError as error:
            raise ConfigError(f"{path} cannot be made: {error.strerror}; name a folder with --out") from error
    return path


def add_report_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fastload report`` to a parser."""
    parser.add_argument("recording", metavar="DIR", help="a recording's folder")
    kinds = parser.add_mutually_exclusive_group()
    for kind, words in (
        ("text", "the summary (default)"),
        ("html", "one HTML file that needs nothing else"),
        ("perfetto", "a trace for ui.perfetto.dev and chrome://tracing"),
        ("json", "the analysis"),
    ):
        kinds.add_argument(f"--{kind}", dest="kind", action="store_const", const=kind, help=words)
    parser.add_argument("-o", "--output", metavar="FILE", help="output file (standard output)")
    parser.set_defaults(kind="text")


def add_compare_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fastload compare`` to a parser."""
    parser.add_argument("before", metavar="A", help="a recording's folder")
    parser.add_argument("after", metavar="B", help="the same of another recording")


def report(options: argparse.Namespace) -> int:
    """Show a recording again: as a card, a page, a trace for Perfetto, or JSON."""
    try:
        trace, analysis = _read(options.recording)
        if options.output is not None:
            with open(options.output, "w", encoding="utf-8") as file:
                _report(trace, analysis, options.kind, file)
        else:
            _report(trace, analysis, options.kind, sys.stdout)
    except BrokenPipeError:
        raise
    except (TraceError, OSError) as error:
        print(f"fastload report: {error}", file=sys.stderr)
        return 1
    return 0


def _read(folder: str) -> tuple[Trace, Analysis]:
    from .analyze import analyze
    from .reader import read_trace

    trace = read_trace(folder)
    return trace, analyze(trace)


def _report(trace: Trace, analysis: Analysis, kind: str, file: TextIO) -> None:
    """Write a report: ``text``, ``html``, ``perfetto`` or ``json``."""
    if kind == "text":
        from .summary import summary

        show(summary(analysis), file=file)
    elif kind == "html":
        from .page import page

        print(page(analysis), file=file, end="")
    elif kind == "perfetto":
        from .perfetto import trace_json

        print(trace_json(trace.ranks, analysis), file=file)
    else:
        print(analysis.to_json(), file=file)


def compare(options: argparse.Namespace) -> int:
    """Compare two recordings: the time of a step, its stall and what it was charged to, and the verdicts."""
    from .analyze import analysis_of
    from .compare import compare as compared

    try:
        found = compared(analysis_of(options.before), analysis_of(options.after))
    except (TraceError, OSError) as error:
        print(f"fastload compare: {error}", file=sys.stderr)
        return 1
    show(*found)
    return 0
