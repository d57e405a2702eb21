"""Hooks for torch's DataLoader and torchdata's: index drawing, dispatch, workers, arrival of results, pinning.

Functions of torch's own modules are replaced; one that is missing, or does not look as expected, is noted as missing.
fastload's loaders derive from the same iterator base class, so their waits are recorded here too; how their batches are
made is recorded by :mod:`.fastload_loader`.

NOTE [Versions of torch]
Up to torch 2.15 there is one iterator class with workers, which are processes and run ``_worker_loop``. In torch's main
branch after 2.15 processes and threads share a base class, and each has its own loop. A method is replaced in each
class that defines it, which covers both.
"""

from __future__ import annotations

import inspect
import sys
import time
from typing import Any

from ..recorder import Recorder
from ..ring import Kind
from .fetching import Fetching
from .iterators import Iterators, Nesting, Owner, loaded, number_of, pinned
from .patching import Places, leave, unseen
from .training_loop import Waits

_now = time.perf_counter_ns


class Tasks:
    """What stands for the functions of torch's that tasks pass through.

    Args:
        recorder: where records go.
        iterators: those that are heard.
        nesting: what each thread is at.
        fetching: hears the fetchers.
    """

    def __init__(self, recorder: Recorder, iterators: Iterators, nesting: Nesting, fetching: Fetching) -> None:
        self._recorder = recorder
        self._iterators = iterators
        self._nesting = nesting
        self._fetching = fetching

    # -- in the process of the loop -----------------------------------------------------------------------------------

    def draw(self, function: Any) -> Any:
        """Stand for ``_next_index``: the sampler is asked."""
        nesting, recorder = self._nesting, self._recorder

        def _next_index(iterator: Any) -> Any:
            thread = nesting.thread
            thread.num_samples = 0
            begun = _now()
            try:
                indices = function(iterator)
                number = thread.num_samples = len(indices) if isinstance(indices, list | tuple) else 0
                has_workers = bool(getattr(iterator, "_num_workers", True))
                if not (has_workers or thread.deaf or number_of(iterator) is None):
                    ended = _now()
                    place = loaded(iterator)
                    recorder.ring().write(Kind.DISPATCH, 0, 0, begun, ended, *place, ended - begun, 0, number)
                return indices
            except BaseException as error:
                leave(error)
                raise
            finally:
                thread.sampler_ns = _now() - begun

        return _next_index

    def hand(self, function: Any) -> Any:
        """Stand for ``_try_put_index``: a worker gets a task, if there is one."""
        nesting, recorder = self._nesting, self._recorder

        def _try_put_index(iterator: Any) -> None:
            thread = nesting.thread
            batch = iterator._send_idx
            begun = _now()
            thread.sampler_ns = thread.num_samples = 0
            try:
                function(iterator)
            except BaseException as error:
                leave(error)
                raise
            finally:
                ended = _now()
                number = number_of(iterator)
                if iterator._send_idx != batch and number is not None:
                    worker = iterator._task_info[batch][0] if batch in iterator._task_info else -1
                    drawn, samples = thread.sampler_ns, thread.num_samples
                    recorder.ring().write(
                        Kind.DISPATCH, 0, max(worker, 0), begun, ended, number, batch, drawn, 0, samples
                    )

        return _try_put_index

    def get(self, function: Any) -> Any:
        """Stand for ``_try_get_data``: a result is read, if there is one."""
        recorder = self._recorder

        def _try_get_data(iterator: Any, *arguments: Any, **named: Any) -> Any:
            begun = _now()
            try:
                answer = function(iterator, *arguments, **named)
            except BaseException as error:
                leave(error)
                raise
            success, data = answer
            number = number_of(iterator)
            if number is not None and success and type(data) is tuple and len(data) == 2 and type(data[0]) is int:
                iterator._fastload_arrived = data[0]
                recorder.ring().write(Kind.ARRIVE, 0, 0, begun, _now(), number, data[0], 0, -1)
            return answer

        return _try_get_data

    # -- in workers ---------------------------------------------------------------------------------------------------

    def fetcher(self, create: Any) -> Any:
        """Stand for ``create_fetcher``."""
        watch = self._fetching.watch

        def create_fetcher(*arguments: Any, **named: Any) -> Any:
            try:
                return watch(create(*arguments, **named))
            except BaseException as error:
                leave(error)
                raise

        return create_fetcher

    def process_loop(self, function: Any) -> Any:
        """Stand for what a worker process runs."""
        return self._loop(function, in_thread=False)

    def thread_loop(self, function: Any) -> Any:
        """Stand for what a worker thread runs, after torch 2.15."""
        return self._loop(function, in_thread=True)

    def _loop(self, function: Any, *, in_thread: bool) -> Any:
        places = {name: place for place, name in enumerate(inspect.signature(function).parameters)}
        nesting, fetching, iterators = self._nesting, self._fetching, self._iterators

        def _worker_loop(*arguments: Any) -> None:
            # A process does not know what its parent calls the pass; by its queue a thread finds its iterator.
            owner = iterators.owner_of(arguments[places["data_queue"]]) if in_thread else None
            worker = arguments[places["worker_id"]]
            watched = list(arguments)
            queue = places["index_queue"]
            watched[queue] = IndexQueue(arguments[queue], fetching, worker, owner)
            nesting.thread.at = watched[queue]
            try:
                function(*watched)
            except BaseException as error:
                leave(error)
                raise

        return _worker_loop


class Queue:
    """Stands for a queue."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class IndexQueue(Queue):
    """Tells which batch a worker is given."""

    def __init__(self, queue: Any, fetching: Fetching, worker: int, owner: Any) -> None:
        super().__init__(queue)
        self._fetching = fetching
        self._worker = worker
        self._owner = owner

    @unseen
    def get(self, *arguments: Any, **named: Any) -> Any:
        """Take what is next."""
        try:
            got = self._queue.get(*arguments, **named)
        except BaseException as error:
            leave(error)
            raise
        if type(got) is tuple and len(got) == 2 and type(got[0]) is int:
            self._fetching.at(-1 if self._owner is None else self._owner.number(), got[0], self._worker)
        return got


class Pinning:
    """What stands for torch's functions that pin.

    Args:
        recorder: where records go.
        iterators: those that are heard.
        nesting: what each thread is at.
    """

    def __init__(self, recorder: Recorder, iterators: Iterators, nesting: Nesting) -> None:
        self._recorder = recorder
        self._iterators = iterators
        self._nesting = nesting

    def loop(self, function: Any) -> Any:
        """Stand for what the thread runs."""
        recorder, iterators = self._recorder, self._iterators

        def _pin_memory_loop(in_queue: Any, out_queue: Any, *rest: Any) -> None:
            pinned = _Pinned(recorder, iterators.owner_of(in_queue))
            try:
                function(_Source(in_queue, pinned), _Target(out_queue, pinned), *rest)
            except BaseException as error:
                leave(error)
                raise

        return _pin_memory_loop

    def pin(self, function: Any) -> Any:
        """Stand for ``pin_memory``, which calls itself for each part of a batch."""
        recorder, nesting = self._recorder, self._nesting

        def pin_memory(*arguments: Any, **named: Any) -> Any:
            thread = nesting.thread
            at = thread.at
            heard = at is not None and not (thread.deaf or thread.pinning) and number_of(at) is not None
            if heard:
                thread.pinning = True
            begun = _now()
            try:
                return function(*arguments, **named)
            except BaseException as error:
                leave(error)
                raise
            finally:
                if heard:
                    thread.pinning = False
                    recorder.ring().write(Kind.PIN, 0, 0, begun, _now(), *pinned(at))

        return pin_memory


class _Pinned:
    """What the pinning thread is at."""

    def __init__(self, recorder: Recorder, owner: Owner) -> None:
        self.recorder = recorder
        self.owner = owner
        self.begun = 0


class _Source(Queue):
    def __init__(self, queue: Any, pinned: _Pinned) -> None:
        super().__init__(queue)
        self._pinned = pinned

    @unseen
    def get(self, *arguments: Any, **named: Any) -> Any:
        begun = _now()
        try:
            got = self._queue.get(*arguments, **named)
        except BaseException as error:
            leave(error)
            raise
        self._pinned.begun = _now()
        if type(got[0]) is int:
            ring = self._pinned.recorder.ring()
            ring.write(Kind.ARRIVE, 0, 0, begun, self._pinned.begun, self._pinned.owner.number(), got[0], 0, -1)
        return got


class _Target(Queue):
    def __init__(self, queue: Any, pinned: _Pinned) -> None:
        super().__init__(queue)
        self._pinned = pinned

    @unseen
    def put(self, item: Any, *arguments: Any, **named: Any) -> None:
        ended = _now()  # waiting for room is no pinning
        try:
            self._queue.put(item, *arguments, **named)
        except BaseException as error:
            leave(error)
            raise
        if type(item[0]) is int:
            ring = self._pinned.recorder.ring()
            ring.write(Kind.PIN, 0, 0, self._pinned.begun, ended, self._pinned.owner.number(), item[0])


_SHARED = ("_ParallelDataLoaderIter",)
_WITH_WORKERS = ("_ThreadingDataLoaderIter", "_MultiProcessingDataLoaderIter")
_LOOPS = ("_worker_loop", "_process_worker_loop")
_THREAD_LOOP = "_thread_worker_loop"


class TorchLoader:
    """Knows what lies where in torch, whatever its version.

    Args:
        places: puts the hooks in.
        waits: hears the loop.
        tasks: hears tasks on their way.
        pinning: hears batches being pinned.
    """

    def __init__(self, places: Places, waits: Waits, tasks: Tasks, pinning: Pinning) -> None:
        self._places = places
        self._waits = waits
        self._tasks = tasks
        self._pinning = pinning

    def hook_main(self, module: Any) -> None:
        """Hear the iterators of ``torch.utils.data.dataloader``."""
        replace, waits, tasks = self._places.replace, self._waits, self._tasks
        base = getattr(module, "_BaseDataLoaderIter", None)
        replace(base, "__init__", waits.init, "passes over loaders", takes=("self", "loader"))
        replace(base, "__next__", waits.next, "waits in next()", uses=("_next_data",))
        replace(base, "_next_index", tasks.draw, "time in the sampler")
        self._hook_kinds(module, _SHARED, _WITH_WORKERS)
        kind = getattr(module, "_DatasetKind", None)
        replace(kind, "create_fetcher", tasks.fetcher, "samples and collation", takes=("dataset", "collate_fn"))

    def _hook_kinds(self, module: Any, shared: tuple[str, ...], with_workers: tuple[str, ...]) -> None:
        """Hear iterators that have workers."""
        replace_in, waits, tasks = self._places.replace_in, self._waits, self._tasks
        ends = [getattr(module, name) for name in with_workers if hasattr(module, name)]
        kinds = [*(getattr(module, name) for name in shared if hasattr(module, name)), *ends]
        made, again = ("self", "loader"), ("self", "loader", "first_iter")
        handing = ("_next_index", "_send_idx", "_task_info")
        for kind in ends or [None]:
            signal = "the workers' processes"
            self._places.replace(kind, "__init__", waits.init_with_workers, signal, takes=made, uses=("_workers",))
        replace_in(kinds, "_reset", waits.reset, "passes of persistent workers", takes=again)
        replace_in(kinds, "_try_put_index", tasks.hand, "when batches are handed to workers", uses=handing)
        replace_in(kinds, "_try_get_data", tasks.get, "when batches arrive", uses=("_data_queue",))
        looked_at = ("_rcvd_idx", "_try_put_index")
        replace_in(kinds, "_next_data", _unchanged, "which batch next() gives", uses=looked_at)

    def hook_worker(self, module: Any) -> None:
        """Hear ``torch.utils.data._utils.worker``: which batch a worker is at."""
        signal = "what workers do"
        takes: tuple[str, ...] = ("index_queue", "worker_id")
        for name in [name for name in _LOOPS if hasattr(module, name)] or _LOOPS[:1]:
            self._places.replace(module, name, self._tasks.process_loop, signal, takes=takes)
        if hasattr(module, _THREAD_LOOP):
            takes = (*takes, "data_queue")
            self._places.replace(module, _THREAD_LOOP, self._tasks.thread_loop, "what worker threads do", takes=takes)

    def hook_torchdata(self, module: Any) -> None:
        """Hear ``torchdata.stateful_dataloader.stateful_dataloader``, whose iterators derive from torch's base."""
        self._hook_kinds(module, (), ("_StatefulMultiProcessingDataLoaderIter",))
        heard = sys.modules["torchdata.stateful_dataloader.worker"]._worker_loop
        if getattr(module, "_worker_loop", heard) is not heard:  # imported before it was heard
            self._places.replace(module, "_worker_loop", lambda _: heard, "what torchdata's workers do")

    def hook_pinning(self, module: Any) -> None:
        """Hear ``torch.utils.data._utils.pin_memory``: copies to page-locked memory, by a thread or the loop."""
        replace, pinning = self._places.replace, self._pinning
        replace(module, "_pin_memory_loop", pinning.loop, "pinning", takes=("in_queue", "out_queue"))
        replace(module, "pin_memory", pinning.pin, "pinning by the loop", takes=("data",))


def _unchanged(function: Any) -> Any:
    return function


__all__ = ["IndexQueue", "Pinning", "Queue", "Tasks", "TorchLoader"]
