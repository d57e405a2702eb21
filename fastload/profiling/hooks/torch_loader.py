"""Hears torch's DataLoader, in the main process and in its workers.

What is replaced are functions of torch's own modules, looked up by name; each that is not there, or does not look as
it should, is noted as missing, and what it would have told is unknown (never zero). fastload's loaders derive from the
same base of iterators, so their waits are heard here too; how their batches come about is told by their own stages.
"""

from __future__ import annotations

import functools
import inspect
import threading
import time
import weakref
from typing import Any

from ... import observe
from ..recorder import Recorder
from ..records import Kind
from .fetching import Fetching
from .main_thread import MainThread
from .stopping import Stopping

_now = time.perf_counter_ns


class TorchLoader:
    """The hooks of one process.

    Args:
        recorder: where records go.
        fetching: hears the fetchers.
        stopping: counts steps, and ends the script after the last.
        loop: hears the thread between two waits.
    """

    def __init__(self, recorder: Recorder, fetching: Fetching, stopping: Stopping, loop: MainThread) -> None:
        self._recorder = recorder
        self._loop = loop
        self._fetching = fetching
        self._stopping = stopping
        self._loaders: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._living: weakref.WeakSet[Any] = weakref.WeakSet()
        self._waiting = threading.local()

    # -- what is replaced ---------------------------------------------------------------------------------------------

    def hook_main(self, module: Any) -> None:
        """Hear the iterators of ``torch.utils.data.dataloader``."""
        base = getattr(module, "_BaseDataLoaderIter", None)
        many = getattr(module, "_MultiProcessingDataLoaderIter", None)
        self._replace(base, "__init__", ("self", "loader"), self._init, "passes over loaders")
        self._replace(base, "__next__", ("self",), self._next, "waits in next()")
        self._replace(many, "__init__", ("self", "loader"), self._many_init, "the workers' processes")
        self._replace(many, "_reset", ("self", "loader"), self._reset, "passes of persistent workers")
        self._replace(many, "_try_put_index", ("self",), self._put, "when batches are handed to workers")
        self._replace(many, "_try_get_data", ("self",), self._get, "when batches arrive")
        self._replace(base, "_next_index", ("self",), self._index, "time in the sampler")
        kind: Any = getattr(module, "_DatasetKind", None)
        create = getattr(kind, "create_fetcher", None)
        if create is None:
            self._recorder.missing("samples and collation", "torch has no _DatasetKind.create_fetcher")
        else:
            kind.create_fetcher = staticmethod(self._created(create))

    def hook_worker(self, module: Any) -> None:
        """Hear ``torch.utils.data._utils.worker``: which batch a worker is at."""
        self._replace(module, "_worker_loop", (), self._worker_loop, "what workers do")

    def hook_pinning(self, module: Any) -> None:
        """Hear ``torch.utils.data._utils.pin_memory``: the thread that copies batches to page-locked memory."""
        self._replace(module, "_pin_memory_loop", (), self._pin_memory_loop, "pinning")

    def _replace(self, owner: Any, name: str, starts: tuple[str, ...], make: Any, signal: str) -> None:
        function = inspect.getattr_static(owner, name, None) if owner is not None else None
        if function is None:
            self._recorder.missing(signal, f"torch has no {getattr(owner, '__name__', 'such class')}.{name}")
            return
        if tuple(inspect.signature(function).parameters)[: len(starts)] != starts:
            self._recorder.missing(signal, f"torch's {name} takes other arguments than {', '.join(starts)}")
            return
        setattr(owner, name, functools.wraps(function)(make(function)))

    # -- passes -------------------------------------------------------------------------------------------------------

    def _init(self, function: Any) -> Any:
        def init(iterator: Any, loader: Any, *rest: Any, **named: Any) -> None:
            iterator._fastload_number = number = next(observe.numbers)
            self._living.add(iterator)
            begun = _now()
            self._loop.end(begun)
            try:
                function(iterator, loader, *rest, **named)
            finally:
                ring = self._recorder.ring()
                ring.write(Kind.ITERATOR, 0, loader.num_workers, begun, _now(), number, self.loader(loader))

        return init

    def _many_init(self, function: Any) -> Any:
        def init(iterator: Any, loader: Any, *rest: Any, **named: Any) -> None:
            begun = _now()
            try:
                function(iterator, loader, *rest, **named)
            finally:
                self.note_pass(iterator, loader, begun)

        return init

    def note_pass(self, iterator: Any, loader: Any, begun: int) -> None:
        """Note that an iterator has begun a pass, which took from ``begun`` until now."""
        number = getattr(iterator, "_fastload_number", -1)
        self._recorder.ring().write(Kind.PASS, 0, 0, begun, _now(), number, self.loader(loader))
        if getattr(loader, "worker_method", None) == "thread":
            self._loop.probe()
        processes = [worker.pid for worker in getattr(iterator, "_workers", ()) if hasattr(worker, "pid")]
        self._recorder.note("workers", iterator=number, processes=processes)

    def _reset(self, function: Any) -> Any:
        def reset(iterator: Any, loader: Any, first_iter: bool = False) -> None:
            if first_iter:  # a part of __init__
                function(iterator, loader, first_iter)
                return
            iterator._fastload_number = next(observe.numbers)
            begun = _now()
            self._loop.end(begun)
            try:
                function(iterator, loader, first_iter)
            finally:
                self.note_pass(iterator, loader, begun)

        return reset

    def loader(self, loader: Any) -> int:
        """Return the number of a loader."""
        number = self._loaders.get(loader)
        if number is None:
            number = self._loaders[loader] = len(self._loaders)
            self._recorder.note("loader", number=number, **described(loader))
        return number

    # -- waits --------------------------------------------------------------------------------------------------------

    def _next(self, function: Any) -> Any:
        recorder, stopping, waiting, loop = self._recorder, self._stopping, self._waiting, self._loop

        def __next__(iterator: Any) -> Any:  # noqa: N807 # its name in tracebacks
            if getattr(waiting, "inside", False):  # a subclass's, which calls this one
                return function(iterator)
            stopping.check()
            waiting.inside = True
            came = 0
            begun = _now()
            loop.end(begun)
            try:
                batch = function(iterator)
                came = 1
                return batch
            finally:
                waiting.inside = False
                place = _delivered(iterator)
                recorder.ring().write(Kind.WAIT, 0, came, begun, loop.begin(), *place)
                stopping.count(came)

        return __next__

    def _index(self, function: Any) -> Any:
        waiting = self._waiting

        def _next_index(iterator: Any) -> Any:
            waiting.samples = 0
            begun = _now()
            try:
                indices = function(iterator)
                waiting.samples = len(indices) if isinstance(indices, list | tuple) else 0
                if not iterator._num_workers:
                    ended = _now()
                    number = getattr(iterator, "_fastload_number", -1)
                    batch = getattr(iterator, "_num_loaded", iterator._num_yielded)
                    self._recorder.ring().write(
                        Kind.DISPATCH, 0, 0, begun, ended, number, batch, ended - begun, 0, waiting.samples
                    )
                return indices
            finally:
                waiting.sampler = _now() - begun

        return _next_index

    def _put(self, function: Any) -> Any:
        recorder, waiting = self._recorder, self._waiting

        def _try_put_index(iterator: Any) -> None:
            batch = iterator._send_idx
            begun = _now()
            waiting.sampler = waiting.samples = 0
            try:
                function(iterator)
            finally:
                ended = _now()
                if iterator._send_idx != batch:
                    worker = iterator._task_info[batch][0] if batch in iterator._task_info else -1
                    number = getattr(iterator, "_fastload_number", -1)
                    recorder.ring().write(
                        Kind.DISPATCH,
                        0,
                        max(worker, 0),
                        begun,
                        ended,
                        number,
                        batch,
                        waiting.sampler,
                        0,
                        waiting.samples,
                    )

        return _try_put_index

    def _get(self, function: Any) -> Any:
        recorder = self._recorder

        def _try_get_data(iterator: Any, *arguments: Any, **named: Any) -> Any:
            begun = _now()
            answer = function(iterator, *arguments, **named)
            success, data = answer
            if success and isinstance(data, tuple) and len(data) == 2 and type(data[0]) is int:
                iterator._fastload_arrived = data[0]
                number = getattr(iterator, "_fastload_number", -1)
                recorder.ring().write(Kind.ARRIVE, 0, 0, begun, _now(), number, data[0], 0, -1)
            return answer

        return _try_get_data

    # -- workers and the pinning thread -------------------------------------------------------------------------------

    def _created(self, create: Any) -> Any:
        @functools.wraps(create)
        def create_fetcher(*arguments: Any, **named: Any) -> Any:
            return self._fetching.watch(create(*arguments, **named))

        return create_fetcher

    def _worker_loop(self, function: Any) -> Any:
        parameters = tuple(inspect.signature(function).parameters)
        place = parameters.index("index_queue")
        worker = parameters.index("worker_id")

        def _worker_loop(*arguments: Any) -> None:
            watched = list(arguments)
            watched[place] = _IndexQueue(arguments[place], self._fetching, arguments[worker])
            function(*watched)

        return _worker_loop

    def _pin_memory_loop(self, function: Any) -> Any:
        def _pin_memory_loop(in_queue: Any, out_queue: Any, *rest: Any) -> None:
            pinned = _Pinned(self._recorder, functools.partial(self._iterator_of, in_queue))
            function(_PinSource(in_queue, pinned), _PinTarget(out_queue, pinned), *rest)

        return _pin_memory_loop

    def _iterator_of(self, queue: Any) -> int:
        for iterator in list(self._living):
            if getattr(iterator, "_worker_result_queue", None) is queue:
                number: int = iterator._fastload_number
                return number
        return -1


def _delivered(iterator: Any) -> tuple[int, int]:
    """Return the numbers of the iterator, and of the batch that ``next()`` has given, or was waiting for."""
    given = getattr(iterator, "_fastload_given", None)  # of our loaders: see fastload_loader.py
    if given:
        place: tuple[int, int] = given.popleft()
        return place
    return getattr(iterator, "_fastload_number", -1), -1 if given is not None else _last(iterator)


def _last(iterator: Any) -> int:
    if getattr(iterator, "_in_order", True) is False:
        arrived: int = getattr(iterator, "_fastload_arrived", -1)
        return arrived
    received: int | None = getattr(iterator, "_rcvd_idx", None)
    return (iterator._num_yielded if received is None else received) - 1


class _Queue:
    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class _IndexQueue(_Queue):
    """Tells which batch a worker is given."""

    def __init__(self, queue: Any, fetching: Fetching, worker: int) -> None:
        super().__init__(queue)
        self._fetching = fetching
        self._worker = worker

    def get(self, *arguments: Any, **named: Any) -> Any:
        got = self._queue.get(*arguments, **named)
        if type(got) is tuple and len(got) == 2 and type(got[0]) is int:
            self._fetching.at(got[0], self._worker)
        return got


class _Pinned:
    """What the pinning thread is at."""

    def __init__(self, recorder: Recorder, find: Any) -> None:
        self.recorder = recorder
        self.begun = 0
        self._find = find
        self._number = -1

    def number(self) -> int:
        """Return the number of the iterator."""
        if self._number < 0:
            self._number = self._find()
        return self._number


class _PinSource(_Queue):
    def __init__(self, queue: Any, pinned: _Pinned) -> None:
        super().__init__(queue)
        self._pinned = pinned

    def get(self, *arguments: Any, **named: Any) -> Any:
        begun = _now()
        got = self._queue.get(*arguments, **named)
        self._pinned.begun = _now()
        if type(got[0]) is int:
            ring = self._pinned.recorder.ring()
            ring.write(Kind.ARRIVE, 0, 0, begun, self._pinned.begun, self._pinned.number(), got[0], 0, -1)
        return got


class _PinTarget(_Queue):
    def __init__(self, queue: Any, pinned: _Pinned) -> None:
        super().__init__(queue)
        self._pinned = pinned

    def put(self, item: Any, *arguments: Any, **named: Any) -> None:
        ended = _now()  # waiting for room is no pinning
        self._queue.put(item, *arguments, **named)
        if type(item[0]) is int:
            ring = self._pinned.recorder.ring()
            ring.write(Kind.PIN, 0, 0, self._pinned.begun, ended, self._pinned.number(), item[0])


def described(loader: Any) -> dict[str, Any]:
    """Return what a report says of a loader, as far as it has it."""
    dataset = getattr(loader, "dataset", None)
    try:
        length = len(dataset)  # type: ignore[arg-type] # an error says that it has none
    except Exception:  # the user's __len__
        length = None
    try:
        num_batches = len(loader)
    except Exception:
        num_batches = None
    kind = type(loader)
    return {
        "engine": kind.__module__.partition(".")[0],
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "dataset": f"{type(dataset).__module__}.{type(dataset).__qualname__}",
        "length": length,
        "batches": num_batches,
        "sampler": type(getattr(loader, "sampler", None)).__qualname__,
        "collate": getattr(loader.collate_fn, "__qualname__", type(loader.collate_fn).__qualname__),
        **{
            name: getattr(loader, name, None)
            for name in (
                "batch_size",
                "num_workers",
                "prefetch_factor",
                "pin_memory",
                "persistent_workers",
                "in_order",
                "drop_last",
                "timeout",
                "worker_method",
            )
        },
        "context": str(getattr(getattr(loader, "multiprocessing_context", None), "_name", None) or "default"),
    }


__all__ = ["TorchLoader", "described"]
