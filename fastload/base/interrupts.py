"""SIGINT and SIGTERM during a measurement: they are raised, so that what was found so far can be shown.

A command that measures does so inside :func:`signals_raised`. Python prints and forgets what is raised inside
``__del__`` or a hook around a fork; there the signal is sent again a moment later. The user's code may catch it, so
whoever measures calls :func:`raise_if_interrupted` between two measurements.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

# A terminal and the command may both send the same signal; one that comes later is another.
_SAME_S = 1.0

_AGAIN_S = 0.01

_noted = 0
_forking = 0
"""Above 0 while hooks run around a fork."""


class Interrupted(KeyboardInterrupt):
    """A signal, ``number``, has interrupted a measurement."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def signals_raised() -> Iterator[None]:
    """Raise :class:`Interrupted` at the first SIGINT or SIGTERM; another one, a second later, ends the process.

    In another thread than the main one, where Python runs no handlers, it changes nothing.
    """
    global _noted
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pid, noted_at = os.getpid(), 0.0

    def note(number: int, frame: FrameType | None) -> None:
        global _noted
        nonlocal noted_at
        forked = os.getpid() != pid  # a worker has this handler too
        if forked and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not forked and not _noted and (_forking or _in_finalizer(frame)):
            timer = threading.Timer(_AGAIN_S, signal.pthread_kill, [threading.get_ident(), number])
            timer.daemon = True
            timer.start()
            return
        if not forked and not _noted:
            _noted, noted_at = number, time.monotonic()
            raise Interrupted(number)
        if forked or time.monotonic() - noted_at > _SAME_S:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    _watch_forks()
    _noted = 0
    numbers = [one for one in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(one) is not signal.SIG_IGN]
    before = [(number, signal.signal(number, note)) for number in numbers]
    try:
        yield
    finally:
        _noted = 0
        for number, handler in before:
            signal.signal(number, handler)


def _in_finalizer(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


def _watch_forks() -> None:
    """Know when hooks run that are registered already: later ones run outside of these."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_begin_fork, after_in_parent=_end_fork, after_in_child=_end_fork)


def _begin_fork() -> None:
    global _forking
    _forking += 1


def _end_fork() -> None:
    global _forking
    _forking -= 1


def raise_if_interrupted() -> None:
    """Raise again what has been raised and was caught.

    Raises:
        Interrupted: a signal came inside :func:`signals_raised`.
    """
    if _noted:
        raise Interrupted(_noted)
