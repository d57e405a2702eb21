"""Cells and tables, with the rows that they come from, to Markdown."""

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
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
    """Return a number of things a second, or of milliseconds, with three digits that count; zeros at the end do not."""
    if value >= 100_000:
        return _decimals(1000 * round(value / 1000), 0)
    text = _decimals(value, 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3)
    return text.rstrip("0").rstrip(".") if "." in text else text


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


def source(rows: Sequence[Row], *, short: bool = False) -> dict[str, str]:
    """Return when, on what, beside what and with what rows of one run were measured; what was not noted is empty."""
    first = rows[0]
    others = [float(row.others) for row in rows if row.others not in ("", "quiet", "busy")]
    if max(others, default=0) >= 0.1:
        load = f"other work took {max(others):.1f} cores"
    elif any(row.others == "busy" for row in rows):
        load = "busy with other work"
    else:
        load = "otherwise idle" if others or first.others == "quiet" else ""
    of_all = [text for text in first.versions.split(", ") if all(text in row.versions.split(", ") for row in rows)]
    versions = ", ".join(text for text in of_all if not text.startswith("numpy"))
    counts = sorted({row.n for row in rows if row.n is not None})
    n = f"n={counts[0]}" + (f" to {counts[-1]}" if len(counts) > 1 else "") if counts else ""
    commit = "" if short or not first.commit else f"commit {first.commit}"
    return {"date": first.date, "commit": commit, "machine": first.machine, "load": load, "versions": versions, "n": n}


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
    table = "\n".join("|" + "".join(f" {cell} |" if cell else " |" for cell in cells) for cells in texts)
    below = textwrap.fill(" ".join([about, *_sources(runs, short)]).strip(), _WIDTH, break_on_hyphens=False)
    return f"{table}\n\n{below}" if below else table


def _sources(runs: Mapping[tuple[str, str, str], Sequence[Row]], short: bool) -> list[str]:
    """Return a sentence for each run; what is the same in most of several runs comes first, and once."""
    parts = [source(rows, short=short) for rows in runs.values()]
    if len(parts) < 2:
        return [f"Measured: {'; '.join(filter(None, part.values()))}." for part in parts]
    usual = {}
    for name in parts[0]:
        text, count = Counter(part[name] for part in parts).most_common(1)[0]
        if text and 2 * count > len(parts):
            usual[name] = text
    own = [
        [text or f"{name} not noted" for name, text in part.items() if text != usual.get(name, "")] for part in parts
    ]
    sentences = [f"Run {number}: {'; '.join(part)}." for number, part in enumerate(own, 1) if part]
    if not usual:
        return sentences
    everywhere = all(part[name] == text for name, text in usual.items() for part in parts)
    return [f"{'All' if everywhere else 'Unless a run says otherwise'}: {'; '.join(usual.values())}.", *sentences]
