"""Cells and tables, with the rows that they come from, to Markdown."""

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal

from benchmarks.figures.rows import Row

_WIDTH = 118


@dataclass(frozen=True)
class Cell:
    """What stands in a table, and where it comes from."""

    text: str
    rows: tuple[Row, ...] = ()


@dataclass(frozen=True)
class Line:
    """A line of a table."""

    cells: tuple[Cell, ...]

    @property
    def rows(self) -> list[Row]:
        """All that the line shows."""
        return [row for cell in self.cells for row in cell.rows]


def line(*cells: str | Cell) -> Line:
    """Return a line of cells; a text is one that no row stands behind."""
    return Line(tuple(Cell(cell) if isinstance(cell, str) else cell for cell in cells))


def _decimals(value: float, decimals: int) -> str:
    """Return a number with so many decimals, rounded as people round: 2.25 to 2.3."""
    exact = Decimal(repr(value)).quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP)
    return f"{exact:,}"


def digits(value: float) -> str:
    """Return a ratio with two digits that count: 0.99, 2.3, 73."""
    magnitude = abs(value)
    return _decimals(value, 2 if magnitude < 0.995 else 1 if magnitude < 9.95 else 0)


def rate(value: float) -> str:
    """Return a number of things a second, or of milliseconds, with three digits that count or more."""
    if value >= 100_000:
        return _decimals(1000 * round(value / 1000), 0)
    return _decimals(value, 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3)


def value_cell(row: Row, *, unit: str = "", with_spread: bool = False) -> Cell:
    """Return a row's value; empty if it is not known."""
    if row.value is None:
        return Cell("", (row,))
    text = rate(row.value) + unit
    if with_spread and row.low is not None and row.high is not None:
        text += f" ({rate(row.low)} to {rate(row.high)})"
    return Cell(text, (row,))


def ratio_cell(row: Row, *, with_spread: bool = False) -> Cell:
    """Return a row's ratio; empty if it is not known."""
    if row.ratio is None:
        return Cell("", (row,))
    text = digits(row.ratio)
    if with_spread and row.ratio_low is not None and row.ratio_high is not None:
        text += f" ({digits(row.ratio_low)} to {digits(row.ratio_high)})"
    return Cell(text, (row,))


def source(rows: Iterable[Row], *, short: bool = False) -> str:
    """Return when, where and with what rows of one run were measured."""
    rows = list(rows)
    first = rows[0]
    counts = sorted({row.n for row in rows if row.n is not None})
    others = [float(row.others) for row in rows if row.others not in ("", "quiet", "busy")]
    busy = "busy" if any(row.others == "busy" for row in rows) else ""
    if max(others, default=0) >= 0.1:
        busy = f"other work took {max(others):.1f} cores"
    if not busy and (others or any(row.others == "quiet" for row in rows)):
        busy = "otherwise idle"
    n = f"n={counts[0]}" + (f" to {counts[-1]}" if len(counts) > 1 else "") if counts else "n was not noted"
    common = [
        version
        for version in first.versions.split(", ")
        if all(version in row.versions.split(", ") for row in rows) and not version.startswith("numpy")
    ]
    versions = ", ".join(common[:4] if short else common)
    commit = "" if short or not first.commit else f"commit {first.commit}"
    parts = [first.date, first.machine, busy, versions, commit, n]
    return "; ".join(part for part in parts if part)


def markdown(head: Sequence[str], lines: Sequence[Line], *, about: str = "", short: bool = False) -> str:
    """Return a table, and below it what it shows (``about``) and where its rows come from.

    Rows of several runs cannot be compared with each other: the table gets a last column that numbers the runs.
    """
    runs: dict[tuple[str, str, str], list[Row]] = {}
    for one in lines:
        for row in one.rows:
            runs.setdefault(row.run, []).append(row)
    numbers = {run: str(number) for number, run in enumerate(runs, 1)}
    several = len(runs) > 1
    texts = [[*head, "run"] if several else list(head), ["---"] * (len(head) + several)]
    for one in lines:
        own = ", ".join(dict.fromkeys(numbers[row.run] for row in one.rows))
        cells = [cell.text.replace("|", "\\|") for cell in one.cells]
        texts.append([*cells, own] if several else cells)
    table = "\n".join(f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in texts)
    notes = [
        f"{f'Run {numbers[run]}' if several else 'Measured'}: {source(rows, short=short)}."
        for run, rows in runs.items()
    ]
    below = textwrap.fill(" ".join([*([about] if about else []), *notes]), _WIDTH, break_on_hyphens=False)
    return f"{table}\n\n{below}" if below else table
