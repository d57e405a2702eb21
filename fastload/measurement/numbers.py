"""Measurements of a loader as numbers for people and trackers, and in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .measurement import STAGES, Measurement

PREFIX = "data/"
_KEEPS_UP = 0.05
"""Share of the step lost to data below which the loader keeps up; the profiler has the same."""


class Steps(NamedTuple):
    """Sums over steps; times in ns."""

    number: int = 0
    total_ns: int = 0
    """Waits, and the loop after them."""
    startup_ns: int = 0
    """Waits for the first batch of an epoch, with the making of the iterator."""
    workers_ns: int = 0
    """Other waits: for workers."""
    here_ns: int = 0
    """Other waits: work in the loop's thread."""
    ready: int = 0
    """Complete batches behind those that were given."""
    ready_steps: int = 0
    """Steps for which their number is known."""

    def since(self, before: Steps) -> Steps:
        """Return the difference to earlier sums."""
        return Steps(*[now - then for now, then in zip(self, before, strict=True)])

    def plus(self, more: Steps) -> Steps:
        """Return the sums of both."""
        return Steps(*[one + other for one, other in zip(self, more, strict=True)])


def stall_of(steps: Steps, *, num_workers: int, batch_size: float | None) -> dict[str, float]:
    """Return what some steps lost to data; {} where there are none. ``batch_size``: samples of a step, on average.

    Returns:
        Names that begin with ``data/``: ``share``, of the step, lost to data (0 to 1); ``samples_per_s``;
        ``batches_ready``, complete batches behind the one given; the parts of ``share``: ``startup``, ``here``, and
        with workers ``workers``. What is unknown is left out.
    """
    if not steps.number or steps.total_ns <= 0:
        return {}
    parts = {"startup": steps.startup_ns, "here": steps.here_ns}
    if num_workers:
        parts["workers"] = steps.workers_ns
    lost = steps.startup_ns + steps.workers_ns + steps.here_ns
    found = {"share": lost / steps.total_ns}
    if batch_size is not None:
        found["samples_per_s"] = steps.number * batch_size / (steps.total_ns / 1e9)
    if steps.ready_steps:
        found["batches_ready"] = steps.ready / steps.ready_steps
    found |= {name: ns / steps.total_ns for name, ns in parts.items()}
    return {PREFIX + name: float(value) for name, value in found.items()}


def stages_s(measured: Measurement) -> dict[str, float]:
    """Return where the time went, in seconds: that of all tasks, in the shares of those that were measured by stage.

    Without workers, samples are loaded in ``next()``: there is neither transport nor a wait. {} before the first task.
    """
    steps, stages = Steps(*measured.steps), dict(zip(STAGES, measured.stages, strict=True))
    sent = stages.pop("transport")
    known = sum(stages.values())
    if not known:
        return {}
    scale = (measured.worked_ns or steps.startup_ns + steps.here_ns or known) / known / 1e9
    found = {name: ns * scale for name, ns in stages.items()}
    if measured.worked_ns:
        found |= {"transport": sent * scale + steps.here_ns / 1e9, "wait": measured.waited_ns / 1e9}
    return found


def work_shares(found: Mapping[str, float]) -> dict[str, float]:
    """Return the shares of a task's time, the largest first, given what :func:`stages_s` returned."""
    parts = {name: seconds for name, seconds in found.items() if name not in ("transport", "wait")}
    whole = sum(parts.values())
    return {name: parts[name] / whole for name in sorted(parts, key=lambda name: -parts[name])} if whole else {}


def stages_in_words(found: Mapping[str, float]) -> str:
    """Return where the time went in a line: shares of at least 1 %."""
    shares = [f"{name} {100 * share:.0f} %" for name, share in work_shares(found).items() if share >= 0.01]
    words = f"loading: {', '.join(shares)}".replace("queue", "waiting for a core")
    if "wait" in found:
        words += f"; sending batches took {found['transport']:.3g} s; the loop waited {found['wait']:.3g} s for workers"
    return words


def over_ranks(of_ranks: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the means over ranks, with the share of the worst rank, its number, and how many ranks they are of.

    Of a single rank the numbers stay as they are. A rank without steps ({}) does not count.
    """
    if len(of_ranks) == 1:
        return dict(of_ranks[0])
    shares = {rank: one[PREFIX + "share"] for rank, one in enumerate(of_ranks) if one}
    if not shares:
        return {}
    found: dict[str, float] = {}
    for name in dict.fromkeys(name for one in of_ranks for name in one):
        known = [one[name] for one in of_ranks if name in one]
        found[name] = sum(known) / len(known)
    worst = max(shares, key=lambda rank: (shares[rank], -rank))
    return found | {
        PREFIX + "worst_share": shares[worst],
        PREFIX + "worst_rank": float(worst),
        PREFIX + "ranks": float(len(shares)),
    }


_PARTS = {
    "startup": "in startup (the first batch of each epoch)",
    "workers": "waiting for workers",
    "here": "in next() itself",
}


def stall_in_words(found: Mapping[str, float]) -> str:
    """Return what some steps lost to data, in words: from the numbers of one rank."""
    share = found.get(PREFIX + "share")
    if share is None:
        return "no step was measured, so nothing can be said of what was lost to data"
    told = f"{100 * share:.0f} % of the step was lost to data (by the host's clock)"
    if share < _KEEPS_UP:
        return f"{told}. The loader keeps up: more workers would not help"
    known = {name: found[PREFIX + name] for name in _PARTS if found.get(PREFIX + name, 0.0) > 0.0}
    parts = [f"{100 * known[name]:.0f} % {_PARTS[name]}" for name in sorted(known, key=lambda name: -known[name])]
    return f"{told}: {', '.join(parts)}. `fastload profile` on the script names the stage to blame, and the fix"
