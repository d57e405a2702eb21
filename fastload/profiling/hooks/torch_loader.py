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

from ..ring import Kind
from .fetching import FetchHooks
from .patching import drop_frame, hidden
from .session import QueueOwner, Session, batch_to_load, batch_to_pin, number_of
from .training_loop import WaitHooks

_now = time.perf_counter_ns

_SHARED = ("_ParallelDataLoaderIter",)
_WITH_WORKERS = ("_ThreadingDataLoaderIter", "_MultiProcessingDataLoaderIter")
_LOOPS = ("_worker_loop", "_process_worker_loop")
_THREAD_LOOP = "_thread_worker_loop"


class TorchHooks:
    """Knows what to replace in torch and torchdata, whatever their version.

    Args:
        session: of this process.
        fetching: records what fetchers do.
        waits: the hooks of the training loop.
    """

    def __init__(self, session: Session, fetching: FetchHooks, waits: WaitHooks) -> None:
        self._session = session
        self._patches = session.patches
        self._fetching = fetching
        self._waits = waits

    # -- what is replaced ---------------------------------------------------------------------------------------------

    def patch_iterators(self, module: Any) -> None:
        """Patch ``torch.utils.data.dataloader``."""
        replace, waits = self._patches.replace, self._waits
        base = getattr(module, "_BaseDataLoaderIter", None)
        replace(base, "__init__", waits.init, "epochs of loaders", takes=("self", "loader"))
        replace(base, "__next__", waits.next, "waits in next()", uses=("_next_data",))
        replace(base, "_next_index", self._next_index, "time in the sampler")
        self._patch_kinds(module, _SHARED, _WITH_WORKERS)
        kind = getattr(module, "_DatasetKind", None)
        replace(kind, "create_fetcher", self._create_fetcher, "samples and collation", takes=("dataset", "collate_fn"))

    def _patch_kinds(self, module: Any, shared: tuple[str, ...], with_workers: tuple[str, ...]) -> None:
        """Patch iterators with workers."""
        replace_in, waits = self._patches.replace_in, self._waits
        ends = [getattr(module, name) for name in with_workers if hasattr(module, name)]
        kinds = [*(getattr(module, name) for name in shared if hasattr(module, name)), *ends]
        made, again = ("self", "loader"), ("self", "loader", "first_iter")
        dispatch = ("_next_index", "_send_idx", "_task_info")
        for kind in ends or [None]:
            signal = "the workers' processes"
            self._patches.replace(kind, "__init__", waits.init_with_workers, signal, takes=made, uses=("_workers",))
        replace_in(kinds, "_reset", waits.reset, "epochs of persistent workers", takes=again)
        replace_in(kinds, "_try_put_index", self._put_index, "when batches are sent to workers", uses=dispatch)
        replace_in(kinds, "_try_get_data", self._get_data, "when batches arrive", uses=("_data_queue",))
        checked = ("_rcvd_idx", "_try_put_index")
        replace_in(kinds, "_next_data", lambda function: function, "which batch next() returns", uses=checked)

    def patch_workers(self, module: Any) -> None:
        """Patch ``torch.utils.data._utils.worker`` or torchdata's."""
        takes: tuple[str, ...] = ("index_queue", "worker_id")
        for name in [name for name in _LOOPS if hasattr(module, name)] or _LOOPS[:1]:
            self._patches.replace(module, name, self.process_loop, "what workers do", takes=takes)
        if hasattr(module, _THREAD_LOOP):
            takes = (*takes, "data_queue")
            self._patches.replace(module, _THREAD_LOOP, self.thread_loop, "what worker threads do", takes=takes)

    def patch_torchdata(self, module: Any) -> None:
        """Patch ``torchdata.stateful_dataloader.stateful_dataloader``, whose iterators derive from torch's base."""
        self._patch_kinds(module, (), ("_StatefulMultiProcessingDataLoaderIter",))
        loop = sys.modules["torchdata.stateful_dataloader.worker"]._worker_loop
        if getattr(module, "_worker_loop", loop) is not loop:  # imported before it was patched
            self._patches.replace(module, "_worker_loop", lambda _: loop, "what torchdata's workers do")

    def patch_pinning(self, module: Any) -> None:
        """Patch ``torch.utils.data._utils.pin_memory``: copies to page-locked memory, by a thread or by the loop."""
        replace = self._patches.replace
        replace(module, "_pin_memory_loop", self._pin_loop, "pinning", takes=("in_queue", "out_queue"))
        replace(module, "pin_memory", self._pin_memory, "pinning by the loop", takes=("data",))

    # -- hooks in the process of the loop -----------------------------------------------------------------------------

    def _next_index(self, function: Any) -> Any:
        """Return the hook for ``_next_index``, which asks the sampler."""
        session, recorder = self._session, self._session.recorder

        def _next_index(iterator: Any) -> Any:
            thread = session.thread
            thread.num_samples = 0
            begun = _now()
            try:
                indices = function(iterator)
                number = thread.num_samples = len(indices) if isinstance(indices, list | tuple) else 0
                has_workers = bool(getattr(iterator, "_num_workers", True))
                if not (has_workers or thread.nested or number_of(iterator) is None):
                    ended = _now()
                    place = batch_to_load(iterator)
                    recorder.ring().write(Kind.DISPATCH, 0, 0, begun, ended, *place, ended - begun, 0, number)
                return indices
            except BaseException as error:
                drop_frame(error)
                raise
            finally:
                thread.sampler_ns = _now() - begun

        return _next_index

    def _put_index(self, function: Any) -> Any:
        """Return the hook for ``_try_put_index``, which sends a task to a worker, if there is one left."""
        session, recorder = self._session, self._session.recorder

        def _try_put_index(iterator: Any) -> None:
            thread = session.thread
            batch = iterator._send_idx
            begun = _now()
            thread.sampler_ns = thread.num_samples = 0
            try:
                function(iterator)
            except BaseException as error:
                drop_frame(error)
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

    def _get_data(self, function: Any) -> Any:
        """Return the hook for ``_try_get_data``, which reads a result, if there is one."""
        recorder = self._session.recorder

        def _try_get_data(iterator: Any, *arguments: Any, **named: Any) -> Any:
            begun = _now()
            try:
                answer = function(iterator, *arguments, **named)
            except BaseException as error:
                drop_frame(error)
                raise
            success, data = answer
            number = number_of(iterator)
            if number is not None and success and type(data) is tuple and len(data) == 2 and type(data[0]) is int:
                iterator._fastload_arrived = data[0]
                recorder.ring().write(Kind.ARRIVE, 0, 0, begun, _now(), number, data[0], 0, -1)
            return answer

        return _try_get_data

    def _pin_memory(self, function: Any) -> Any:
        """Return the hook for ``pin_memory``, which calls itself for each part of a batch."""
        session, recorder = self._session, self._session.recorder

        def pin_memory(*arguments: Any, **named: Any) -> Any:
            thread = session.thread
            work = thread.work
            recorded = work is not None and not (thread.nested or thread.pinning) and number_of(work) is not None
            if recorded:
                thread.pinning = True
            begun = _now()
            try:
                return function(*arguments, **named)
            except BaseException as error:
                drop_frame(error)
                raise
            finally:
                if recorded:
                    thread.pinning = False
                    recorder.ring().write(Kind.PIN, 0, 0, begun, _now(), *batch_to_pin(work))

        return pin_memory

    def _pin_loop(self, function: Any) -> Any:
        """Return the hook for what the pinning thread runs."""
        session = self._session

        def _pin_memory_loop(in_queue: Any, out_queue: Any, *rest: Any) -> None:
            pin = _PinThread(session, session.owner_of(in_queue))
            try:
                function(_PinInput(in_queue, pin), _PinOutput(out_queue, pin), *rest)
            except BaseException as error:
                drop_frame(error)
                raise

        return _pin_memory_loop

    # -- hooks in workers ---------------------------------------------------------------------------------------------

    def _create_fetcher(self, function: Any) -> Any:
        """Return the hook for ``create_fetcher``."""
        watch = self._fetching.watch

        def create_fetcher(*arguments: Any, **named: Any) -> Any:
            try:
                return watch(function(*arguments, **named))
            except BaseException as error:
                drop_frame(error)
                raise

        return create_fetcher

    def process_loop(self, function: Any) -> Any:
        """Return the hook for what a worker process runs."""
        return self._worker_loop(function, in_thread=False)

    def thread_loop(self, function: Any) -> Any:
        """Return the hook for what a worker thread runs, after torch 2.15."""
        return self._worker_loop(function, in_thread=True)

    def _worker_loop(self, function: Any, *, in_thread: bool) -> Any:
        places = {name: place for place, name in enumerate(inspect.signature(function).parameters)}
        session, fetching = self._session, self._fetching

        def _worker_loop(*arguments: Any) -> None:
            # A process does not know its parent's epoch number; a thread finds its iterator by the queue.
            owner = session.owner_of(arguments[places["data_queue"]]) if in_thread else None
            worker = arguments[places["worker_id"]]
            watched = list(arguments)
            queue = places["index_queue"]
            watched[queue] = _IndexQueue(arguments[queue], fetching, worker, owner)
            session.thread.work = watched[queue]
            try:
                function(*watched)
            except BaseException as error:
                drop_frame(error)
                raise

        return _worker_loop


class _Queue:
    """Wraps a queue."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class _IndexQueue(_Queue):
    """Notes which batch a worker gets."""

    def __init__(self, queue: Any, fetching: FetchHooks, worker: int, owner: QueueOwner | None) -> None:
        super().__init__(queue)
        self._fetching = fetching
        self._worker = worker
        self._owner = owner

    @hidden
    def get(self, *arguments: Any, **named: Any) -> Any:
        try:
            got = self._queue.get(*arguments, **named)
        except BaseException as error:
            drop_frame(error)
            raise
        if type(got) is tuple and len(got) == 2 and type(got[0]) is int:
            self._fetching.set_batch(-1 if self._owner is None else self._owner.number(), got[0], self._worker)
        return got


class _PinThread:
    """What the pinning thread is doing."""

    def __init__(self, session: Session, owner: QueueOwner) -> None:
        self._recorder = session.recorder
        self._owner = owner
        self.begun = 0

    def write(self, kind: int, begun: int, ended: int, batch: int, *rest: int) -> None:
        self._recorder.ring().write(kind, 0, 0, begun, ended, self._owner.number(), batch, *rest)


class _PinInput(_Queue):
    def __init__(self, queue: Any, pin: _PinThread) -> None:
        super().__init__(queue)
        self._pin = pin

    @hidden
    def get(self, *arguments: Any, **named: Any) -> Any:
        begun = _now()
        try:
            got = self._queue.get(*arguments, **named)
        except BaseException as error:
            drop_frame(error)
            raise
        self._pin.begun = _now()
        if type(got[0]) is int:
            self._pin.write(Kind.ARRIVE, begun, self._pin.begun, got[0], 0, -1)
        return got


class _PinOutput(_Queue):
    def __init__(self, queue: Any, pin: _PinThread) -> None:
        super().__init__(queue)
        self._pin = pin

    @hidden
    def put(self, item: Any, *arguments: Any, **named: Any) -> None:
        ended = _now()  # waiting for room is not pinning
        try:
            self._queue.put(item, *arguments, **named)
        except BaseException as error:
            drop_frame(error)
            raise
        if type(item[0]) is int:
            self._pin.write(Kind.PIN, self._pin.begun, ended, item[0])
