"""What samples cost with other settings, from the trials at the end of the script (hooks/trial_runs.py). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

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
    threads: int = 0
    """Worker threads that make samples at the same time; 0: worker processes, or no workers."""

    def __str__(self) -> str:
        threads = f", worker_method=thread, num_workers={self.threads}" if self.threads else ""
        return f"engine={self.engine}, fuse={self.fuse}, seeding={self.seeding}{threads}"


TORCH = Choice("torch", None, None)
TRIED = (
    Choice("fastload", "auto", "sample"),
    Choice("fastload", True, "sample"),
    Choice("fastload", "auto", "torch"),
    Choice("fastload", False, "sample"),
)
"""What is tried besides torch's loader and the recorded loader's settings."""


class Cost(NamedTuple):
    """What samples cost, in multiples of the processor time that they took before."""

    cpu: float = 1.0
    waiting: float = 0.0
    """Additional blocked time: threads wait for the interpreter. Negative if they did so before."""
    loop: float = 0.0
    """The loop waits for worker threads: in multiples of the loop's processor time."""


class CostRatio(NamedTuple):
    """A cost with the limits of its 90 % interval."""

    value: Cost
    low: Cost
    high: Cost


class Round(NamedTuple):
    """What a sample took in threads, in ns, and in as many processes just before or after."""

    inline_blocked: int
    """Blocked without workers: not by the interpreter."""
    process_cpu: int
    cpu: int
    blocked: int
    queued: int
    """Ready to run while others had the cores."""


AS_BEFORE = CostRatio(Cost(), Cost(), Cost())


@dataclass(frozen=True, slots=True)
class Trials:
    """The results for one loader."""

    cpu_ns: Mapping[Choice, tuple[int, ...]] = field(default_factory=dict)
    """Processor time of some batches, made without workers; the same samples at the same position."""
    rounds: Mapping[Choice, tuple[Round, ...]] = field(default_factory=dict)
    reasons: Mapping[Choice, str] = field(default_factory=dict)
    reason: str = _NOT_TRIED
    """Why there is no result for any other choice."""

    def ratio(self, before: Choice, after: Choice) -> CostRatio:
        """Return what samples cost after a change.

        Raises:
            ConfigError: it is not known; the message says why.
        """
        alone = self._without_workers(before._replace(threads=0), after._replace(threads=0))
        seen, wanted = AS_BEFORE, AS_BEFORE
        if bool(before.threads) != bool(after.threads):
            seen, wanted = self._in_threads(before), self._in_threads(after)

        def combined(times: float, cost: Cost) -> Cost:
            was = seen.value
            waiting = (times * cost.waiting - was.waiting) / was.cpu
            return Cost(times * cost.cpu / was.cpu, waiting, max(0.0, cost.loop - was.loop))

        return CostRatio(*(combined(*both) for both in zip(alone, wanted, strict=True)))

    def threads_tried(self, choice: Choice) -> list[int]:
        """Return the numbers of threads that were tried with a choice."""
        return sorted(one.threads for one in self.rounds if one._replace(threads=0) == choice)

    def _without_workers(self, before: Choice, after: Choice) -> tuple[float, float, float]:
        for choice in (before, after):
            if choice not in self.cpu_ns:
                raise ConfigError(f"{choice}: {self.reasons.get(choice, self.reason)}")
        pairs = list(zip(self.cpu_ns[after], self.cpu_ns[before], strict=True))
        low, high = middle_90([_quotient(found) for found in resamples(pairs)])
        value = _quotient(pairs)
        return value, min(low, value), max(high, value)

    def _in_threads(self, choice: Choice) -> CostRatio:
        """Return what samples cost in threads, compared with processes."""
        if not choice.threads:
            return AS_BEFORE
        rounds = self.rounds.get(choice)
        if rounds is None:
            tried = ", ".join(map(str, self.threads_tried(choice._replace(threads=0))))
            reason = f"{tried} threads were tried, not {choice.threads}" if tried else self.reason
            raise ConfigError(f"{choice}: {self.reasons.get(choice, reason)}")
        low, value, high = (
            [_threads_cost(some, choice.threads, unknown) for some in [rounds, *resamples(rounds)]]
            for unknown in (0.0, 0.5, 1.0)
        )
        ends = [middle_90(list(each)) for each in (*zip(*low, strict=True), *zip(*high, strict=True))]
        return CostRatio(value[0], Cost(*(end[0] for end in ends[:3])), Cost(*(end[1] for end in ends[3:])))


def _threads_cost(rounds: Sequence[Round], threads: int, unknown: float) -> Cost:
    """Return the cost of samples in threads: medians of rounds.

    ``unknown`` is the assumed share of two unknown quantities. A thread that waits for the interpreter wakes up now and
    then, and while other programs have the cores it mostly looks as if it waited for a core; but it never waits for
    the interpreter longer than all other threads compute. And it is unknown how much of the loop's computing needs the
    interpreter, for which it waits as samples do.
    """
    cpu, waiting = [], []
    for one in rounds:
        seen = float(max(0, one.blocked - one.inline_blocked))
        seen += unknown * min(one.queued, max(0, (threads - 1) * one.cpu - seen))
        cpu.append(one.cpu / max(1, one.process_cpu))
        waiting.append(seen / max(1, one.process_cpu))
    # a single thread waits for no other, but the loop waits for it
    return Cost(median(cpu), median(waiting), unknown * (median(waiting) if threads > 1 else 1.0))


def _quotient(pairs: Sequence[tuple[int, int]]) -> float:
    return sum(after for after, _ in pairs) / max(1, sum(before for _, before in pairs))


def trials_of(note: Mapping[str, Any]) -> Trials:
    """Return the results that a process has noted."""
    return Trials(
        cpu_ns={Choice(*choice): tuple(times) for choice, times in note.get("cpu_ns", [])},
        rounds={Choice(*choice): tuple(Round(*one) for one in rounds) for choice, rounds in note.get("rounds", [])},
        reasons={Choice(*choice): reason for choice, reason in note.get("reasons", [])},
        reason=note.get("reason", "it was not tried"),
    )


def chosen(loader: Mapping[str, Any], settings: Mapping[str, Any]) -> tuple[Choice, Choice]:
    """Return a loader's choice as it was, and with changed settings.

    Raises:
        ConfigError: the settings contradict each other.
    """
    is_fastload = loader.get("engine") == "fastload"
    workers, method = int(loader.get("num_workers") or 0), loader.get("worker_method") or "multiprocessing"
    seen = workers if method == "thread" else 0
    before = Choice("fastload", loader.get("fuse"), loader.get("seeding"), seen) if is_fastload else TORCH
    named = [name for name in ("fuse", "seeding", "worker_method") if name in settings]
    if settings.get("engine", before.engine) != "fastload":
        if named:
            raise ConfigError(f"{named[0]} is an argument of fastload's loader; set engine=fastload too")
        return before, TORCH
    defaults = before if is_fastload else Choice("fastload", "auto", "sample")
    workers, method = settings.get("num_workers", workers), settings.get("worker_method", method)
    after = Choice(
        "fastload",
        settings.get("fuse", defaults.fuse),
        settings.get("seeding", defaults.seeding),
        workers if method == "thread" else 0,
    )
    if after.fuse is True and after.seeding == "torch":
        raise ConfigError("fuse=True needs seeding='sample', got seeding='torch'; set fuse to 'auto' or False")
    return before, after
