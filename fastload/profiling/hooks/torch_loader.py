"""Hears torch's DataLoader, in the main process and in its workers.

What is replaced are functions of torch's own modules, looked up by name; each that is not there, or does not look as
it should, is noted as missing, and what it would have told is unknown (never zero). fastload's loaders derive from the
same base of iterators, so their waits are heard here too; how their batches come about is told by their own stages.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import time
import weakref
from typing import Any

from ... import observe
from ..costs import measured
from ..recorder import Recorder
from ..records import Kind
from .copies import Copies, DeviceClock, torch_events, used_accelerator
from .fetching import Fetching
from .main_thread import MainThread
from .selftest import Places
from .stopping import Stopping

_now = time.perf_counter_ns


class TorchLoader:
    """The hooks of one process.

    Args:
        recorder: where records go.
        fetching: hears the fetchers.
        stopping: counts steps, and ends the script after the last.
        loop: hears the thread between two waits.
        places: puts the hooks in.
        copies: hears copies to a device.
        only: hear this loader alone; None: all.
    """

    def __init__(
        self,
        recorder: Recorder,
        fetching: Fetching,
        stopping: Stopping,
        loop: MainThread,
        places: Places,
        copies: Copies,
        only: Any = None,
    ) -> None:
        self._recorder = recorder
        self._places = places
        self._copies = copies
        self._only = only
        self._loop = loop
        self._fetching = fetching
        self._stopping = stopping
        self._loaders: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._living: weakref.WeakSet[Any] = weakref.WeakSet()
        self._waiting = threading.local()
        self._device: DeviceClock | None = None
        self._measured = False

    # -- what is replaced ---------------------------------------------------------------------------------------------

    def hook_main(self, module: Any) -> None:
        """Hear the iterators of ``torch.utils.data.dataloader``."""
        base = getattr(module, "_BaseDataLoaderIter", None)
        many = getattr(module, "_MultiProcessingDataLoaderIter", None)
        replace = self._places.replace
        replace(base, "__init__", self._init, "passes over loaders", takes=("self", "loader"))
        replace(base, "__next__", self._next, "waits in next()", uses=("_next_data",))
        replace(base, "_next_index", self._index, "time in the sampler")
        self._hook_many(many)
        kind = getattr(module, "_DatasetKind", None)
        replace(kind, "create_fetcher", self._created, "samples and collation", takes=("dataset", "collate_fn"))

    def _look_for_device(self) -> None:
        """Hear a device as soon as the script has one in use."""
        torch = sys.modules["torch"]
        if used_accelerator(torch) is not None:
            self._device = DeviceClock(self._recorder, torch_events(torch, self._recorder))
            self._copies.hook_tensor(torch.Tensor)

    def _hook_many(self, many: Any) -> None:
        replace = self._places.replace
        replace(
            many, "__init__", self._many_init, "the workers' processes", takes=("self", "loader"), uses=("_workers",)
        )
        replace(many, "_reset", self._reset, "passes of persistent workers", takes=("self", "loader", "first_iter"))
        inner = ("_next_index", "_send_idx", "_task_info")
        replace(many, "_try_put_index", self._put, "when batches are handed to workers", uses=inner)
        replace(many, "_try_get_data", self._get, "when batches arrive", uses=("_data_queue",))
        replace(many, "_next_data", _unchanged, "which batch next() gives", uses=("_rcvd_idx", "_try_put_index"))

    def hook_worker(self, module: Any) -> None:
        """Hear ``torch.utils.data._utils.worker``: which batch a worker is at."""
        takes = ("index_queue", "worker_id")
        self._places.replace(module, "_worker_loop", self._worker_loop, "what workers do", takes=takes)

    def hook_torchdata(self, module: Any) -> None:
        """Hear ``torchdata.stateful_dataloader.stateful_dataloader``, whose iterators derive from torch's base."""
        self._hook_many(getattr(module, "_StatefulMultiProcessingDataLoaderIter", None))
        heard = sys.modules["torchdata.stateful_dataloader.worker"]._worker_loop
        if getattr(module, "_worker_loop", heard) is not heard:  # imported before it was heard
            self._places.replace(module, "_worker_loop", lambda _: heard, "what torchdata's workers do")

    def hook_pinning(self, module: Any) -> None:
        """Hear ``torch.utils.data._utils.pin_memory``: the thread that copies batches to page-locked memory."""
        takes = ("in_queue", "out_queue")
        self._places.replace(module, "_pin_memory_loop", self._pin_memory_loop, "pinning", takes=takes)

    # -- passes -------------------------------------------------------------------------------------------------------

    def _init(self, function: Any) -> Any:
        def init(iterator: Any, loader: Any, *rest: Any, **named: Any) -> None:
            if self._only is not None and loader is not self._only:
                function(iterator, loader, *rest, **named)
                return
            iterator._fastload_number = number = next(observe.numbers)
            self._living.add(iterator)
            begun = _now()
            self._loop.end(begun)
            if not self._measured:
                self._measured = True
                self._recorder.note("costs", **measured())
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
                if _number(iterator) is not None:
                    self.note_pass(iterator, loader, begun)

        return init

    def note_pass(self, iterator: Any, loader: Any, begun: int) -> None:
        """Note that an iterator has begun a pass, which took from ``begun`` until now."""
        number = _number(iterator)
        self._recorder.ring().write(Kind.PASS, 0, 0, begun, _now(), number, self.loader(loader))
        if getattr(loader, "worker_method", None) == "thread":
            self._loop.probe()
        processes = [worker.pid for worker in getattr(iterator, "_workers", ()) if hasattr(worker, "pid")]
        self._recorder.note("workers", iterator=number, processes=processes)

    def _reset(self, function: Any) -> Any:
        def reset(iterator: Any, loader: Any, first_iter: bool = False, **named: Any) -> None:
            if first_iter or _number(iterator) is None:  # the first is a part of __init__
                function(iterator, loader, first_iter, **named)
                return
            iterator._fastload_number = next(observe.numbers)
            begun = _now()
            self._loop.end(begun)
            try:
                function(iterator, loader, first_iter, **named)
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
            if getattr(waiting, "inside", False) or _number(iterator) is None:  # a subclass's, which calls this one
                return function(iterator)
            cached = stopping.cached()
            waiting.inside = True
            came = 0
            begun = _now()
            loop.end(begun)
            if cached is not None:
                waiting.inside = False
                recorder.ring().write(Kind.WAIT, 0, 2, begun, loop.begin(), -1, -1)
                return cached[0]
            if self._device is None:
                self._look_for_device()
            device = self._device
            if device is not None:
                device.wait_begins()
            try:
                batch = function(iterator)
                came = 1
                stopping.given(batch)
                return batch
            finally:
                waiting.inside = False
                place = _delivered(iterator)
                ended = loop.begin()
                recorder.ring().write(Kind.WAIT, 0, came, begun, ended, *place)
                if device is not None:
                    device.wait_ends(place[0], place[1] if came else -1, begun, ended)

        return __next__

    def _index(self, function: Any) -> Any:
        waiting = self._waiting

        def _next_index(iterator: Any) -> Any:
            waiting.samples = 0
            begun = _now()
            try:
                indices = function(iterator)
                waiting.samples = len(indices) if isinstance(indices, list | tuple) else 0
                number = _number(iterator)
                if number is not None and not getattr(iterator, "_num_workers", 1):
                    ended = _now()
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
                number = _number(iterator)
                if iterator._send_idx != batch and number is not None:
                    worker = iterator._task_info[batch][0] if batch in iterator._task_info else -1
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
            number = _number(iterator)
            if number is not None and success and type(data) is tuple and len(data) == 2 and type(data[0]) is int:
                iterator._fastload_arrived = data[0]
                recorder.ring().write(Kind.ARRIVE, 0, 0, begun, _now(), number, data[0], 0, -1)
            return answer

        return _try_get_data

    # -- workers and the pinning thread -------------------------------------------------------------------------------

    def _created(self, create: Any) -> Any:
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
    number = _number(iterator)
    return -1 if number is None else number, -1 if given is not None else _last(iterator)


def _last(iterator: Any) -> int:
    if getattr(iterator, "_in_order", True) is False:
        arrived: int = getattr(iterator, "_fastload_arrived", -1)
        return arrived
    received: int | None = getattr(iterator, "_rcvd_idx", None)
    yielded: int = getattr(iterator, "_num_yielded", 0)
    return (yielded if received is None else received) - 1


def _number(iterator: Any) -> int | None:
    """Return the number of an iterator; None if it is not heard."""
    number: int | None = getattr(iterator, "_fastload_number", None)
    return number


def _unchanged(function: Any) -> Any:
    return function


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
