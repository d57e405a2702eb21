"""Defers interrupts (Ctrl-C) where Python would lose them.

NOTE [Interrupts]
Python runs its signal handler between any two bytecodes, so an interrupt may be raised inside a hook that runs around a
fork, or inside ``__del__``, where Python prints and forgets it; or in the child, which then goes up its parent's stack.
Here it is noted instead, and raised afterwards.
"""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Callable
from typing import Any


class DeferredSigint:
    """Context manager that raises an interrupt at its end.

    Only in the main thread, where Python runs signal handlers; and only where SIGINT has a handler in Python.

    Args:
        finalizing: raise it a moment later, since what is raised inside ``__del__`` is lost.
    """

    def __init__(self, *, finalizing: bool = False) -> None:
        self._finalizing = finalizing
        self._handler: Callable[..., Any] | None = None
        self._noted = False

    def __enter__(self) -> None:
        handler = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and callable(handler):
            self._handler = handler
            signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, frame: object) -> None:
        self._noted = True

    def __exit__(self, *exc_info: object) -> None:
        if not self._let_through():
            return
        if self._finalizing:
            timer = threading.Timer(0.01, _interrupt_main_thread)
            timer.daemon = True
            timer.start()
        else:
            signal.raise_signal(signal.SIGINT)

    def _let_through(self) -> bool:
        if self._handler is None:
            return False
        signal.signal(signal.SIGINT, self._handler)
        self._handler = None
        return self._noted


def _interrupt_main_thread() -> None:
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)  # also wakes it, where it waits
    else:
        _thread.interrupt_main()


def raise_deferred_sigint_in_worker() -> None:
    """Restore SIGINT's handler in a worker that was forked inside.

    Raises:
        KeyboardInterrupt: there was one.
    """
    held = getattr(signal.getsignal(signal.SIGINT), "__self__", None)
    if isinstance(held, DeferredSigint) and held._let_through():
        raise KeyboardInterrupt
