"""What samples took with other settings, as it was tried while the script ended -> how many times as much. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple, TypeVar

from ..errors import ConfigError, TraceError

_T = TypeVar("_T")

_RESAMPLINGS = 200
_UNTRIED = (
    "what samples cost with other settings was not tried: fastload profile does so as it ends a script, if the loader "
    "is still there then; keep it in a variable, and record again"
)


class Choice(NamedTuple):
    """Settings that change what a sample costs."""

    engine: str
    fuse: bool | str | None
    """None with torch's loader."""
    seeding: str | None
    threads: int = 0
    """Worker threads that make samples at the same time; 0: worker processes, or no workers."""

    def in_words(self) -> str:
        """Return it as a user would write it."""
        threads = f", worker_method=thread, num_workers={self.threads}" if self.threads else ""
        return f"engine={self.engine}, fuse={self.fuse}, seeding={self.seeding}{threads}"


TORCH = Choice("torch", None, None)
TRIED = (
    Choice("fastload", "auto", "sample"),
    Choice("fastload", True, "sample"),
    Choice("fastload", "auto", "torch"),
    Choice("fastload", False, "sample"),
)
"""What is tried beside torch's loader, and what a loader was set to."""


class Cost(NamedTuple):
    """What samples take, in multiples of the processor time that they took before."""

    cpu: float = 1.0
    waiting: float = 0.0
    """Blocked beside what they were blocked before: threads wait for the interpreter. Below 0 where they did before."""
    loop: float = 0.0
    """The same of the loop, in multiples of the loop's processor time: it waits for worker threads."""


class Ratio(NamedTuple):
    """A cost, and the ends of its 90 % interval."""

    value: Cost
    low: Cost
    high: Cost


class Round(NamedTuple):
    """What a sample took in threads, in ns, and in as many processes just before or after."""

    inline_blocked: int
    """Without workers: what it waits for is no interpreter."""
    process_cpu: int
    cpu: int
    blocked: int
    queued: int
    """Ready to run while others had the cores."""


AS_BEFORE = Ratio(Cost(), Cost(), Cost())
"""Nothing changes."""


@dataclass(frozen=True, slots=True)
class Trials:
    """What was found with one loader."""

    cpu_ns: Mapping[Choice, tuple[int, ...]] = field(default_factory=dict)
    """Processor time of some batches, made without workers; at the same place the same samples."""
    rounds: Mapping[Choice, tuple[Round, ...]] = field(default_factory=dict)
    """With worker threads."""
    reasons: Mapping[Choice, str] = field(default_factory=dict)
    """Why there is nothing."""
    reason: str = _UNTRIED
    """Why there is nothing for any other choice."""

    def ratio(self, before: Choice, after: Choice) -> Ratio:
        """Return what samples cost after a change.

        Raises:
            ConfigError: that is not known; the message says why.
        """
        made = self._without_workers(before._replace(threads=0), after._replace(threads=0))
        seen, wanted = AS_BEFORE, AS_BEFORE
        if bool(before.threads) != bool(after.threads):
            seen, wanted = self._in_threads(before), self._in_threads(after)

        def end(times: float, cost: Cost) -> Cost:
            was = seen.value
            waiting = (times * cost.waiting - was.waiting) / was.cpu
            return Cost(times * cost.cpu / was.cpu, waiting, max(0.0, cost.loop - was.loop))

        return Ratio(*(end(*both) for both in zip(made, wanted, strict=True)))

    def numbers(self, choice: Choice) -> list[int]:
        """Return the numbers of threads that were tried with a choice."""
        return sorted(one.threads for one in self.rounds if one._replace(threads=0) == choice)

    def _without_workers(self, before: Choice, after: Choice) -> tuple[float, float, float]:
        """Return how many times the processor time a batch takes, and the interval of that."""
        for choice in (before, after):
            if choice not in self.cpu_ns:
                raise ConfigError(f"{choice.in_words()}: {self.reasons.get(choice, self.reason)}")
        pairs = list(zip(self.cpu_ns[after], self.cpu_ns[before], strict=True))
        low, high = _interval([_quotient(found) for found in _resampled(pairs)])
        value = _quotient(pairs)
        return value, min(low, value), max(high, value)

    def _in_threads(self, choice: Choice) -> Ratio:
        """Return what samples cost in threads, against the same in processes."""
        if not choice.threads:
            return AS_BEFORE
        rounds = self.rounds.get(choice)
        if rounds is None:
            tried = " and ".join(map(str, self.numbers(choice._replace(threads=0))))
            reason = f"{tried} threads were tried, and not {choice.threads}" if tried else self.reason
            raise ConfigError(f"{choice.in_words()}: {self.reasons.get(choice, reason)}")
        low, value, high = (
            [_threads_cost(some, choice.threads, unknown) for some in [rounds, *_resampled(rounds)]]
            for unknown in (0.0, 0.5, 1.0)
        )
        ends = [_interval(list(each)) for each in (*zip(*low, strict=True), *zip(*high, strict=True))]
        return Ratio(value[0], Cost(*(end[0] for end in ends[:3])), Cost(*(end[1] for end in ends[3:])))


def _threads_cost(rounds: Sequence[Round], threads: int, unknown: float) -> Cost:
    """Return the cost of samples in threads: medians of rounds.

    Two things are not known, and ``unknown`` is the share of them that is taken to be so. A thread that waits for the
    interpreter wakes up now and then, and while other programs have the cores it looks most of the time as if it waited
    for one of these; but it never waits for the interpreter for longer than all other threads compute. And of the
    loop's computing nobody has seen how much needs the interpreter; what does waits as samples do.
    """
    cpu, waiting = [], []
    for one in rounds:
        seen = float(max(0, one.blocked - one.inline_blocked))
        seen += unknown * min(one.queued, max(0, (threads - 1) * one.cpu - seen))
        cpu.append(one.cpu / one.process_cpu)
        waiting.append(seen / one.process_cpu)
    # one thread waits for no other, but the loop for it
    return Cost(median(cpu), median(waiting), unknown * (median(waiting) if threads > 1 else 1.0))


def _resampled(values: Sequence[_T]) -> list[list[_T]]:
    draw = random.Random(0)
    return [draw.choices(values, k=len(values)) for _ in range(_RESAMPLINGS)]


def _interval(values: list[float]) -> tuple[float, float]:
    values.sort()
    return values[_RESAMPLINGS // 20], values[-1 - _RESAMPLINGS // 20]


def _quotient(pairs: Sequence[tuple[int, int]]) -> float:
    return sum(after for after, _ in pairs) / max(1, sum(before for _, before in pairs))


def trials_of(note: Mapping[str, Any]) -> Trials:
    """Return what a process has noted.

    Raises:
        TraceError: it is damaged.
    """
    try:
        cpu_ns = {_choice(one): tuple(map(int, one["cpu_ns"])) for one in note.get("found", [])}
        rounds = {
            _choice(one): tuple(Round(*map(int, each)) for each in one["rounds"]) for one in note.get("rounds", [])
        }
        reasons = {_choice(one): str(one["reason"]) for one in note.get("reasons", [])}
    except (KeyError, TypeError, ValueError):
        raise TraceError(
            "the recording is damaged: its trials are not what fastload profile writes; record again"
        ) from None
    if len({len(times) for times in cpu_ns.values()}) > 1 or not all(cpu_ns.values()):
        raise TraceError("the recording is damaged: its trials are of different lengths; record again")
    if not all(
        found and all(min(one.process_cpu, one.cpu) > 0 and min(one) >= 0 for one in found) for found in rounds.values()
    ):
        raise TraceError("the recording is damaged: its trials of threads took no time; record again")
    return Trials(cpu_ns, rounds, reasons, str(note.get("reason", "it was not tried")))


def _choice(one: Mapping[str, Any]) -> Choice:
    return Choice(one["engine"], one["fuse"], one["seeding"], int(one.get("threads", 0)))


def chosen(loader: Mapping[str, Any], settings: Mapping[str, Any]) -> tuple[Choice, Choice]:
    """Return what a loader was set to, and what it is with changed settings.

    Raises:
        ConfigError: they cannot be set so.
    """
    ours = loader.get("engine") == "fastload"
    workers, method = int(loader.get("num_workers") or 0), loader.get("worker_method") or "multiprocessing"
    seen = workers if method == "thread" else 0
    before = Choice("fastload", loader.get("fuse"), loader.get("seeding"), seen) if ours else TORCH
    named = [knob for knob in ("fuse", "seeding", "worker_method") if knob in settings]
    if settings.get("engine", before.engine) != "fastload":
        if named:
            raise ConfigError(f"{named[0]} is an argument of fastload's loader; set the engine to fastload too")
        return before, TORCH
    defaults = before if ours else Choice("fastload", "auto", "sample")
    workers, method = settings.get("num_workers", workers), settings.get("worker_method", method)
    if method not in ("multiprocessing", "thread"):
        raise ConfigError(f"worker_method must be multiprocessing or thread, got {method!r}")
    after = Choice(
        "fastload",
        settings.get("fuse", defaults.fuse),
        settings.get("seeding", defaults.seeding),
        workers if method == "thread" else 0,
    )
    if after.fuse != "auto" and not isinstance(after.fuse, bool):
        raise ConfigError(f"fuse must be 'auto', True or False, got {after.fuse!r}")
    if after.seeding not in ("sample", "torch"):
        raise ConfigError(f"seeding must be sample or torch, got {after.seeding!r}")
    if after.fuse is True and after.seeding == "torch":
        raise ConfigError(
            "fuse=True draws parameters from each sample's key, and seeding='torch' has none; set fuse too"
        )
    return before, after


__all__ = ["AS_BEFORE", "TORCH", "TRIED", "Choice", "Cost", "Ratio", "Round", "Trials", "chosen", "trials_of"]
