"""Result of a verification, as data, as JSON and as a table.

Pure; rich is imported only for a table.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ..base.console import as_html, as_text, plain_table, section
from ..errors import FastloadError

Verdict = Literal["equal", "different", "not repeatable", "other augmentation", "skipped", "error"]
"""``"not repeatable"``: torch's class itself differs between two runs. ``"other augmentation"``: by design."""

_MARKS = {
    "equal": ("=", "green"),
    "different": ("≠", "bold red"),
    "not repeatable": ("≠", "bold red"),
    "other augmentation": ("≠", "bold red"),
    "skipped": ("-", "yellow"),
    "error": ("!", "bold red"),
}


class NotDeterministic(FastloadError, AssertionError):
    """A verification found a difference; the message is its table, which names the stage."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where two records differ."""

    what: str
    """A sentence."""
    epoch: int
    batch: int | None = None
    """Number of the batch in the epoch, from 0; None where samples were compared."""
    sample: int | None = None
    """Number of the sample in the epoch, from 0; None where batches were compared."""
    leaf: str = ""
    """Path in it, as in Python; empty for the whole."""
    index: str | None = None
    """Index of the sample in the dataset, as the sampler gave it; None: not known."""

    def __str__(self) -> str:
        return f"{self.what}: {self.place()}" + (f", part {self.leaf}" if self.leaf else "")

    def place(self) -> str:
        """Return where the batch or sample is, in words."""
        words = f"epoch {self.epoch}, "
        if self.sample is None:
            return f"{words}batch {self.batch}"
        return f"{words}sample {self.sample}" + (f", dataset index {self.index}" if self.index is not None else "")


@dataclass(frozen=True, slots=True)
class Culprit:
    """The first stage that makes the difference."""

    stage: str
    """Its repr, or what it is."""
    place: str
    """``dataset.transform, stage 2 of 4``, and the like."""
    certain: bool = True
    """True if the difference vanished without this stage and those after it. If not, it may also be a stage before it:
    without some of the last ones, the others failed."""

    def __str__(self) -> str:
        return f"{'first stage that differs' if self.certain else 'where to look'}: {self.stage} ({self.place})"


@dataclass(slots=True, kw_only=True)
class Check:
    """One comparison."""

    name: str
    setting: str
    """For a person; it is compared with the inline loader. Without a seed: what was compared with torch's class."""
    verdict: Verdict
    reason: str = ""
    """Why it was skipped, the error, or why it differs."""
    seconds: float = 0.0
    difference: Difference | None = None
    culprit: Culprit | None = None
    speedup: float = 0.0
    """How many times as fast as torch's class fastload's is; 0: not measured."""


@dataclass(slots=True, kw_only=True)
class VerifyReport:
    """Result of ``fastload.verify``."""

    subject: str
    """The verified loader or dataset, as text."""
    seed: int | None
    """The seed of all runs; None: none was given, so that batches are compared with those of torch's class."""
    batches: int
    """Batches of an epoch that each run loaded."""
    checks: list[Check] = field(default_factory=list)
    """The comparisons; without a seed there is one, with torch's class."""
    notes: list[str] = field(default_factory=list)
    """Notes on how it was verified."""
    versions: dict[str, str] = field(default_factory=dict)
    """Versions of Python, torch and NumPy."""
    seconds: float = 0.0
    """How long it took."""
    interrupted: int = 0
    """The signal that has interrupted it, so that checks are missing; 0: none."""

    @property
    def ok(self) -> bool:
        """True if at least one check was made, all that were made are equal, and none is missing."""
        made = [check for check in self.checks if check.verdict != "skipped"]
        return bool(made) and not self.interrupted and all(check.verdict == "equal" for check in made)

    def summary(self) -> str:
        """Return the result in one sentence."""
        if self.seed is None and self.checks:
            return _against_torch(self.checks[0])
        counts = {verdict: sum(check.verdict == verdict for check in self.checks) for verdict in _MARKS}
        words = [f"{count} {verdict}" for verdict, count in counts.items() if count]
        if self.ok:
            outcome = "deterministic"
        elif counts["different"] or counts["error"]:
            outcome = "NOT deterministic" if counts["different"] else "could not be verified"
        else:
            outcome = "interrupted" if self.interrupted else "nothing was checked"
        if self.interrupted:
            words.append("the other checks were not made")
        return f"{outcome}: {', '.join(words)}, {self.seconds:.1f} s"

    def issue_line(self) -> str:
        """Return a line to paste into an issue: the result, the pipeline, and versions."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return f"fastload verify: {self.summary()} ({self.subject}; {versions})"

    def to_json(self) -> str:
        """Return the report as JSON: its fields, ``"ok"``, ``"summary"``, and ``"version"`` of the format."""
        told = {"version": 3, "ok": self.ok, "summary": self.summary(), "issue_line": self.issue_line()}
        return json.dumps(told | asdict(self), indent=2)

    def to_text(self, width: int = 100) -> str:
        """Return the table as plain text, wrapped at ``width`` columns."""
        return as_text(self.table(), width=width)

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""
        return as_html(self.table())

    def table(self) -> Any:
        """Return a table for ``rich``: a row for each check, and below it what differs and why."""
        from rich.console import Group
        from rich.text import Text

        wide = {"header": "setting", "ratio": 1}
        rows = plain_table(["", "check", wide, "result", {"header": "s", "justify": "right", "no_wrap": True}])
        last = ""
        below: dict[str, list[str]] = {}
        for check in self.checks:
            mark, style = _MARKS[check.verdict]
            name, last = ("" if check.name == last else check.name), check.name
            rows.add_row(Text(mark, style), name, check.setting, Text(check.verdict, style), f"{check.seconds:.1f}")
            words = f"{check.name}: {check.setting}"
            if check.difference is not None:
                another = "different, by the same stage or another" if self.seed is not None else check.verdict
                below.setdefault(f"≠ {check.culprit or another}", [str(check.difference)]).append(words)
            if check.reason:
                below.setdefault(f"{check.verdict}: {check.reason}", []).append(words)
        below["notes"] = self.notes
        if any(check.culprit for check in self.checks):
            below["what to do"] = ["the documentation of `fastload verify` has the usual causes, and what helps"]
        sections = [part for title, lines in below.items() if lines for part in ("", section(title, lines))]
        result = Text(self.summary(), "bold green" if self.ok else "bold red")
        parts = [Text(self.subject, "bold"), Text(""), rows, *sections, Text(""), result]
        if self.seed is None:
            line = Text(self.issue_line(), no_wrap=True, overflow="ignore")
            parts += [Text(""), Text("to paste into an issue:", "bold"), line]
        return Group(*parts)


def _against_torch(check: Check) -> str:
    """Return the result of a comparison with torch's class in one sentence."""
    place = "" if check.difference is None else check.difference.place()
    if check.verdict == "different":
        return f"NOT equal to torch's: {place}"
    if check.verdict == "not repeatable":
        return f"NOT comparable: torch's class itself differs between two runs (at {place})"
    if check.verdict == "other augmentation":
        return f"NOT torch's batches, by design: other augmentation (from {place})"
    if check.verdict == "error":
        return check.reason
    times = f"; {check.speedup:.{1 if check.speedup >= 1 else 2}f} times as fast" if check.speedup else ""
    return f"{check.setting} equal torch's, bit for bit{times}"
