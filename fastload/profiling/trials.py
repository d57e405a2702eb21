"""What samples took with other settings, as it was tried while the script ended -> how many times as much. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..errors import ConfigError, TraceError

_RESAMPLINGS = 200
_UNTRIED = (
    "what samples cost with other settings was not tried: fastload profile does so as it ends a script, and with "
    "--full if the loader is still there then; record again"
)


class Choice(NamedTuple):
    """Settings that change what a sample costs."""

    engine: str
    fuse: bool | str | None
    """None with torch's loader."""
    seeding: str | None

    def in_words(self) -> str:
        """Return it as a user would write it."""
        return f"engine={self.engine}, fuse={self.fuse}, seeding={self.seeding}"


TORCH = Choice("torch", None, None)
TRIED = (
    Choice("fastload", "auto", "sample"),
    Choice("fastload", True, "sample"),
    Choice("fastload", "auto", "torch"),
    Choice("fastload", False, "sample"),
)
"""What is tried beside torch's loader, and what a loader was set to."""


class Ratio(NamedTuple):
    """A quotient, and its 90 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Trials:
    """What was found with one loader."""

    cpu_ns: Mapping[Choice, tuple[int, ...]] = field(default_factory=dict)
    """Processor time of some batches; at the same place the same samples."""
    reasons: Mapping[Choice, str] = field(default_factory=dict)
    """Why there is nothing."""
    reason: str = _UNTRIED
    """Why there is nothing for any other choice."""

    def ratio(self, before: Choice, after: Choice) -> Ratio:
        """Return how many times the processor time a batch takes.

        Raises:
            ConfigError: that is not known; the message says why.
        """
        for choice in (before, after):
            if choice not in self.cpu_ns:
                raise ConfigError(f"{choice.in_words()}: {self.reasons.get(choice, self.reason)}")
        pairs = list(zip(self.cpu_ns[after], self.cpu_ns[before], strict=True))
        draw = random.Random(0)
        found = sorted(_quotient(draw.choices(pairs, k=len(pairs))) for _ in range(_RESAMPLINGS))
        value = _quotient(pairs)
        low, high = found[_RESAMPLINGS // 20], found[-1 - _RESAMPLINGS // 20]
        return Ratio(value, min(low, value), max(high, value))


def _quotient(pairs: list[tuple[int, int]]) -> float:
    return sum(after for after, _ in pairs) / max(1, sum(before for _, before in pairs))


def trials_of(note: Mapping[str, Any]) -> Trials:
    """Return what a process has noted.

    Raises:
        TraceError: it is damaged.
    """
    try:
        cpu_ns = {_choice(one): tuple(map(int, one["cpu_ns"])) for one in note.get("found", [])}
        reasons = {_choice(one): str(one["reason"]) for one in note.get("reasons", [])}
    except (KeyError, TypeError, ValueError):
        raise TraceError(
            "the recording is damaged: its trials are not what fastload profile writes; record again"
        ) from None
    if len({len(times) for times in cpu_ns.values()}) > 1 or not all(cpu_ns.values()):
        raise TraceError("the recording is damaged: its trials are of different lengths; record again")
    return Trials(cpu_ns, reasons, str(note.get("reason", "it was not tried")))


def _choice(one: Mapping[str, Any]) -> Choice:
    return Choice(one["engine"], one["fuse"], one["seeding"])


def chosen(loader: Mapping[str, Any], settings: Mapping[str, Any]) -> tuple[Choice, Choice]:
    """Return what a loader was set to, and what it is with changed settings.

    Raises:
        ConfigError: they cannot be set so.
    """
    ours = loader.get("engine") == "fastload"
    before = Choice("fastload", loader.get("fuse"), loader.get("seeding")) if ours else TORCH
    named = [knob for knob in ("fuse", "seeding") if knob in settings]
    if settings.get("engine", before.engine) != "fastload":
        if named:
            raise ConfigError(f"{named[0]} is an argument of fastload's loader; set the engine to fastload too")
        return before, TORCH
    defaults = before if ours else Choice("fastload", "auto", "sample")
    after = Choice("fastload", settings.get("fuse", defaults.fuse), settings.get("seeding", defaults.seeding))
    if after.fuse != "auto" and not isinstance(after.fuse, bool):
        raise ConfigError(f"fuse must be 'auto', True or False, got {after.fuse!r}")
    if after.seeding not in ("sample", "torch"):
        raise ConfigError(f"seeding must be sample or torch, got {after.seeding!r}")
    if after.fuse is True and after.seeding == "torch":
        raise ConfigError(
            "fuse=True draws parameters from each sample's key, and seeding='torch' has none; set fuse too"
        )
    return before, after


__all__ = ["TORCH", "TRIED", "Choice", "Ratio", "Trials", "chosen", "trials_of"]
