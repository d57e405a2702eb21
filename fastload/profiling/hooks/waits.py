"""Hears the loop: how long it waits in ``next()``, and when passes over loaders begin."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection
from typing import Any

from ..recorder import Recorder
from ..records import Kind
from .copies import Copies, DeviceClock, accelerators, torch_events
from .iterators import Iterators, delivered, number_of
from .main_thread import MainThread
from .nesting import Nesting
from .stopping import Stopping
from .unseen import leave

_now = time.perf_counter_ns

# Steps in which a device is looked for: the first ones, and then not every one.
_ALWAYS = 64
_ONE_IN = 16


class Waits:
    """What stands for the methods of iterators that the loop calls.

    Args:
        recorder: where records go.
        iterators: those that are heard.
        nesting: what each thread is at.
        loop: hears the thread between two waits.
        stopping: counts steps, and ends the script after the last.
        copies: hears copies to a device.
    """

    def __init__(
        self,
        recorder: Recorder,
        iterators: Iterators,
        nesting: Nesting,
        loop: MainThread,
        stopping: Stopping,
        copies: Copies,
    ) -> None:
        self._recorder = recorder
        self._iterators = iterators
        self._nesting = nesting
        self._loop = loop
        self._stopping = stopping
        self._copies = copies
        self._device: DeviceClock | None = None
        self._looked = 0
        self._accelerators: Collection[Any] | None = None

    def _look_for_device(self) -> None:
        """Hear a device as soon as the script has one in use; later on it is looked for in one step of 16."""
        self._looked += 1
        if self._looked > _ALWAYS and self._looked % _ONE_IN:
            return
        torch = sys.modules["torch"]
        if self._accelerators is None:
            self._accelerators = accelerators(torch).values()
        if any(module.is_initialized() for module in self._accelerators):
            self._device = DeviceClock(self._recorder, torch_events(torch, self._recorder))
            self._copies.hook_tensor(torch.Tensor)

    def note_pass(self, iterator: Any, loader: Any, begun: int) -> None:
        """Note that an iterator has begun a pass, which took from ``begun`` until now."""
        self._iterators.note_pass(iterator, loader, begun)
        if getattr(loader, "worker_method", None) == "thread" and getattr(iterator, "_workers", ()):
            self._loop.probe()

    # -- passes -------------------------------------------------------------------------------------------------------

    def init(self, function: Any) -> Any:
        """Stand for the ``__init__`` that all iterators have."""
        iterators, nesting, recorder, loop = self._iterators, self._nesting, self._recorder, self._loop

        def __init__(iterator: Any, loader: Any, *rest: Any, **named: Any) -> None:  # noqa: N807 # as it is called
            thread = nesting.thread
            outer = thread.at
            if (outer is not None and outer is not iterator) or not iterators.is_wanted(loader):
                try:
                    function(iterator, loader, *rest, **named)
                except BaseException as error:
                    leave(error)
                    raise
                return
            number = iterators.begin(iterator)
            begun = _now()
            loop.end(begun)
            try:
                thread.at = iterator
                function(iterator, loader, *rest, **named)
            except BaseException as error:
                leave(error)
                raise
            finally:
                ended = _now()
                which = iterators.loader(loader, iterator)  # a part of the work, if it asks a dataset that loads
                nesting.thread.at = outer
                recorder.ring().write(Kind.ITERATOR, 0, loader.num_workers, begun, ended, number, which)
                if not loader.num_workers:
                    recorder.note("workers", iterator=number, loader=which, processes=[])

        return __init__

    def init_with_workers(self, function: Any) -> Any:
        """Stand for the ``__init__`` of those that have workers; it calls the other one."""
        nesting = self._nesting

        def __init__(iterator: Any, loader: Any, *rest: Any, **named: Any) -> None:  # noqa: N807 # as it is called
            thread = nesting.thread
            outer = thread.at
            begun = _now()
            try:
                thread.at = iterator if outer is None else outer
                function(iterator, loader, *rest, **named)
            except BaseException as error:
                leave(error)
                raise
            finally:
                nesting.thread.at = outer
                if number_of(iterator) is not None:
                    self.note_pass(iterator, loader, begun)

        return __init__

    def reset(self, function: Any) -> Any:
        """Stand for the ``_reset`` of those that have workers: another pass of the same iterator."""
        nesting, iterators, loop = self._nesting, self._iterators, self._loop

        def _reset(iterator: Any, loader: Any, first_iter: bool = False, **named: Any) -> None:
            thread = nesting.thread
            if first_iter or thread.at is not None or number_of(iterator) is None:  # the first is a part of __init__
                try:
                    function(iterator, loader, first_iter, **named)
                except BaseException as error:
                    leave(error)
                    raise
                return
            iterators.begin(iterator)
            begun = _now()
            loop.end(begun)
            try:
                thread.at = iterator
                function(iterator, loader, first_iter, **named)
            except BaseException as error:
                leave(error)
                raise
            finally:
                nesting.thread.at = None
                self.note_pass(iterator, loader, begun)

        return _reset

    # -- waits --------------------------------------------------------------------------------------------------------

    def next(self, function: Any) -> Any:
        """Stand for the ``__next__`` that all iterators have."""
        recorder, stopping, nesting, loop = self._recorder, self._stopping, self._nesting, self._loop

        def __next__(iterator: Any) -> Any:  # noqa: N807 # as it is called
            thread = nesting.thread
            outer = thread.at
            if outer is not None or number_of(iterator) is None:
                was_deaf = thread.deaf
                try:
                    thread.deaf = was_deaf or (outer is not None and outer is not iterator)
                    return function(iterator)
                except BaseException as error:
                    leave(error)
                    raise
                finally:
                    nesting.thread.deaf = was_deaf
            cached = stopping.cached()
            came = 0
            begun = _now()
            loop.end(begun)
            if cached is not None:
                recorder.ring().write(Kind.WAIT, 0, 2, begun, loop.begin(), -1, -1)
                return cached[0]
            if self._device is None:
                self._look_for_device()
            device = self._device
            if device is not None:
                device.wait_begins()
            try:
                thread.at = iterator
                batch = function(iterator)
                came = 1
                stopping.given(batch)
                return batch
            except BaseException as error:
                leave(error)
                raise
            finally:
                nesting.thread.at = None
                place = delivered(iterator)
                ended = loop.begin()
                recorder.ring().write(Kind.WAIT, 0, came, begun, ended, *place)
                if device is not None:
                    device.wait_ends(place[0], place[1] if came else -1, begun, ended)

        return __next__


__all__ = ["Waits"]
