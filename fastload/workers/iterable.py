"""A worker's replica of an IterableDataset: its iterator, and the state of it.

In: how many samples are wanted. Out: the next ones. Imported only for an IterableDataset.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from ..base import compat
from ..observe import Watch
from .samples import Job, SampleLoader


class IterableReplica:
    """One worker's replica.

    Args:
        job: what to load.
        state: where the replica begins, as :meth:`state` returned it; None: at its start.
        samples: of the same worker.
        watch: records the samples; None: they are not recorded.
    """

    def __init__(self, job: Job, state: Any, samples: SampleLoader, watch: Watch | None) -> None:
        self._job = job
        self._dataset = job.dataset
        self._samples = samples
        self._watch = watch
        self._iterator = self._stream(self._dataset)
        self.ended = False
        """Whether the iterator has ended."""
        if state is None:
            return
        self.ended = state["ended"]
        if _is_stateful(self._iterator):
            self._iterator.load_state_dict(state["state"])
        elif _is_stateful(self._dataset):
            self._dataset.load_state_dict(state["state"])
            self._iterator = self._stream(self._dataset)

    def _stream(self, dataset: Any) -> Any:
        iterator = iter(dataset)
        return iterator if self._watch is None else self._watch.stream(iterator)

    def begin_epoch(self, shared_seed: int | None) -> None:
        """Begin another epoch; if that fails, its first batch raises the error."""
        self.ended = False
        try:
            self._iterator = self._stream(compat.seed_iter_data_pipe(self._dataset, shared_seed))
        except Exception as error:
            self._iterator = _raising(error)

    def state(self) -> Any:
        """Return where this worker's replica of an IterableDataset is; None if it does not say.

        It says so if its iterator, or the dataset itself, has ``state_dict`` and ``load_state_dict``.
        """
        stateful = next((owner for owner in (self._iterator, self._dataset) if _is_stateful(owner)), None)
        if stateful is None:
            return None
        # A copy: it may be the very object that the dataset goes on changing.
        return {"state": copy.deepcopy(stateful.state_dict()), "ended": self.ended}

    def next_samples(self, index: Any) -> Any:
        """Return as many samples as there are indices; without auto-collation one.

        Raises:
            StopIteration: the replica has ended.
        """
        if self.ended:
            raise StopIteration
        if not self._job.auto_collation:
            return self._next()
        samples = []
        for _ in index:
            try:
                samples.append(self._next())
            except StopIteration:
                self.ended = True
                break
        if not samples or (self._job.drop_last and len(samples) < len(index)):
            raise StopIteration
        return samples

    def _next(self) -> Any:
        with self._samples.decoding_late():
            return self._samples.settled(next(self._iterator))


def _is_stateful(owner: Any) -> bool:
    return all(callable(getattr(owner, name, None)) for name in ("state_dict", "load_state_dict"))


def _raising(error: Exception) -> Iterator[Any]:
    """Return an iterator that raises once, and is at its end then."""

    def fail(_: None) -> None:
        raise error

    return map(fail, [None])
