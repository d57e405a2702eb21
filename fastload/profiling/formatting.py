"""Words and number formats that all reports share: names of states and causes, times, shares, untrusted text. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import NamedTuple

from .schema import Cause, RankAnalysis
from .trace import Rank


class State(NamedTuple):
    """State of an awaited batch."""

    name: str
    colour: str
    cause: Cause | None
    """The cause of a stall that it is evidence for."""
    meaning: str


STATES: dict[str, State] = {
    "startup": State("startup", "bright_black", "startup", "making iterators, starting workers, first batches"),
    "sampler": State("sampler", "bright_black", "sampler", "drawing the indices of the batch"),
    "queued": State("queued", "bright_black", None, "its worker had not started it, and did what is unknown"),
    "read": State("read", "blue", "read", "blocked in the dataset, for example on a disk"),
    "sample": State("sample", "yellow", "cpu", "on the CPU in the dataset, outside of any known stage"),
    "collate": State("collate", "yellow", "cpu", "collating samples into a batch"),
    "run-queue": State("waiting for a core", "red", "oversubscribed", "other threads or programs had the cores"),
    "gil": State("GIL", "red", "gil", "in a worker thread that waited for the interpreter lock"),
    "transport": State("transport", "cyan", "transport", "on the way from the worker to the main process"),
    "pin": State("pin", "cyan", "pin", "copying to page-locked memory"),
    "main-thread": State("main thread", "bright_black", "transport", "complete, but not yet taken by the main thread"),
    "other": State("other", "bright_black", None, "unknown"),
}
"""The keys of ``blame_ms``; a stage within a sample is ``stage:NAME``."""


def state_of(key: str) -> State:
    """Return the words for a key of ``blame_ms``; unknown keys count as ``other``."""
    kind, _, stage = key.partition(":")
    if kind == "stage":
        return State(printable(stage) or "stage", "yellow", "cpu", "on the CPU in this stage of the dataset")
    return STATES.get(key) or STATES["other"]._replace(name=printable(key))


def cause_name(cause: Cause | None) -> str:
    """Return the short name of a verdict."""
    if cause is None:
        return "no verdict"
    if cause in ("oversubscribed", "launch-starved"):
        return cause
    return f"{cause.upper() if cause in ('cpu', 'gil') else cause}-bound"


def printable(text: str) -> str:
    """Return text from outside with control characters, direction marks and lone surrogates escaped.

    The name of a file may contain characters that move the terminal's cursor or reverse the text after it.
    """
    return "".join(
        character
        if unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
        else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def plural(number: int, noun: str) -> str:
    """Return a count with its noun."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def ms(value: float) -> str:
    """Return a time in milliseconds, without its unit."""
    size = abs(value)
    if size == 0 or size >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if size >= 0.995 else f"{value:.2f}" if size >= 0.00995 else f"{value:.3f}"


def percent(share: float) -> str:
    """Return a share in percent."""
    return f"{percent_number(share)} %"


def percent_number(share: float) -> str:
    """Return a share in percent, without the sign."""
    value = share * 100
    return f"{value:.0f}" if abs(value) >= 9.95 or value == 0 else f"{value:.1f}"


def times(ratio: float) -> str:
    """Return a ratio."""
    return f"{ratio:.2f}x"


def rank_name(rank: Rank | RankAnalysis) -> str:
    """Return the name of a rank, or of a process that has no rank."""
    return f"process {rank.process}" if rank.rank is None else f"rank {rank.rank}"


def by_size(blame: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return states with their times, the largest first, without those that are zero."""
    return sorted(((state, value) for state, value in blame.items() if value > 0), key=lambda one: (-one[1], one[0]))
