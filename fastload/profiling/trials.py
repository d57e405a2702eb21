"""What samples cost with other settings, from the trials at the end of the script (hooks/trial_runs.py). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..base.worker_kinds import has_threads
from ..errors import ConfigError
from .stats import middle_90, resamples

_NOT_TRIED = (
    "what samples cost with other settings was not measured: fastload profile does so when the script ends, if the "
    "loader still exists; keep it in a variable, and record again"
)


class Choice(NamedTuple):
    """Settings that change what a sample costs."""

    engine: str
    fuse: bool | str | None
    """None with torch's loader."""
    seeding: str | None
    """``"torch"``: its random streams; ``"sample"``: a key for each sample, whatever asks for it."""
    cache: str | None = None
    """``"auto"``: with a cache that has the files already, wherever it is; None: without one."""

    def __str__(self) -> str:
        words = f"engine={self.engine}, fuse={self.fuse}, seeding={self.seeding}"
        return words if self.cache is None else f"{words}, cache={self.cache}"


TORCH = Choice("torch", None, None)
USUAL = Choice("fastload", "auto", "torch")
"""fastload's loader in place of torch's."""


def tried_beside(usual: Choice) -> list[Choice]:
    """Return what is tried of fastload's loader besides the usual choice and torch's loader."""
    choices = [USUAL, Choice("fastload", True, "sample"), Choice("fastload", "auto", "sample")]
    return [one._replace(cache=usual.cache) for one in (*choices, usual._replace(fuse=False))]


class CostRatio(NamedTuple):
    """What samples cost, in multiples of the processor time that they took before; with its 90 % interval."""

    value: float
    low: float
    high: float


AS_BEFORE = CostRatio(1.0, 1.0, 1.0)


class CacheRoom(NamedTuple):
    """What a cache takes, and may take, in bytes."""

    sample_bytes: float
    """Of a sample, on average."""
    most_bytes: int
    """What ``cache="auto"`` would have been when the trials ran."""

    def share(self, num_samples: int | None) -> float:
        """Return which share of a dataset fits; where its length is not known, all."""
        needed = self.sample_bytes * (num_samples or 0)
        return 1.0 if needed <= self.most_bytes else max(0, self.most_bytes) / needed


@dataclass(frozen=True, slots=True)
class Trials:
    """The results for one loader."""

    cpu_ns: Mapping[Choice, tuple[int, ...]] = field(default_factory=dict)
    """Processor time of some batches, made without workers; the same samples at the same position."""
    reasons: Mapping[Choice, str] = field(default_factory=dict)
    reason: str = _NOT_TRIED
    """Why there is no result for any other choice."""
    cache: CacheRoom | None = None
    """None: there was no trial with a cache."""
    stages_ms: Mapping[str, float] = field(default_factory=dict)
    """What a sample took in each stage, with the recorded loader's settings: see :func:`~.dominant.stages_of`."""

    def ratio(self, before: Choice, after: Choice) -> CostRatio:
        """Return what samples cost after a change.

        Raises:
            ConfigError: it is not known; the message says why.
        """
        for choice in (before, after):
            if choice not in self.cpu_ns:
                raise ConfigError(f"{choice}: {self.reasons.get(choice, self.reason)}")
        pairs = list(zip(self.cpu_ns[after], self.cpu_ns[before], strict=True))
        low, high = middle_90([_quotient(found) for found in resamples(pairs)])
        value = _quotient(pairs)
        return CostRatio(value, min(low, value), max(high, value))


def _quotient(pairs: Sequence[tuple[int, int]]) -> float:
    return sum(after for after, _ in pairs) / max(1, sum(before for _, before in pairs))


def trials_of(note: Mapping[str, Any]) -> Trials:
    """Return the results that a process has noted."""
    return Trials(
        cpu_ns={Choice(*choice): tuple(times) for choice, times in note.get("cpu_ns", [])},
        reasons={Choice(*choice): reason for choice, reason in note.get("reasons", [])},
        reason=note.get("reason", "it was not tried"),
        cache=None if note.get("cache") is None else CacheRoom(*note["cache"]),
        stages_ms=note.get("stages_ms", {}),
    )


def chosen(loader: Mapping[str, Any], settings: Mapping[str, Any]) -> tuple[Choice, Choice]:
    """Return a loader's choice as it was, and with changed settings.

    Raises:
        ConfigError: the settings contradict each other, or the recording.
    """
    is_fastload = loader.get("engine") == "fastload"
    cached = None if loader.get("cache") is None else "auto"
    before = Choice("fastload", loader.get("fuse"), loader.get("seeding"), cached) if is_fastload else TORCH
    with_cache = settings.get("cache") == "auto"  # other values are no argument
    named = [*(name for name in ("fuse", "seeding") if name in settings), *(["cache"] if with_cache else [])]
    if settings.get("engine", before.engine) != "fastload":
        if named:
            raise ConfigError(f"{named[0]} is an argument of fastload's loader; set engine=fastload too")
        if is_fastload and has_threads(loader.get("worker_method")) and loader.get("num_workers"):
            raise ConfigError(
                "engine=torch cannot be predicted from a recording with worker threads: what samples cost in processes "
                "is not known; record with worker_method='multiprocessing'"
            )
        return before, TORCH
    defaults = before if is_fastload else USUAL
    fuse = settings.get("fuse", defaults.fuse)
    after = Choice(
        "fastload",
        fuse,
        settings.get("seeding", "sample" if fuse is True else defaults.seeding),
        "auto" if with_cache else defaults.cache,
    )
    if after.fuse is True and after.seeding == "torch":
        raise ConfigError("fuse=True needs seeding='sample', got seeding='torch'; set fuse to 'auto' or False")
    return before, after
