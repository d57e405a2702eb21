"""Ends a script after enough steps, in every rank after the same; before that, if wanted, steps with cached batches."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

from ..recorder import in_children

# By it a thread that loads for the main thread ends that one, which may be waiting for the thread's next batch.
_SIGNAL: signal.Signals | None = getattr(signal, "SIGRTMAX", None)

_PATIENCE = 3
"""How often a script may come back for a batch after it was ended: it catches what ends it."""
_SECONDS_TO_END = 20.0
"""For what a script has registered with atexit, when it is ended that does not end by itself."""


class Stopping:
    """Counts the batches that a process was given.

    Ranks that take turns (DDP) are given as many batches each, so all of them end at the same step, and none waits for
    one that has gone.

    Args:
        limit: steps after which the script ends; None: it runs to its own end.
        cached: with a limit: batches that are kept, and given out again in turns for ``again`` further steps, so that
            one sees how fast the loop is when data cost nothing; 0: none.
        again: how many steps that is.
    """

    def __init__(self, limit: int | None, *, cached: int = 0, again: int = 0) -> None:
        self._limit = limit
        self._cached = cached
        self._again_at_first = again if cached else 0
        self.at_end: Callable[[], None] | None = None
        """Called before the script is ended for the first time."""
        self.end_workers: Callable[[], None] = lambda: None
        """Ends the workers of all loaders; the hooks, which know the loaders, set it."""
        self._begin()
        in_children(self._begin)
        if limit is not None and _SIGNAL is not None and signal.getsignal(_SIGNAL) is signal.SIG_DFL:
            signal.signal(_SIGNAL, _end)

    def _begin(self) -> None:
        self._given = 0
        self._kept: deque[Any] = deque(maxlen=self._cached)
        self._again = self._again_at_first
        self._ended: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        """Threads in which the script was ended."""
        self._before: weakref.WeakSet[threading.Thread] | None = None
        """Those that there were when the main thread was; None: it was not."""
        self._returns = 0

    def given(self, batch: Any) -> None:
        """Count a batch given out."""
        self._given += 1
        if self._again:
            self._kept.append(batch)

    def cached(self) -> tuple[Any] | None:
        """Return a cached batch, if it is time for them; None: the loader is to be asked.

        Raises:
            SystemExit: with status 0: the script has had its steps. From another thread than the main one it is raised
                in both. A script that catches it and comes back for more is ended without being asked.
        """
        if self._limit is None or self._given < self._limit:
            return None
        if not self._again or not self._kept:
            self._end_script()
        self._again -= 1
        self._kept.rotate(-1)
        return (self._kept[-1],)

    def _end_script(self) -> NoReturn:
        main, here = threading.main_thread(), threading.current_thread()
        # A thread that was begun after the main one was ended is a sign that that goes on.
        has_returned = here in self._ended or (self._before is not None and here not in self._before)
        self._returns += has_returned
        if self._returns > _PATIENCE:
            _end_process(self.end_workers)
        if not self._ended and self.at_end is not None:
            self.at_end()
        self._ended.add(here)
        if here is main or has_returned or self._before is None:
            self._before = weakref.WeakSet(threading.enumerate())
            if here is not main and main.is_alive() and main.ident is not None:
                if _SIGNAL is None or signal.getsignal(_SIGNAL) is not _end:
                    _end_process(self.end_workers)  # it may wait for a batch for ever
                signal.pthread_kill(main.ident, _SIGNAL)
        raise SystemExit(0)


def _end(_: int, __: FrameType | None) -> None:
    raise SystemExit(0)


def _end_process(end_workers: Callable[[], None]) -> NoReturn:
    """End this process whatever the script does, with status 0, after its workers and what atexit has registered.

    What it has printed is written.
    """
    with contextlib.suppress(Exception):
        print(
            f"fastload profile: process {os.getpid()} has had its steps, and the script catches the SystemExit that is "
            "to end it; it is ended now (--full lets it run to its own end)",
            file=sys.stderr,
        )
    watchdog = threading.Timer(_SECONDS_TO_END, os._exit, (0,))
    watchdog.daemon = True
    watchdog.start()
    try:
        with contextlib.suppress(Exception):
            end_workers()
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
    finally:
        os._exit(0)


__all__ = ["Stopping"]
