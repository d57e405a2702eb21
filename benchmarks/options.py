"""Options that the programs here have in common."""

import argparse
import os
from pathlib import Path


def add_data(parser: argparse.ArgumentParser) -> None:
    """Add ``--data``: real images."""
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
    parser.add_argument("--rows", type=Path, metavar="FILE", help="append rows for README.md's table to FILE")
