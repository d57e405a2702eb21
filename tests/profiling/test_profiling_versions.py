"""Versions of torch that are to come: iterators whose workers are threads, in the shape of torch's main branch."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset

from fastload.profiling.hooks.devices import CopyHooks
from fastload.profiling.hooks.session import Session
from fastload.profiling.hooks.stopping import StepLimit
from fastload.profiling.hooks.torch_loader import TorchHooks
from fastload.profiling.hooks.training_loop import WaitHooks
from fastload.profiling.reader import read_trace
from fastload.profiling.recorder import Recorder
from fastload.profiling.recording import write_settings
from fastload.profiling.trace import Trace


class Numbers(Dataset[Any]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> int:
        time.sleep(0.001)
        return index


class Kind:
    @staticmethod
    def create_fetcher(kind: Any, dataset: Any, auto_collation: bool, collate_fn: Any, drop_last: bool) -> Any:
        return Fetcher(dataset, auto_collation, collate_fn)


class Fetcher:
    def __init__(self, dataset: Any, auto_collation: bool, collate_fn: Any) -> None:
        self.dataset, self.auto_collation, self.collate_fn = dataset, auto_collation, collate_fn

    def fetch(self, indices: Any) -> Any:
        return self.collate_fn([self.dataset[index] for index in indices])


class Base:
    """What all iterators have."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._num_workers = loader.num_workers
        self._sampler_iter = iter(loader.batch_sampler)
        self._num_yielded = 0

    def __next__(self) -> Any:
        data = self._next_data()
        self._num_yielded += 1
        return data

    def __iter__(self) -> Iterator[Any]:
        return self

    def _next_index(self) -> Any:
        return next(self._sampler_iter)

    def _next_data(self) -> Any:
        raise NotImplementedError


class Parallel(Base):
    """What those with workers have in common."""

    _workers: list[Any]

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self._sampler_iter = iter(loader.batch_sampler)
        self._send_idx = self._rcvd_idx = 0
        self._task_info: dict[int, tuple[Any, ...]] = {}
        for _ in range(4):
            self._try_put_index()

    def _try_put_index(self) -> None:
        try:
            index = self._next_index()
        except StopIteration:
            return
        worker = self._send_idx % self._num_workers
        self._index_queues[worker].put((self._send_idx, index))
        self._task_info[self._send_idx] = (worker,)
        self._send_idx += 1

    def _try_get_data(self, timeout: float = 5.0) -> tuple[bool, Any]:
        return True, self._data_queue.get(timeout=timeout)

    def _next_data(self) -> Any:
        if self._rcvd_idx == self._send_idx:
            raise StopIteration
        while len(self._task_info[self._rcvd_idx]) == 1:
            batch, data = self._try_get_data()[1]
            self._task_info[batch] += (data,)
        data = self._task_info.pop(self._rcvd_idx)[1]
        self._rcvd_idx += 1
        self._try_put_index()
        return data


def thread_loop(
    kind: Any,
    dataset: Any,
    index_queue: Any,
    data_queue: Any,
    collate_fn: Any,
    create: Callable[..., Any],
    worker_id: int,
) -> None:
    fetcher = create(kind, dataset, True, collate_fn, False)
    while (task := index_queue.get()) is not None:
        data_queue.put((task[0], fetcher.fetch(task[1])))


class Threading(Parallel):
    """Those whose workers are threads."""

    loops: Any

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self._worker_result_queue = self._data_queue = queue.SimpleQueue[Any]()
        self._index_queues = [queue.SimpleQueue[Any]() for _ in range(self._num_workers)]
        self._workers = []
        for worker, indices in enumerate(self._index_queues):
            fetching = Kind.create_fetcher
            arguments = (None, loader.dataset, indices, self._data_queue, loader.collate_fn, fetching, worker)
            self._workers.append(threading.Thread(target=self.loops._thread_worker_loop, args=arguments))
            self._workers[-1].start()
        self._reset(loader, first_iter=True)

    def close(self) -> None:
        for indices in self._index_queues:
            indices.put(None)
        for worker in self._workers:
            worker.join(30)


class Processes(Parallel):
    """Those whose workers are processes: it has a way of its own to get data."""

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self._workers = []

    def _try_get_data(self, timeout: float = 5.0) -> tuple[bool, Any]:
        return True, self._data_queue.get(timeout=timeout)


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Callable[[], Trace]]:
    """Hear modules in the shape of torch's main branch; give what was recorded."""
    write_settings(tmp_path, command=[], warmup=0)
    recorder = Recorder(str(tmp_path))
    session = Session(recorder)
    waits = WaitHooks(session, StepLimit(None), CopyHooks(recorder, session.patches))
    hooks = TorchHooks(session, waits)
    main = SimpleNamespace(
        _BaseDataLoaderIter=Base,
        _ParallelDataLoaderIter=Parallel,
        _ThreadingDataLoaderIter=Threading,
        _MultiProcessingDataLoaderIter=Processes,
        _DatasetKind=Kind,
    )
    Threading.loops = SimpleNamespace(_process_worker_loop=thread_loop, _thread_worker_loop=thread_loop)
    hooks.patch_iterators(main)
    hooks.patch_workers(Threading.loops)
    yield lambda: read_trace(str(tmp_path))
    session.patches.restore()
    waits.close()
    assert "_reset" not in vars(Threading)
    assert Threading.loops._thread_worker_loop is thread_loop


def test_worker_threads_are_heard_with_their_tasks_pass_after_pass(recorded: Callable[[], Trace]) -> None:
    loader = DataLoader(Numbers(), batch_size=4, num_workers=2, collate_fn=list)
    iterator = Threading(loader)
    assert list(iterator) == [list(range(place, place + 4)) for place in range(0, 24, 4)]
    iterator._reset(loader)  # as with persistent workers
    assert len(list(iterator)) == 6
    iterator.close()
    trace = recorded()
    assert trace.missing == {}
    (rank,) = trace.ranks
    assert [step.first for step in rank.steps] == [place % 6 == 0 for place in range(12)]
    for place, step in enumerate(rank.steps):
        (task,) = step.batch.tasks
        assert [sample.index for sample in task.samples] == list(range(place % 6 * 4, place % 6 * 4 + 4))
        assert task.worker == place % 2
        assert task.dispatched is not None
        assert task.arrived is not None
        assert task.dispatched <= task.begun < task.ended <= task.arrived <= step.wait.ended
        assert task.collate is not None
