"""SIGINT and SIGTERM during a measurement: they are raised, so that what was found so far can be shown.

A command that measures does so inside :func:`signals_raised`. The user's code may catch what is raised, and Python
forgets it inside ``__del__`` or a hook around a fork; so whoever measures calls :func:`raise_if_interrupted` between
two measurements.
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

_noted = 0


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

    def note(number: int, _: FrameType | None) -> None:
        global _noted
        nonlocal noted_at
        forked = os.getpid() != pid  # a worker has this handler too
        if forked and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not forked and not _noted:
            _noted, noted_at = number, time.monotonic()
            raise Interrupted(number)
        if forked or time.monotonic() - noted_at > _SAME_S:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    _noted = 0
    numbers = [one for one in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(one) is not signal.SIG_IGN]
    before = [(number, signal.signal(number, note)) for number in numbers]
    try:
        yield
    finally:
        _noted = 0
        for number, handler in before:
            signal.signal(number, handler)


def raise_if_interrupted() -> None:
    """Raise again what has been raised and was caught.

    Raises:
        Interrupted: a signal came inside :func:`signals_raised`.
    """
    if _noted:
        raise Interrupted(_noted)
