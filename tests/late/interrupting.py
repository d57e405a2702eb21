"""Signals whose handler raises an error, at a chosen moment."""

from __future__ import annotations

import contextlib
import io
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from fastload.late import containers, draws, geometry, image, opener, patch_guard, scope, source
from fastload.native import jpeg, rows

OURS = {
    module.__file__ for module in (containers, draws, image, jpeg, opener, patch_guard, rows, scope, source, geometry)
}


class Interrupted(Exception):
    """What the handler raises, as a time limit would."""


@contextlib.contextmanager
def handler() -> Iterator[None]:
    """Have a handler raise the error."""

    def interrupt(*_: Any) -> None:
        raise Interrupted("it took too long")

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def arrive() -> None:
    """Have the signal arrive. Only the main thread runs handlers: in another the error is raised as it is."""
    if threading.current_thread() is not threading.main_thread():
        raise Interrupted("it took too long")
    signal.raise_signal(signal.SIGUSR1)


class Interrupting(io.BytesIO):
    """A file during whose n-th read something arrives, once."""

    def __init__(self, data: bytes, n: int, arrival: Callable[[], Any] = arrive) -> None:
        super().__init__(data)
        self.left, self.arrival = n, arrival

    def read(self, size: int | None = -1) -> bytes:
        self.left -= 1
        if self.left == 0:
            self.arrival()
        return super().read(size)


def interrupted_at(line: int, make: Callable[[], Any]) -> bool:
    """Call a function; the signal arrives at the n-th line of fastload's that it runs. Return whether it did."""
    left = line

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in OURS:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                sys.settrace(None)
                arrive()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        make()
    except Interrupted:
        return True
    finally:
        sys.settrace(before)
    return left <= 0
