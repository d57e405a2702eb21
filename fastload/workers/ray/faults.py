"""When a loss, or a worker that is not there, is an error; and the words for it.

In: what became of workers, and when. Out: a warning's words, or the error, raised. No threads, clocks or Ray.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any, Literal, NamedTuple

from ...errors import ClusterError, WorkerDied
from ..pool import named, samples_of
from .actor import Started
from .assignment import RemoteTask, Worker

# Deaths in a row: of one worker before it has started, and of workers that were at the same task. A machine that goes
# takes its workers with it, whatever they do, so only deaths on machines that are still there count.
FAILED_STARTS = 3
DEADLY = 3
# Whatever Ray says of the machines: a task may be what ends them.
_DEADLY_ANYWHERE = 10


class Death(NamedTuple):
    """What Ray says of an actor that is gone."""

    error: BaseException
    machine: str
    """Where its process ended: Ray's number of the machine; empty: Ray does not say that it was the process."""
    machines: Collection[str]
    """Those that the cluster has now."""


class Losses:
    """Counts losses, not of machines that went meanwhile; ``assigned``: batches are bound to their workers."""

    def __init__(self, *, assigned: bool) -> None:
        self.num_lost = 0
        self._assigned = assigned
        self.num_failed_starts = 0
        self.last_failed_start = ""
        """Why a worker ended before it had started, in words."""
        self._failed_starts: dict[int, list[str]] = {}
        """By worker: the machines."""
        self._deaths: defaultdict[int, list[str]] = defaultdict(list)
        """By task, its serial: the machines."""

    def started(self, worker: Worker, started: Started) -> None:
        """Note that a worker has started.

        Raises:
            ClusterError: on a machine that differs from the loader's.
        """
        if started.different:
            raise ClusterError(
                f"{started.host} (Ray's node {started.node_id[:8]}) would make other batches than this machine: "
                f"{'; '.join(started.different)}. Install the same fastload, torch and Pillow on both, or place the "
                "workers on machines of one kind (ray_options={'resources': ...} or 'label_selector'); "
                "ray_options={'compare_nodes': False} leaves this check out"
            )
        self._failed_starts.pop(worker.worker_id, None)

    def failed_start(self, worker: Worker, death: Death) -> None:
        """Note that a worker ended before it had started.

        Raises:
            ClusterError: once too often, on machines that are still there.
        """
        self.num_failed_starts += 1
        self.last_failed_start = reason(death.error)
        ended = [*self._failed_starts.get(worker.worker_id, ()), death.machine]
        self._failed_starts[worker.worker_id] = ended = [one for one in ended if one in death.machines]
        if len(ended) >= FAILED_STARTS:
            raise ClusterError(
                f"Ray worker {worker.worker_id} cannot start; {FAILED_STARTS} attempts ended in: {reason(death.error)}."
                " Each machine of the cluster needs the same fastload (and Python, and Ray): install it there, or "
                "send it along with ray_options={'runtime_env': {...}}"
            ) from death.error

    def lost(self, worker: Worker, death: Death) -> str | None:
        """Note that a worker was lost, at its first task; return what to tell the user, at the first loss.

        Raises:
            WorkerDied: its batches are bound to it, or its task has ended others before.
        """
        self.num_lost += 1
        error = death.error
        first = next(iter(worker.tasks.values()), None)
        self._check_bound("was lost", worker, first, error)
        if first is not None:
            deaths = self._deaths[first.item.serial]
            deaths.append(death.machine)
            if sum(one in death.machines for one in deaths) >= DEADLY or len(deaths) >= _DEADLY_ANYWHERE:
                raise WorkerDied(
                    f"{len(deaths)} Ray workers were lost one after the other while loading {named(first.item)}; the "
                    f"last: {reason(error)}. These samples may end the process or take more memory than there is",
                    worker_id=worker.worker_id,
                    samples=samples_of(first.item),
                ) from error
        if self.num_lost > 1:
            return None
        return (
            f"{worker} was lost ({reason(error)}); {len(worker.tasks)} task(s) "
            "of it are made again elsewhere, the batches stay the same. statistics().remote counts further losses"
        )

    def result_lost(self, worker: Worker, task: RemoteTask | None, error: BaseException) -> None:
        """Note that what a worker has returned was lost on the way.

        Raises:
            WorkerDied: its batches are bound to it, and it has gone on.
        """
        self._check_bound("made a batch that was lost on the way", worker, task, error)

    def _check_bound(self, what: str, worker: Worker, task: RemoteTask | None, error: BaseException) -> None:
        if self._assigned:
            raise WorkerDied(
                f"{worker} {what}, and its batches are bound to it (an "
                f"IterableDataset, or seeding='torch'), so that no other can go on exactly: {reason(error)}. Save "
                "state_dict() and resume, or use a map-style dataset with seeding='sample'",
                worker_id=worker.worker_id,
                samples=() if task is None else samples_of(task.item),
            ) from error


class Room(NamedTuple):
    """What Ray says of the cluster, for an actor of some kind."""

    num_waiting: int | None
    """How many of the kind wait for room: the others have theirs, and are being started. None: Ray does not say."""
    has_any: bool
    """Whether a machine could take one, if it had nothing else."""
    there_is: str
    """What the cluster has, in words."""


class Placement:
    """Whether enough workers run; ``assigned``: batches are bound to them.

    Ray has ``timeout`` seconds to place and start them, at the beginning and after a loss. ``beside_local``: there are
    local workers too, so that none of these is needed.
    """

    def __init__(
        self, num_workers: int, timeout: float, *, assigned: bool, beside_local: bool = False, now: float
    ) -> None:
        self._num_workers, self._timeout = num_workers, timeout
        self._assigned, self._beside_local = assigned, beside_local
        self._any_at = self._all_at = now
        """When any, and all, were up last."""
        self._is_told = False

    def look(self, num_up: int, now: float) -> Literal["warn", "fail"] | None:
        """Return what to do when so many are up: warn, once until all are up; or fail; or None: nothing."""
        if num_up or self._beside_local:
            self._any_at = now
        if num_up == self._num_workers:
            self._all_at, self._is_told = now, False
        if now - self._any_at >= self._timeout:
            return "fail"
        if now - self._all_at < self._timeout or not (num_up or self._beside_local):
            return None
        if self._assigned:
            return "fail"
        is_told, self._is_told = self._is_told, True
        return None if is_told else "warn"

    def in_words(self, num_up: int, actor: Mapping[str, Any], room: Room, last_failed_start: str) -> str:
        """Return that ``num_up`` run, and what the others wait for: what each asks of Ray, which says what it has.

        ``last_failed_start``: why a worker ended before it had started; empty: none did.
        """
        asked = ", ".join(f"{name}={value}" for name, value in actor.items())
        missing = self._num_workers - num_up
        waiting = missing if room.num_waiting is None else min(missing, room.num_waiting)
        less = "ask for fewer, or for less of each in ray_options, such as {'num_cpus': 0.5}"
        longer = "give those that start more time, by placement_timeout"
        states, remedies = [], []
        if room.num_waiting is None:
            states.append(f"{missing} not placed, or still starting")
            remedies += [less, longer]
        elif waiting:
            why = "wait for room" if room.has_any else "cannot be placed, since no machine has as much"
            states.append(f"{waiting} {why}")
            remedies.append(less)
        if missing > waiting:
            states.append(
                f"{missing - waiting} placed and still starting (runtime_env, imports, the dataset, worker_init_fn)"
            )
            remedies.append(longer)
        ended = f" One that was starting has ended: {last_failed_start}." if last_failed_start else ""
        end = ""
        if self._beside_local:
            end = "; the loader goes on with its local workers, and these join when there is room"
        elif num_up and self._assigned:
            end = "; each of these workers has batches that no other can make"
        elif num_up:
            end = "; the loader goes on with those that run, and others join"
        remedy = "; ".join(remedies)
        return (
            f"{num_up} of {self._num_workers} Ray workers run after {self._timeout:g} s "
            f"(ray_options['placement_timeout']): {', '.join(states)}. Each asks for {asked}; {room.there_is}.{ended} "
            f"{remedy[:1].upper()}{remedy[1:]}{end}"
        )


def reason(error: BaseException) -> str:
    """Return what an error of Ray's says, shortened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    kept = [line for line in lines if not line.startswith(("class_name:", "actor_id:", "pid:", "namespace:", "ip:"))]
    return " ".join(kept)[:600].rstrip(".") or type(error).__name__
