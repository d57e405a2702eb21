"""Options that the programs here have in common."""

import argparse
import os
from pathlib import Path

from benchmarks.figures.rows import ROWS, BadRow, append_rows


def add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data",
        type=Path,
        default=os.environ.get("FASTLOAD_BENCH_DATA"),
        metavar="DIR",
        help="an ImageFolder tree of JPEGs, or a folder that holds one called train (default: $FASTLOAD_BENCH_DATA)",
    )


def add_outputs(parser: argparse.ArgumentParser) -> None:
    """Add ``--json`` and ``--rows``: files that get what was measured."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="append a JSON line for each result to FILE")
    add_rows(parser)


def add_rows(parser: argparse.ArgumentParser) -> None:
    """Add ``--rows``: a file of rows, from which tables are rendered."""
    parser.add_argument(
        "--rows",
        type=Path,
        metavar="FILE",
        help="append rows to FILE, such as benchmarks/rows/NAME.csv; then: python -m benchmarks.figures",
    )


def check_outputs(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """End the program if the rows would be of a run that nobody should quote, or cannot be appended to their file."""
    for name in ("quick", "control"):
        if getattr(options, name, False) and options.rows is not None and options.rows.resolve().parent == ROWS:
            parser.error(f"--rows must not be a file of {ROWS} with --{name}: such figures are not to be quoted")
    if options.rows is not None:
        try:
            append_rows(options.rows, ())
        except (BadRow, OSError) as error:
            parser.error(f"--rows: {error}")
