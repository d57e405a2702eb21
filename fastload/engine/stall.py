"""What the steps of a training loop lost to data: sums over steps -> numbers for trackers, and one line in words. Pure.

Trackers drop what is no number, so the stage to blame and the fix are words of the last line only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

PREFIX = "data/"
KEEPS_UP = 0.05
"""Share of the step lost to data below which the loader keeps up; the profiler has the same."""
_CROWDED = 0.40
"""Share of the time for which workers want a core and wait for it, above which the cores are too few."""


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
    idle_ns: int = 0
    """Time that the device had nothing to do around the waits."""
    busy_ns: int = 0
    """Time between the waits by the device's clock; 0: unknown."""

    @classmethod
    def of(cls, sums: Sequence[int], device: DeviceWaits | None) -> Totals:
        """Return what a loader's :class:`.steps.Steps` have counted, and who watches its device."""
        by_device = (0, 0) if device is None else (device.idle_ns, device.busy_ns)
        return cls(*[*sums, *by_device])

    def since(self, before: Totals) -> Totals:
        """Return the difference to earlier sums."""
        return Totals(*[now - then for now, then in zip(self, before, strict=True)])


class DeviceWaits(Protocol):
    """Measures what the device does around waits and between them."""

    idle_ns: int
    busy_ns: int

    def wait_begins(self) -> None:
        """The loop asks for a batch."""

    def wait_ends(self) -> None:
        """The loop has it."""

    def skip(self) -> None:
        """What the device does until the next wait does not count."""


class WorkerTimes(NamedTuple):
    """Sums over worker processes, in ns."""

    cpu_ns: int
    queue_ns: int
    """Ready to run while others had the cores."""
    total_ns: int
    """Since the same beginning, times the number of workers."""

    def since(self, before: WorkerTimes) -> WorkerTimes:
        """Return the difference to earlier sums."""
        return WorkerTimes(*[now - then for now, then in zip(self, before, strict=True)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """What the words go by: how a loader loads."""

    num_workers: int
    cores: int
    is_ours: bool
    """Whether it is a :class:`fastload.DataLoader`."""
    persistent_workers: bool


def numbers(
    window: Totals, *, num_workers: int, batch_size: float | None, workers: WorkerTimes | None = None
) -> dict[str, float]:
    """Return what some steps lost to data; {} where there are none.

    Args:
        window: the sums of these steps.
        num_workers: of the loader.
        batch_size: samples of a step, on average; None: unknown.
        workers: what its worker processes did meanwhile; None: unknown.

    Returns:
        Names that begin with ``data/``: ``share``, of the step, lost to data (0 to 1); ``samples_per_s``;
        ``batches_ready``, complete batches behind the one given; the parts of ``share``: ``startup``, ``here``, and
        ``workers`` or, where known, ``read``, ``cpu`` and ``cores`` in its place. What is unknown is left out.
    """
    if not window.steps or window.total_ns <= 0:
        return {}
    lost = window.startup_ns + window.workers_ns + window.here_ns
    on_host = share = lost / window.total_ns
    if window.busy_ns > 0:
        share = window.idle_ns / (window.idle_ns + window.busy_ns)
    found = {"share": share}
    if batch_size is not None:
        found["samples_per_s"] = window.steps * batch_size / (window.total_ns / 1e9)
    if window.ready_steps:
        found["batches_ready"] = window.ready / window.ready_steps
    # By the device's clock only the whole is known; its parts are those of the host's waits.
    scale = share / on_host if on_host else 0.0
    parts: dict[str, float] = {"startup": window.startup_ns, "here": window.here_ns}
    if num_workers:
        parts |= _of_workers(window, workers)
    found |= {name: scale * ns / window.total_ns for name, ns in parts.items()}
    return {PREFIX + name: float(value) for name, value in found.items()}


def _of_workers(window: Totals, workers: WorkerTimes | None) -> dict[str, float]:
    """Divide the waiting for workers by what they did.

    While the loop waited they were not idle, so they were busy for at least that share of their time. What of it was
    neither computing nor waiting for a core was blocked: on a disk, the network, a sleep.
    """
    waited = window.workers_ns
    if workers is None or workers.total_ns <= 0:
        return {"workers": waited}
    cpu, queue = workers.cpu_ns / workers.total_ns, workers.queue_ns / workers.total_ns
    busy = max(waited / window.total_ns, cpu + queue)
    if not busy:
        return {"read": 0.0, "cpu": 0.0, "cores": 0.0}  # nobody waited, and nobody worked
    return {
        "read": waited * max(0.0, busy - cpu - queue) / busy,
        "cpu": waited * cpu / busy,
        "cores": waited * queue / busy,
    }


def over_ranks(by_rank: Mapping[int, Mapping[str, float]]) -> dict[str, float]:
    """Return the means over ranks, with the share of the worst rank, its number, and how many ranks they are of.

    A part of the share that a rank does not have is 0 there, so that the parts still make up the share; another number
    is the mean of the ranks that have it. Of a single rank the numbers stay as they are.
    """
    if len(by_rank) == 1:
        return dict(next(iter(by_rank.values())))
    found: dict[str, float] = {}
    shares = {rank: one[PREFIX + "share"] for rank, one in by_rank.items() if one}
    for name in dict.fromkeys(name for one in by_rank.values() for name in one):
        known = [one[name] for one in by_rank.values() if name in one]
        is_part = name.removeprefix(PREFIX) in _BLAME
        found[name] = sum(known) / (len(shares) if is_part else len(known))
    if shares:
        worst = max(shares, key=lambda rank: (shares[rank], -rank))
        found |= {
            PREFIX + "worst_share": shares[worst],
            PREFIX + "worst_rank": float(worst),
            PREFIX + "ranks": float(len(shares)),
        }
    return found


def last_line(found: Mapping[str, float], loads: Loads, *, by_device: bool) -> str:
    """Return what a training lost to data, the stage to blame, and the fix, in words.

    Args:
        found: the numbers of all its steps, of this rank or over ranks.
        loads: of the loader.
        by_device: whether the device's clock was read.
    """
    share = found.get(PREFIX + "share")
    if share is None:
        return "no step was measured, so nothing can be said of what was lost to data"
    clock = "device" if by_device else "host"
    told = f"{percent(share)} of the step was lost to data (by the {clock}'s clock)"
    if found.get(PREFIX + "ranks", 1) > 1:
        worst, share_there = found[PREFIX + "worst_rank"], found[PREFIX + "worst_share"]
        told += (
            f", on average of {found[PREFIX + 'ranks']:.0f} ranks; the most on rank {worst:.0f}: {percent(share_there)}"
        )
    if share < KEEPS_UP:
        return f"{told}. The loader keeps up: more workers would not help"
    stages = [name for name in _BLAME if found.get(PREFIX + name, 0.0) > 0.0]
    stage = max(stages, key=lambda name: found[PREFIX + name], default="workers")
    cpu, queue = found.get(PREFIX + "cpu", 0.0), found.get(PREFIX + "cores", 0.0)
    if stage == "cpu" and queue > _CROWDED * (cpu + queue):
        stage = "cores"
    return f"{told}. To blame: {_BLAME[stage]}. {_fix(stage, loads)}"


def percent(share: float) -> str:
    """Return a share as text."""
    return f"{100 * share:.0f} %"


_BLAME = {
    "startup": "startup, the first batch of each epoch",
    "read": "reading, for which workers are blocked (a disk, the network, a sleep)",
    "cpu": "the CPU: the dataset needs more computation than the workers can do",
    "cores": "too few cores: workers are ready to run and wait for one",
    "workers": "the workers, which are slower than the loop",
    "here": "work in the loop's own thread, in next()",
}


def _fix(stage: str, loads: Loads) -> str:
    more = min(loads.cores, max(2, 2 * loads.num_workers))
    switch = (
        "" if loads.is_ours else "fastload.DataLoader in place of torch's, which shares a batch among the workers; "
    )
    name = "`fastload profile` on the script names what takes the time"
    if stage == "startup":
        if loads.num_workers and not loads.persistent_workers:
            return "Fix: persistent_workers=True"
        return f"Fix: {switch}longer epochs; {name}"
    if stage == "read":
        threads = "worker_threads=16" if loads.is_ours else "fastload.DataLoader with worker_threads=16"
        return f"Fix: {threads}, more workers, or a nearer storage"
    if stage == "cores":
        return "Fix: fewer workers, or fewer other threads on the machine; cheaper transforms"
    if stage == "here" and not loads.num_workers:
        return f"Fix: num_workers={max(1, min(loads.cores, 4))}, as nothing is loaded ahead without workers"
    if stage == "here":
        return f"Fix: device=... of fastload.DataLoader copies and transforms ahead of time; {name}"
    workers = f"num_workers={more}, " if more > loads.num_workers else ""
    return f"Fix: {workers}{switch}cheaper transforms; {name}"
