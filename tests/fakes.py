"""Named stand-ins for what is slow, random or outside: datasets, clocks, pools of workers."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from kit.datasets import Sized
from torch._utils import ExceptionWrapper
from torch.utils.data import IterableDataset, default_collate

from fastload.buffers.layout import Layout, LayoutMismatch, learn
from fastload.buffers.private_memory import PrivateMemory
from fastload.buffers.slots import SlotPool
from fastload.work import AnyTask, StartEpoch, Task
from fastload.workers.fetch import Outcome, Result
from fastload.workers.pool import Pool


class FakeClock:
    """Stands in place of the module ``time``; it goes on only when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def perf_counter_ns(self) -> int:
        return int(self.now * 1e9)

    def advance(self, seconds: float) -> None:
        self.now += seconds


class Squares(Sized):
    """``i`` and its square; nothing is drawn, but nobody can know that."""

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.tensor([float(index * index)])


class SquaresInBatches(Squares):
    """Loads whole batches."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Ragged(Sized):
    """No two neighbours have the same shape, so nothing can be stacked; for a ``collate_fn`` that pads."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((1 + index % 3,), index)


class Counting(IterableDataset[int]):
    """0, 1, ... in each replica."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Any:
        return iter(range(self.length))


class SampleError(Exception):
    """What the fake workers' user code raises."""


Load = Callable[[Any], Any]


def task(task_id: int, **fields: Any) -> Task:
    """Return a task that is a whole batch of one sample, but for these fields."""
    plain: dict[str, Any] = {
        "iteration": 0, "epoch": 0, "batch_id": task_id, "chunk_id": 0, "row": 0, "num_rows": 1, "slot": 1,
        "layout": None, "position": 0, "indices": [task_id],
    }  # fmt: skip
    return Task(**{"task_id": task_id, **plain, **fields})


class FakePool:
    """Workers that do their items inside :meth:`poll` and :meth:`wait`, in whatever order a test chooses.

    It also watches the rules between delivery and slots: rows are written only to slots in flight, no slot serves two
    batches at once, and no item comes for a worker that does not exist.

    Args:
        num_workers: how many there pretend to be. Only items that name one of them keep their order.
        load: index -> sample; what it raises becomes an ERROR result.
        rng: chooses which item is done next, how many are done at a time, and how their results look.
        raw_share: the share of chunks that come as samples though they would fit, as from a worker that has not
            heard of the layout yet.
        own_share: the share of such samples that come in rows by a layout that the worker has learnt, where they are
            the whole batch.
    """

    task_cost = 1.0
    pid = os.getpid()
    workers = ()

    def __init__(
        self,
        num_workers: int,
        load: Load,
        rng: random.Random,
        *,
        raw_share: float = 0.0,
        own_share: float = 0.5,
    ) -> None:
        self.slots = SlotPool(PrivateMemory(), keep=4)
        self.num_workers = num_workers
        self.load = load
        self.rng = rng
        self.raw_share = raw_share
        self.own_share = own_share
        self.iteration = 0
        self.layouts: dict[int, Layout] = {}
        self.pending: list[tuple[AnyTask, int | None]] = []
        self.results: deque[Result] = deque()
        self.submitted: list[Task] = []
        self.most_in_flight = 0
        self.unpicklable: Callable[[Any], bool] = lambda _: False
        self.unsendable: Callable[[int], bool] = lambda _: False
        self.broken_in_parent: Callable[[Task], bool] = lambda _: False
        self.workers = [SimpleNamespace(pid=100 + worker_id) for worker_id in range(num_workers)]
        self.held: dict[int, int] = {}

    # What delivery asks for.

    def begin(self, iteration: int) -> None:
        assert iteration > self.iteration
        self.iteration = iteration

    def publish(self, generation: int, layout: Layout) -> None:
        assert generation not in self.layouts
        self.layouts[generation] = layout

    def submit(self, item: AnyTask, worker_id: int | None = None) -> None:
        assert worker_id is None or 0 <= worker_id < self.num_workers
        if isinstance(item, Task):
            if self.unpicklable(item.indices):
                raise TypeError(f"cannot pickle {item.indices!r}")
            assert item.slot in self.slots.book.in_flight
            pending = [other for other, _ in self.pending if isinstance(other, Task)]
            others = [other for other in pending if other.slot == item.slot]
            assert all((o.iteration, o.batch_id) == (item.iteration, item.batch_id) for o in others)
            self.submitted.append(item)
        self.most_in_flight = max(self.most_in_flight, len(self.slots.book.in_flight))
        self.pending.append((item, worker_id))

    def poll(self) -> Result | None:
        while self.pending and self.rng.random() < 0.3:
            self.do_one()
        return self.results.popleft() if self.results else None

    def wait(self, timeout: float | None) -> None:
        if not self.results:
            assert self.pending, "delivery waits although nothing is under way"
            self.do_one()

    working_on = Pool.working_on

    def held_by(self, worker_id: int) -> list[int]:
        return [self.held[worker_id]] if worker_id in self.held else []

    def take_samples(self, payload: Any, item: Task) -> list[Any]:
        if self.broken_in_parent(item):
            raise SampleError("cannot be unpickled here")
        return list(payload)

    def take_whole(self, payload: Any, item: Task) -> Any:
        self.slots.release(item.slot)
        return payload

    def take_rows(self, payload: Any, item: Task, layout: Layout) -> list[Sequence[Any]]:
        return list(payload)

    # What the fake workers do.

    def do_one(self) -> None:
        """Do one item, of those that a worker could be at."""
        first_of: dict[int | None, int] = {}
        for place, (_, worker_id) in enumerate(self.pending):
            first_of.setdefault(worker_id, place)
        free = [place for place, (_, worker_id) in enumerate(self.pending) if worker_id is None]
        places = free + [place for worker_id, place in first_of.items() if worker_id is not None]
        item, worker_id = self.pending.pop(self.rng.choice(places))
        done_by = self.rng.randrange(self.num_workers) if worker_id is None else worker_id
        self.results.append(Result(item.task_id, done_by, *self._done(item), 1000))

    def do_all(self) -> None:
        """Do all that is there."""
        while self.pending:
            self.do_one()

    def _done(self, item: AnyTask) -> tuple[int, Any]:
        if isinstance(item, StartEpoch):
            return Outcome.SKIPPED, None
        if item.iteration < self.iteration and self.rng.random() < 0.5:  # else they are done in full
            return Outcome.SKIPPED, None
        assert item.slot in self.slots.book.in_flight, "work in a slot that is not in flight"
        try:
            if item.layout is None:
                return Outcome.BATCH, default_collate([self.load(index) for index in item.indices])
            return self._chunk(item, [self.load(index) for index in item.indices])
        except Exception as error:
            return Outcome.ERROR, ExceptionWrapper((type(error), error, error.__traceback__), where="in a fake")

    def _chunk(self, item: Task, samples: list[Any]) -> tuple[int, Any]:
        assert item.layout is not None
        layout = self.layouts.get(item.layout)
        if layout is None or self.rng.random() < self.raw_share:
            return self._as_they_are(item, samples)
        buffer = self.slots.memory.buffer(item.slot, max(1, layout.offsets(item.num_rows)[1]))
        try:
            return Outcome.ROWS, layout.write(samples, np.asarray(buffer), item.num_rows, item.row)
        except LayoutMismatch:
            return self._as_they_are(item, samples)

    def _as_they_are(self, item: Task, samples: list[Any]) -> tuple[int, Any]:
        if any(map(self.unsendable, item.indices)):
            return Outcome.UNSENDABLE, "TypeError: cannot pickle"
        found = learn(samples[0])
        if len(samples) == item.num_rows and isinstance(found, Layout) and self.rng.random() < self.own_share:
            buffer = self.slots.memory.buffer(item.slot, max(1, found.offsets(item.num_rows)[1]))
            with contextlib.suppress(LayoutMismatch):
                return Outcome.ROWS_NEW_LAYOUT, (found, found.write(samples, np.asarray(buffer), item.num_rows, 0))
        return Outcome.SAMPLES, samples


def frozen_time(clock: FakeClock) -> Any:
    """Return what a module may have in place of ``time``."""
    return SimpleNamespace(monotonic=clock.monotonic, perf_counter_ns=clock.perf_counter_ns, sleep=time.sleep)
