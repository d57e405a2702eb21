"""Rows: one line of a CSV file for each result, with where and how it was measured."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from decimal import Decimal
from pathlib import Path

ROWS = Path(__file__).parents[1] / "rows"
"""The folder of the committed rows; the name of a file in it is that of a suite."""


class BadRow(ValueError):
    """A file of rows cannot be read, or has no row that a table needs."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One result: a metric of a side in a case. What is not known is None, or empty."""

    case: str
    """What was measured, with its settings."""
    side: str
    """Which of the things that were compared: "torch", "fastload", a library."""
    metric: str
    """What the number is; contains its unit."""
    value: float | None = None
    """The median, unless ``note`` says otherwise."""
    low: float | None = None
    """Lower end of the spread of the values."""
    high: float | None = None
    """Upper end of the spread of the values."""
    spread: str = ""
    """What ``low`` and ``high`` are: "quartiles", "min, max", "95 %"."""
    n: int | None = None
    """How many values there are."""
    ratio: float | None = None
    """How many times as good the first is as the second of ``ratio_of``: of rates theirs, of times the inverse."""
    ratio_low: float | None = None
    """Lower end of the spread of the ratio."""
    ratio_high: float | None = None
    """Upper end of the spread of the ratio."""
    ratio_spread: str = ""
    """What ``ratio_low`` and ``ratio_high`` are."""
    ratio_of: str = ""
    """Two sides: "fastload / torch"."""
    others: str = ""
    """Cores that worked for something else meanwhile, on average; "quiet" or "busy" where only that was noted."""
    date: str = ""
    """Day, as YYYY-MM-DD in UTC."""
    commit: str = ""
    """Short commit id of fastload; a plus sign behind it if the tree had other changes."""
    machine: str = ""
    """Processor, cores, memory, kernel."""
    versions: str = ""
    """Of Python and of the packages that matter."""
    command: str = ""
    """What was run, without the folders of the machine."""
    note: str = ""
    """What else a reader must know."""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.case, self.side, self.metric

    @property
    def run(self) -> tuple[str, str, str]:
        """Rows of one run can be compared with each other: day, commit and machine."""
        return self.date, self.commit, self.machine


COLUMNS = tuple(field.name for field in fields(Row))
_NUMBERS = {"value", "low", "high", "ratio", "ratio_low", "ratio_high"}


def _number_text(value: float) -> str:
    """Return six digits that count at most, never with an exponent."""
    text = f"{Decimal(f'{value:.6g}'):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _text(value: object) -> str:
    if value is None:
        return ""
    return _number_text(value) if isinstance(value, float) else str(value)


def append_rows(file: Path | None, rows: Iterable[Row]) -> None:
    """Append rows to a CSV file, if one was named; a new file gets a line with the columns first."""
    if file is None:
        return
    is_new = not file.exists() or file.stat().st_size == 0
    if not is_new:
        read_file(file)
    with file.open("a", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        if is_new:
            writer.writerow(COLUMNS)
        writer.writerows([_text(getattr(row, name)) for name in COLUMNS] for row in rows)


def read_file(file: Path) -> list[Row]:
    with file.open(encoding="utf-8", newline="") as stream:
        reader = csv.reader(stream)
        head = next(reader, [])
        if tuple(head) != COLUMNS:
            raise BadRow(f"{file} must have the columns {','.join(COLUMNS)}, but has {','.join(head)}")
        return [_row(cells, f"{file}, line {reader.line_num}") for cells in reader]


def _row(cells: Sequence[str], where: str) -> Row:
    if len(cells) != len(COLUMNS):
        raise BadRow(f"{where} must have {len(COLUMNS)} cells, but has {len(cells)}")
    texts = dict(zip(COLUMNS, cells, strict=True))
    known: dict[str, object] = {}
    for name, text in texts.items():
        try:
            if name == "n":
                known[name] = int(text) if text else None
            elif name in _NUMBERS:
                known[name] = float(text) if text else None
            else:
                known[name] = text
        except ValueError:
            raise BadRow(f"{where}: {name} must be a number or empty, but is {text!r}") from None
    return Row(**known)  # type: ignore[arg-type]


class Rows:
    """All rows; of those with the same suite, case, side and metric the last one counts."""

    def __init__(self, suites: Mapping[str, Sequence[Row]]) -> None:
        self._all = suites
        self._newest = {suite: {row.key: row for row in rows} for suite, rows in suites.items()}

    def suite(self, suite: str) -> list[Row]:
        """Return the rows of a suite that count, in the order in which their keys came first."""
        return list(self._newest.get(suite, {}).values())

    def all_of(self, suite: str, case: str) -> list[Row]:
        return [row for row in self._all.get(suite, []) if row.case == case]

    def get(self, suite: str, case: str, side: str, metric: str) -> Row | None:
        """Return the row that counts, or None if there is none."""
        return self._newest.get(suite, {}).get((case, side, metric))

    def find(self, suite: str, case: str, side: str, metric: str) -> Row:
        row = self.get(suite, case, side, metric)
        if row is None:
            raise BadRow(f"rows/{suite}.csv has no row of case {case!r}, side {side!r}, metric {metric!r}")
        return row

    def last(self, suite: str, key: tuple[str, str, str], run: tuple[str, str, str]) -> Row | None:
        """Return the last row of a key that is from a run, or None if there is none."""
        return next((one for one in reversed(self._all.get(suite, [])) if (one.key, one.run) == (key, run)), None)

    def fullest_run(self, suite: str, case: str, metric: str) -> list[Row]:
        """Return the rows of the run that measured most sides of a case; of several such, of the last one."""
        runs: dict[tuple[str, str, str], dict[str, Row]] = {}
        for row in self._all.get(suite, []):
            if (row.case, row.metric) == (case, metric):
                runs.setdefault(row.run, {})[row.side] = row
        return list(max(reversed(runs.values()), key=len, default={}).values())

    def beside(self, suite: str, row: Row, side: str = "", metric: str = "") -> Row:
        """Return the row of another side or metric that was measured in the same run."""
        side, metric = side or row.side, metric or row.metric
        found = self.last(suite, (row.case, side, metric), row.run)
        if found is None:
            raise BadRow(
                f"rows/{suite}.csv has no row of case {row.case!r}, side {side!r}, metric {metric!r} "
                f"in the run of {row.date}, commit {row.commit}"
            )
        return found


def read_rows(folder: Path = ROWS) -> Rows:
    return Rows({file.stem: read_file(file) for file in sorted(folder.glob("*.csv"))})
