"""Hears tasks on their way: indices are drawn and handed to workers, workers take them, results arrive."""

from __future__ import annotations

import inspect
import time
from typing import Any

from ..recorder import Recorder
from ..records import Kind
from .fetching import Fetching
from .iterators import Iterators, loaded, number_of
from .nesting import Nesting
from .unseen import leave, unseen

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


__all__ = ["IndexQueue", "Queue", "Tasks"]
