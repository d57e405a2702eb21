"""Hooks for torch's DataLoader and torchdata's: epochs, waits in ``next()``, and how batches are made.

Functions of torch's own modules are replaced; one that is missing, or does not look as expected, is noted as missing.
fastload's loaders derive from the same iterator base class, so their epochs and waits are recorded here too; how their
batches are made is recorded by :mod:`.fastload_loader`.
"""

from __future__ import annotations

import functools
import inspect
import sys
import time
from collections.abc import Callable
from typing import Any

from ..ring import RecordKind
from .devices import CopyHooks, DeviceClock, used_accelerator
from .fetching import TaskRecorder
from .patching import hook
from .session import Session, batch_to_load, batch_to_pin, delivered_batch, epoch_of
from .stopping import StepLimit

_now = time.perf_counter_ns


def _recording_epoch(is_recorded: Callable[[Session, Any, Any], bool]) -> Any:
    """Return a hook of :class:`TorchHooks` for a method that begins an epoch."""

    @hook
    def begin(self: TorchHooks, function: Any, iterator: Any, loader: Any, *rest: Any, **named: Any) -> None:
        session = self._session
        if session.thread.work is not None or not is_recorded(session, iterator, loader):
            function(iterator, loader, *rest, **named)
            return
        session.begin_epoch(iterator)
        begun = _now()
        session.thread.end_loop(begun)
        session.thread.work = iterator
        try:
            function(iterator, loader, *rest, **named)
        finally:
            session.note_epoch(iterator, loader, begun)
            session.thread.work = None

    return begin


class TorchHooks:
    """Knows what to replace in torch and torchdata, whatever their version."""

    def __init__(self, session: Session, limit: StepLimit, copies: CopyHooks) -> None:
        self._session = session
        self._recorder = session.recorder
        self._patches = session.patches
        self._limit = limit
        self._copies = copies
        self._device: DeviceClock | None = None
        self._fetchers: set[Any] = set()
        """Classes whose ``fetch`` is replaced."""

    # -- what is replaced ---------------------------------------------------------------------------------------------

    def patch_iterators(self, module: Any) -> None:
        """Patch ``torch.utils.data.dataloader``."""
        replace = self._patches.replace
        base = getattr(module, "_BaseDataLoaderIter", None)
        replace(base, "__init__", self._init, "epochs of loaders", takes=("self", "loader"))
        replace(base, "__next__", self._next, "waits in next()", uses=("_next_data",))
        replace(base, "_next_index", self._next_index, "time in the sampler")
        self._patch_parallel(getattr(module, "_MultiProcessingDataLoaderIter", None))
        kind = getattr(module, "_DatasetKind", None)
        replace(kind, "create_fetcher", self._create_fetcher, "samples and collation", takes=("dataset", "collate_fn"))

    def _patch_parallel(self, kind: Any) -> None:
        """Patch a class of iterators with workers; None: there is none."""
        replace = self._patches.replace
        made, again = ("self", "loader"), ("self", "loader", "first_iter")
        dispatch = ("_next_index", "_send_idx")
        replace(kind, "__init__", self._init, "the workers' processes", takes=made, uses=("_workers",))
        replace(kind, "_reset", self._reset, "epochs of persistent workers", takes=again)
        replace(kind, "_try_put_index", self._put_index, "when batches are sent to workers", uses=dispatch)
        replace(kind, "_try_get_data", self._get_data, "when batches arrive", uses=("_data_queue",))
        checked = ("_rcvd_idx", "_try_put_index")
        replace(kind, "_next_data", lambda function: function, "which batch next() returns", uses=checked)

    def patch_workers(self, module: Any) -> None:
        """Patch ``torch.utils.data._utils.worker`` or torchdata's."""
        takes = ("index_queue", "worker_id")
        self._patches.replace(module, "_worker_loop", self._run_worker, "what workers do", takes=takes)

    def patch_torchdata(self, module: Any) -> None:
        """Patch ``torchdata.stateful_dataloader.stateful_dataloader``, whose iterators derive from torch's base."""
        self._patch_parallel(getattr(module, "_StatefulMultiProcessingDataLoaderIter", None))
        loop = sys.modules["torchdata.stateful_dataloader.worker"]._worker_loop
        if getattr(module, "_worker_loop", loop) is not loop:  # imported before it was patched
            self._patches.replace(module, "_worker_loop", lambda _: loop, "what torchdata's workers do")

    def patch_pinning(self, module: Any) -> None:
        """Patch ``torch.utils.data._utils.pin_memory``: copies to page-locked memory, by a thread or by the loop."""
        replace = self._patches.replace
        replace(module, "_pin_memory_loop", self._pin_loop, "pinning", takes=("in_queue",))
        replace(module, "pin_memory", self._pin_memory, "pinning by the loop", takes=("data",))

    # -- hooks in the process of the loop -----------------------------------------------------------------------------

    _init = _recording_epoch(lambda session, iterator, loader: session.is_recorded(loader))
    """An iterator's ``__init__``, which calls the base class's: this has the hook too."""

    _reset = _recording_epoch(lambda session, iterator, loader: epoch_of(iterator) >= 0)
    """``_reset`` of iterators with workers: in ``__init__``, and for each further epoch of persistent workers."""

    @hook
    def _next(self, function: Any, iterator: Any) -> Any:
        """``__next__`` of all iterators."""
        session = self._session
        thread = session.thread
        outer = thread.work
        if outer is not None or epoch_of(iterator) < 0:
            was_nested = thread.nested
            try:
                thread.nested = was_nested or outer is not iterator
                return function(iterator)
            finally:
                session.thread.nested = was_nested
        self._limit.check()
        came = 0
        begun = _now()
        loop = thread.end_loop(begun)
        device = self._device or self._find_device()
        if device is not None:
            device.wait_begins()
        try:
            thread.work = iterator
            batch = function(iterator)
            came = 1
            self._limit.count()
            return batch
        finally:
            session.thread.work = None
            iteration, number = delivered_batch(iterator)
            ended = session.thread.begin_loop()
            self._recorder.ring().write(RecordKind.WAIT, 0, came, begun, ended, iteration, number, *loop)
            if device is not None:
                device.wait_ends(iteration, number if came else -1, begun, ended)

    def _find_device(self) -> DeviceClock | None:
        """Measure the device as soon as the script uses one."""
        torch = sys.modules["torch"]
        if (kind := used_accelerator(torch)) is not None:
            make = functools.partial(torch.Event, device=kind, enable_timing=True)
            self._device = DeviceClock(self._recorder, make)
            self._copies.patch_tensor(torch.Tensor)
        return self._device

    @hook
    def _next_index(self, function: Any, iterator: Any) -> Any:
        thread = self._session.thread
        thread.num_samples = 0
        begun = _now()
        try:
            indices = function(iterator)
            number = thread.num_samples = len(indices) if isinstance(indices, list | tuple) else 0
            has_workers = bool(getattr(iterator, "_num_workers", True))
            if not (has_workers or thread.nested or epoch_of(iterator) < 0):
                ended = _now()
                place = batch_to_load(iterator)
                self._recorder.ring().write(RecordKind.DISPATCH, 0, 0, begun, ended, *place, ended - begun, 0, number)
            return indices
        finally:
            thread.sampler_ns = _now() - begun

    @hook
    def _put_index(self, function: Any, iterator: Any) -> None:
        thread = self._session.thread
        batch = iterator._send_idx
        begun = _now()
        thread.sampler_ns = thread.num_samples = 0
        try:
            function(iterator)
        finally:
            ended = _now()
            number = epoch_of(iterator)
            if iterator._send_idx != batch and number >= 0:
                about = number, batch, thread.sampler_ns, 0, thread.num_samples
                self._recorder.ring().write(RecordKind.DISPATCH, 0, 0, begun, ended, *about)

    @hook
    def _get_data(self, function: Any, iterator: Any, *arguments: Any, **named: Any) -> Any:
        begun = _now()
        answer = function(iterator, *arguments, **named)
        success, data = answer
        number = epoch_of(iterator)
        if number >= 0 and success and _has_batch(data):
            iterator._fastload_arrived = data[0]
            self._recorder.ring().write(RecordKind.ARRIVE, 0, 0, begun, _now(), number, data[0])
        return answer

    @hook
    def _pin_memory(self, function: Any, *arguments: Any, **named: Any) -> Any:
        """Pin a batch, or a part of one: the function calls itself."""
        thread = self._session.thread
        place = thread.to_pin or batch_to_pin(thread.work)
        if thread.nested or thread.pinning or place[0] < 0:
            return function(*arguments, **named)
        thread.pinning = True
        begun = _now()
        try:
            return function(*arguments, **named)
        finally:
            thread.pinning = False
            self._recorder.ring().write(RecordKind.PIN, 0, 0, begun, _now(), *place)

    @hook
    def _pin_loop(self, function: Any, in_queue: Any, *rest: Any) -> None:
        """Run the thread that pins batches."""
        session = self._session

        def got(since: int, item: Any) -> None:
            session.thread.to_pin = None
            if _has_batch(item):
                session.thread.to_pin = place = session.epoch_of_queue(in_queue), item[0]
                session.recorder.ring().write(RecordKind.ARRIVE, 0, 0, since, _now(), *place)

        function(_Queue(in_queue, got), *rest)

    # -- hooks in workers ---------------------------------------------------------------------------------------------

    @hook
    def _create_fetcher(self, function: Any, *arguments: Any, **named: Any) -> Any:
        fetcher, recorder = function(*arguments, **named), self._recorder
        task = TaskRecorder(self._session, self._session.thread.worker)
        if hasattr(fetcher, "dataset_iter"):
            # torchdata looks for a state on the iterator itself, so one with a state is not wrapped.
            both = fetcher.dataset_iter, fetcher.dataset  # without running the script's __getattr__
            if any(inspect.getattr_static(one, "state_dict", None) is not None for one in both):
                recorder.missing("samples of iterable datasets with a state", "they are not wrapped")
            else:
                fetcher.dataset_iter = task.stream(fetcher.dataset_iter)
        else:
            fetcher.dataset = task.samples(fetcher.dataset)
        if fetcher.auto_collation:
            fetcher.collate_fn = task.collate(fetcher.collate_fn)
        fetcher._fastload_task = task
        if (kind := type(fetcher)) not in self._fetchers:
            self._fetchers.add(kind)
            self._patches.replace(kind, "fetch", self._fetch, "samples and collation")
        return fetcher

    @hook
    def _fetch(self, function: Any, fetcher: Any, index: Any) -> Any:
        task = getattr(fetcher, "_fastload_task", None)
        if task is None:
            return function(fetcher, index)
        place = batch_to_load(self._session.thread.work)
        task.begin()
        try:
            return function(fetcher, index)
        except BaseException:
            place = -1, -1  # without workers, the next batch has the same number
            raise
        finally:
            # In a worker: the parent knows the epoch.
            task.end(*(place if place[0] >= 0 else (-1, self._session.thread.batch)), 0)

    @hook
    def _run_worker(self, function: Any, *arguments: Any) -> None:
        """Run a worker process, which does not know its parent's epoch number."""
        places = {name: place for place, name in enumerate(inspect.signature(function).parameters)}
        thread = self._session.thread
        thread.worker = arguments[places["worker_id"]]

        def got(_: int, item: Any) -> None:
            if _has_batch(item):
                thread.batch = item[0]

        watched = list(arguments)
        queue = places["index_queue"]
        watched[queue] = thread.work = _Queue(arguments[queue], got)
        function(*watched)


def _has_batch(item: Any) -> bool:
    """Return whether an item of one of torch's queues is a batch: its number, then its indices or data."""
    return type(item) is tuple and len(item) == 2 and type(item[0]) is int


class _Queue:
    """Wraps one of torch's queues; ``got`` gets when ``get()`` was called, and the item."""

    def __init__(self, queue: Any, got: Callable[[int, Any], None]) -> None:
        self._queue = queue
        self._got = got

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def get(self, *arguments: Any, **named: Any) -> Any:
        begun = _now()
        item = self._queue.get(*arguments, **named)
        self._got(begun, item)
        return item
