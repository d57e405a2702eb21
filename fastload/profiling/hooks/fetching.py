"""Hears how a worker makes a batch: its task, its samples, collation. In torch's workers and in the main process.

A fetcher of torch's gets a dataset and a ``collate_fn`` that tell the time; the dataset that the user sees, in
``worker_info`` or anywhere else, is the user's.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from ..clocks import ThreadClocks
from ..recorder import Recorder
from ..records import Kind

# Below these mean costs of a sample, in ns, not every one is measured to the full: of the smallest one in 16.
_LIGHT = 100_000
_SPARSE = 25_000
_ONE_IN = 16

_now = time.perf_counter_ns
_cpu = time.thread_time_ns


class _Thread(threading.local):
    """What a thread is at."""

    clocks: ThreadClocks | None = None
    batch: int = -1
    worker: int = 0


class Fetching:
    """The hooks of one process.

    Args:
        recorder: where records go.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._thread = _Thread()

    def at(self, batch: int, worker: int) -> None:
        """Say what this thread will fetch next."""
        self._thread.batch, self._thread.worker = batch, worker

    def clocks(self) -> ThreadClocks:
        """Return this thread's clocks."""
        clocks = self._thread.clocks
        if clocks is None or not clocks.is_own:
            clocks = self._thread.clocks = ThreadClocks()
            for signal in clocks.missing:
                self._recorder.missing(signal, "the system does not tell")
        return clocks

    def watch(self, fetcher: Any) -> Any:
        """Let a fetcher of torch's tell what it does; return it."""
        samples: _Samples | None = None
        if hasattr(fetcher, "dataset_iter"):
            fetcher.dataset_iter = samples = _Stream(fetcher.dataset_iter, self._recorder)
        else:
            samples = _samples_of(fetcher.dataset, self._recorder)
            fetcher.dataset = _within(fetcher.dataset, samples)
        if fetcher.auto_collation:
            fetcher.collate_fn = _Collation(fetcher.collate_fn, self._recorder)
        fetch = fetcher.fetch
        recorder, thread = self._recorder, self._thread

        def timed_fetch(index: Any) -> Any:
            clocks = self.clocks()
            samples.begin()
            before = clocks.read()
            begun = _now()
            try:
                return fetch(index)
            finally:
                ended = _now()
                spent = clocks.read().since(before)
                samples.end()
                ring = recorder.ring()
                ring.write(Kind.WORK, 0, thread.worker, begun, ended, -1, thread.batch, spent.cpu, spent.runnable, 0)
                ring.write(Kind.READ, 0, thread.worker, begun, ended, spent.asked, spent.from_device, 0, spent.faults)

        fetcher.fetch = timed_fetch
        return fetcher


class _Samples:
    """Stands between a fetcher and a dataset."""

    def __init__(self, dataset: Any, recorder: Recorder) -> None:
        self._dataset = dataset
        self._recorder = recorder
        self._ring = recorder.ring()
        self._mean = 1e9
        self._taken = 0
        self._spent = 0
        self._place = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def __len__(self) -> int:
        return len(self._dataset)

    def begin(self) -> None:
        """A task begins."""
        self._ring = self._recorder.ring()
        self._taken = self._spent = self._place = 0

    def end(self) -> None:
        """It has ended: how much is measured next time depends on what samples cost."""
        if self._taken:
            mean = self._spent / self._taken
            self._mean = mean if self._mean == 1e9 else 0.75 * self._mean + 0.25 * mean

    def _take(self, get: Any, *arguments: Any) -> Any:
        place = self._place
        self._place = place + 1
        weight = 1
        if self._mean < _SPARSE:
            if place % _ONE_IN:
                return get(*arguments)
            weight = _ONE_IN
        full = self._mean > _LIGHT
        cpu = _cpu() if full else 0
        begun = _now()
        sample = get(*arguments)
        ended = _now()
        self._spent += ended - begun
        self._taken += 1
        index = arguments[0] if arguments and type(arguments[0]) is int else -1
        self._ring.write(Kind.SAMPLE, 0, place, begun, ended, index, _cpu() - cpu if full else -1, weight)
        return sample

    def __getitem__(self, index: Any) -> Any:
        return self._take(self._dataset.__getitem__, index)


class _ManySamples(_Samples):
    """The same for a dataset that gives many samples at once."""

    def __getitems__(self, indices: Any) -> Any:
        cpu = _cpu()
        begun = _now()
        samples = self._dataset.__getitems__(indices)
        self._ring.write(Kind.SAMPLE, 0, 0, begun, _now(), -1, _cpu() - cpu, len(indices))
        return samples


class _Stream(_Samples):
    """The same for the iterator of an IterableDataset."""

    def __iter__(self) -> _Stream:
        return self

    def __next__(self) -> Any:
        return self._take(self._dataset.__next__)


def _samples_of(dataset: Any, recorder: Recorder) -> _Samples:
    from torch.utils.data import Subset

    while type(dataset) is Subset:  # it asks its own dataset for one sample after the other
        dataset = dataset.dataset
    made = _ManySamples if callable(getattr(dataset, "__getitems__", None)) else _Samples
    return made(dataset, recorder)


def _within(dataset: Any, samples: _Samples) -> Any:
    """Return ``samples`` in the place of the dataset that they watch."""
    import copy

    from torch.utils.data import Subset

    if type(dataset) is not Subset:
        return samples
    outer = copy.copy(dataset)
    outer.dataset = _within(dataset.dataset, samples)
    return outer


class _Collation:
    def __init__(self, collate: Any, recorder: Recorder) -> None:
        self._collate = collate
        self._recorder = recorder

    def __call__(self, samples: Any) -> Any:
        cpu = _cpu()
        begun = _now()
        try:
            return self._collate(samples)
        finally:
            self._recorder.ring().write(Kind.COLLATE, 0, 0, begun, _now(), _cpu() - cpu)


__all__ = ["Fetching"]
