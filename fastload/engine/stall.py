"""What the steps of a training loop lost to data: sums over steps -> numbers for trackers, or words. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

PREFIX = "data/"
_KEEPS_UP = 0.05
"""Share of the step lost to data below which the loader keeps up; the profiler has the same."""


class Totals(NamedTuple):
    """Sums over steps; times in ns."""

    steps: int = 0
    total_ns: int = 0
    """Waits, and the loop after them."""
    startup_ns: int = 0
    """Of the waits: first batches of an epoch, with the making of the iterator."""
    workers_ns: int = 0
    """Of the others: waiting for workers."""
    here_ns: int = 0
    """Of the others: work in the loop's thread."""
    ready: int = 0
    """Complete batches behind those that were given."""
    ready_steps: int = 0
    """Steps for which their number is known."""

    def since(self, before: Totals) -> Totals:
        """Return the difference to earlier sums."""
        return Totals(*[now - then for now, then in zip(self, before, strict=True)])

    def plus(self, more: Totals) -> Totals:
        """Return the sums of both."""
        return Totals(*[one + other for one, other in zip(self, more, strict=True)])


def numbers(window: Totals, *, num_workers: int, batch_size: float | None) -> dict[str, float]:
    """Return what some steps lost to data; {} where there are none. ``batch_size``: samples of a step, on average.

    Returns:
        Names that begin with ``data/``: ``share``, of the step, lost to data (0 to 1); ``samples_per_s``;
        ``batches_ready``, complete batches behind the one given; the parts of ``share``: ``startup``, ``here``, and
        with workers ``workers``. What is unknown is left out.
    """
    if not window.steps or window.total_ns <= 0:
        return {}
    parts = {"startup": window.startup_ns, "here": window.here_ns}
    if num_workers:
        parts["workers"] = window.workers_ns
    lost = window.startup_ns + window.workers_ns + window.here_ns
    found = {"share": lost / window.total_ns}
    if batch_size is not None:
        found["samples_per_s"] = window.steps * batch_size / (window.total_ns / 1e9)
    if window.ready_steps:
        found["batches_ready"] = window.ready / window.ready_steps
    found |= {name: ns / window.total_ns for name, ns in parts.items()}
    return {PREFIX + name: float(value) for name, value in found.items()}


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


def in_words(found: Mapping[str, float]) -> str:
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
