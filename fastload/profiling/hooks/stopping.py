"""Ends a script after enough steps, in every rank after the same step."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn

from ..recorder import in_children

_PATIENCE = 16
"""How often a script is asked to end: it may catch the SystemExit."""
_SECONDS_BETWEEN_WORDS = 10.0
"""How often the user is told how far the recording is."""
_SECONDS_TO_END = 20.0
"""For the script's atexit functions, when the process is ended."""


class StepLimit:
    """Counts the batches of a process, and ends the script after ``limit`` steps; None: it runs to its own end.

    Ranks of DDP get equally many batches, so all of them end after the same step, and none waits for one that is gone.
    ``tells``: say on standard error how far it is, and that it ends the script.
    """

    def __init__(self, limit: int | None, *, tells: bool = False) -> None:
        self._limit = limit
        self._tells = tells
        self.end_workers: Callable[[], None] = lambda: None
        """Ends the workers of all loaders; set by the hooks."""
        self._reset()
        in_children(self._reset)

    def _reset(self) -> None:
        self._given = 0
        self._asked = 0
        """How often the script was asked to end."""
        self._told = time.monotonic()

    def count(self) -> None:
        """Count a batch that the script got."""
        self._given += 1
        if self._tells and (now := time.monotonic()) - self._told >= _SECONDS_BETWEEN_WORDS:
            self._told = now
            self._tell(f"{self._given} {'' if self._limit is None else f'of {self._limit} '}steps")

    def _tell(self, what: str) -> None:
        if self._tells:
            with contextlib.suppress(Exception):  # standard error may be closed, or on a full disk
                print(f"fastload profile: {what}", file=sys.stderr, flush=True)

    def check(self) -> None:
        """End the script if it has had its steps.

        Raises:
            SystemExit: with status 0. If the script catches it and keeps asking for batches, or loads in another thread
                than the main one, the process is ended instead.
        """
        if self._limit is None or self._given < self._limit:
            return
        self._asked += 1
        if self._asked == 1:
            self._tell(f"has recorded {self._limit} steps and ends the script here (--full lets it run to its own end)")
        if self._asked > _PATIENCE or threading.current_thread() is not threading.main_thread():
            _end_process(self.end_workers)
        raise SystemExit(0)


def _end_process(end_workers: Callable[[], None]) -> NoReturn:
    """End this process with status 0, after its workers and its atexit functions; its output is flushed."""
    with contextlib.suppress(Exception):
        print(
            f"fastload profile: process {os.getpid()} has had its steps, but no SystemExit ends the script: it "
            "catches it, or loads in a thread; the process is ended now (--full lets the script run to its own end)",
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
