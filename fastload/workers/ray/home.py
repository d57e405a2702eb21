"""Tries samples that failed on another machine on the loader's own: they may only be missing there.

In: results of tasks, with samples that ``on_error`` leaves out or replaces. Out: the same results, if these samples
fail here too; else an error that names the machine. An actor on the loader's machine tries them, made for the first:
the loader's own process would draw from the user's generators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import ClusterError
from ..fetch import Result
from ..processes import fields_of
from .actor import Started
from .actors import Actors, Call
from .assignment import RemoteTask, Worker
from .faults import reason

if TYPE_CHECKING:
    from ..on_error import Failure


class Home:
    """See the module. For one thread. The actor, on the loader's ``machine``, has ``timeout`` seconds to start."""

    def __init__(self, actors: Actors, machine: str, timeout: float) -> None:
        self._actors, self._machine, self._timeout = actors, machine, timeout
        self._held: dict[int, tuple[Any, list[Failure]]] = {}
        """Results that wait, and their samples that failed, by the serial of their task."""
        self._starts_since: float | None = None
        self._has_started = False

    def holds(self, worker: Worker, task: RemoteTask, value: Any, now: float) -> bool:
        """Return whether a result must wait for its samples to be tried, which begins then; ``now``: in seconds."""
        if worker.shares_memory or worker.machine == self._machine:
            return False
        message = value[0] if isinstance(value, tuple) else value
        failures = list(Result(*fields_of(message)).failures)
        if not failures:
            return False
        if self._starts_since is None:
            self._starts_since = now
        self._held[task.item.serial] = value, failures
        indices = list(task.item.indices)
        self._actors.try_here(worker, task, [(failure.row, indices[failure.row]) for failure in failures])
        return True

    def settled(self, call: Call) -> Any:
        """Return the result that waited for a call of the actor; its start, if it was called for that.

        Raises:
            ClusterError: a sample can be loaded here, or could not be tried.
        """
        worker, task = call.worker, call.task
        try:
            value = call.future.result()
        except Exception as error:
            raise ClusterError(
                f"samples that failed on {worker} could not be tried on the loader's machine: {reason(error)}"
            ) from error
        if task is None:
            assert isinstance(value, Started)
            self._has_started = True
            return value
        held, failures = self._held.pop(task.item.serial)
        for failure, is_loaded in zip(failures, value, strict=True):
            if is_loaded:
                file = "" if failure.file is None else f", {failure.file},"
                raise ClusterError(
                    f"the sample at index {failure.index!r}{file} cannot be loaded on {worker.host} "
                    f"({failure.error}: {failure.message}), and can on the loader's machine: on_error is for samples "
                    "that fail everywhere. The files must be at the same path on each machine: copy or mount them "
                    "there, or keep workers away from it by ray_options ('resources' or 'label_selector')",
                    worker_id=worker.worker_id,
                    samples=(failure.index,),
                )
        return held

    def look(self, now: float) -> None:
        """Look how long the actor takes to start; ``now``: in seconds.

        Raises:
            ClusterError: too long.
        """
        if self._starts_since is not None and not self._has_started and now - self._starts_since >= self._timeout:
            raise ClusterError(
                "samples that failed on another machine could not be tried on the loader's machine: the worker for it "
                f"has not started within {self._timeout:g} s (ray_options['placement_timeout'])"
            )
