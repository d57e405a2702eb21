"""What a verification found, as data, as JSON and as a table.

In: checks that were made. Out: text. rich is imported when a table is asked for.

Pure.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ..errors import FastloadError

Verdict = Literal["equal", "different", "skipped", "error"]

_MARKS = {
    "equal": ("=", "green"),
    "different": ("≠", "bold red"),
    "skipped": ("-", "yellow"),
    "error": ("!", "bold red"),
}


class NotDeterministic(FastloadError, AssertionError):
    """A verification found a difference; the message is its table, and names the stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first place where two records differ."""

    what: str
    """In a sentence."""
    epoch: int
    batch: int
    """In the epoch, from 0."""
    row: int | None
    """Place in the batch; None where its samples cannot be told apart."""
    position: int | None
    """Place in the epoch's order; in that of this loader, where it is one of several ranks."""
    index: str | None
    """In the dataset, as the sampler gave it."""
    leaf: str
    """Path in the sample, as it is written in Python; empty for the sample itself."""

    def place(self) -> str:
        """Return where it is, in words."""
        words = [f"epoch {self.epoch}", f"batch {self.batch}"]
        if self.row is not None:
            words.append(f"sample {self.row} in it")
        if self.position is not None:
            words.append(f"position {self.position}")
        if self.index is not None:
            words.append(f"dataset index {self.index}")
        if self.leaf:
            words.append(f"leaf {self.leaf}")
        return ", ".join(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """The first stage that makes the difference."""

    stage: str
    """Its repr, or what it is."""
    place: str
    """Where it stands: ``dataset.transform, stage 2 of 4``; empty where that says nothing."""
    certain: bool
    """Whether taking out the stages from it on makes the difference go away."""
    causes: list[str]
    """What was found in it, each with its remedy."""


@dataclass(slots=True, kw_only=True)
class Check:
    """One comparison."""

    name: str
    setting: str
    """In words; it is compared with the inline loader, or with torch's."""
    verdict: Verdict
    reason: str = ""
    """Why it was skipped, or the error; or what of it could not be compared."""
    seconds: float = 0.0
    num_batches: int = 0
    """Batches that were compared, over all epochs and ranks."""
    difference: Difference | None = None
    culprit: Culprit | None = None


@dataclass(slots=True, kw_only=True)
class VerifyReport:
    """What :func:`fastload.verify` found."""

    subject: str
    """What was verified, in words."""
    seed: int
    batches: int
    """Batches of an epoch that were loaded."""
    checks: list[Check] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What a reader should know of how it was done."""
    versions: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether at least one check was made, and all that were made came out equal."""
        made = [check for check in self.checks if check.verdict != "skipped"]
        return bool(made) and all(check.verdict == "equal" for check in made)

    def summary(self) -> str:
        """Return the result in one sentence."""
        counts = {verdict: sum(check.verdict == verdict for check in self.checks) for verdict in _MARKS}
        words = [f"{count} {verdict}" for verdict, count in counts.items() if count]
        if self.ok:
            outcome = "deterministic"
        elif counts["different"] or counts["error"]:
            outcome = "NOT deterministic" if counts["different"] else "could not be verified"
        else:
            outcome = "nothing was checked"
        return f"{outcome}: {', '.join(words)}, {self.seconds:.1f} s"

    def to_json(self) -> str:
        """Return everything as JSON (with ``"ok"`` and ``"version"``, of this format, beside the fields)."""
        return json.dumps({"version": 1, "ok": self.ok, "summary": self.summary(), **asdict(self)}, indent=2)

    def raise_for_difference(self) -> None:
        """Raise an error that says what differs, unless all is well.

        Raises:
            NotDeterministic: an AssertionError; something differs, could not be run, or nothing was checked at all.
        """
        if not self.ok:
            raise NotDeterministic("\n" + self.to_text())

    def to_text(self, width: int = 100) -> str:
        """Return the table as plain text of so many columns."""
        from rich.console import Console

        console = Console(width=width, no_color=True, highlight=False, force_terminal=False, legacy_windows=False)
        with console.capture() as captured:
            console.print(self.table())
        return "\n".join(line.rstrip() for line in captured.get().splitlines())

    def table(self) -> Any:
        """Return a rich renderable: a row for each check, and below it what differs and why."""
        from rich import box
        from rich.console import Group
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        rows = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
        rows.add_column("", no_wrap=True, width=1)
        rows.add_column("check", no_wrap=True)
        rows.add_column("setting", ratio=1)
        rows.add_column("result", no_wrap=True)
        rows.add_column("s", justify="right", no_wrap=True)
        last = ""
        for check in self.checks:
            mark, style = _MARKS[check.verdict]
            name, last = ("" if check.name == last else check.name), check.name
            rows.add_row(Text(mark, style), name, check.setting, Text(check.verdict, style), f"{check.seconds:.1f}")
        parts: list[Any] = [Text(self.subject, "bold"), Text(""), rows]
        for title, lines in (
            *self._details(),
            *([("notes", [Text(note) for note in self.notes])] if self.notes else []),
        ):
            parts += [Text(""), Text(title, "bold"), *(Padding(line, (0, 0, 0, 2)) for line in lines)]
        parts += [Text(""), Text(self.summary(), "bold green" if self.ok else "bold red")]
        return Group(*parts)

    def _details(self) -> list[tuple[str, list[Any]]]:
        """Return what is said below the table: a title and its lines for each difference, error and reason."""
        from rich.text import Text

        made: list[tuple[str, list[Any]]] = []
        told: dict[str, list[str]] = {}
        alike: dict[str, list[str]] = {}
        unexplained = []
        for check in self.checks:
            name = f"{check.name}: {check.setting}"
            if check.verdict == "error":
                kind = check.reason.partition(":")[0]
                first_of_kind = next((title for title in told if title.startswith(f"error: {kind}:")), None)
                told.setdefault(first_of_kind or f"error: {check.reason}", []).append(name)
            elif check.reason:
                told.setdefault(f"{'skipped' if check.verdict == 'skipped' else 'note'}: {check.reason}", []).append(
                    name
                )
            if check.difference is None:
                continue
            if check.culprit is None:
                unexplained.append(name)
                continue
            culprit = check.culprit
            key = f"{culprit.stage} {culprit.place}"
            if key in alike:
                alike[key].append(name)
                continue
            also: list[str] = []
            alike[key] = also
            lines: list[Any] = [
                Text(f"{check.difference.what}: {check.difference.place()}"),
                Text.assemble(
                    "first stage that differs: " if culprit.certain else "where to look: ",
                    (culprit.stage, "bold"),
                    f" ({culprit.place})" if culprit.place else "",
                ),
                *(Text(f"· {cause}") for cause in culprit.causes),
            ]
            made.append((f"≠ {name}", [*lines, also]))
        for _, lines in made:
            also = lines.pop()
            lines += [Text(f"the same stage: {name}") for name in also]
        if unexplained:
            title = "≠ also different, by the same stage or another" if made else "≠ different"
            made.append((title, [Text(name) for name in unexplained]))
        for reason, names in told.items():
            made.append((reason, [Text(name) for name in names]))
        return made


__all__ = ["Check", "Culprit", "Difference", "NotDeterministic", "Verdict", "VerifyReport"]
