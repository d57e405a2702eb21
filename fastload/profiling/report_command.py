"""``fastload report`` and ``fastload compare``: their options, and what they do; and the files that a recording gets.

In: the folder of a recording, or its ``profile.json``. Out: the card, or a file. Nothing that takes time is imported
before it is needed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TextIO

from ..errors import TraceError
from .analysis import LARGEST, Analysis
from .card import print_card, write_lines
from .reading import SETTINGS

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
            from .scalars import write_scalars

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
    from .comparing import compare as compared
    from .comparing import in_words

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
            from .explained import analysis_of

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
    "HTML",
    "JSON",
    "REPORT_EPILOG",
    "TRACE",
    "add_compare_options",
    "add_report_options",
    "compare",
    "load_analysis",
    "print_card",
    "rendered",
    "report",
    "write_reports",
]
