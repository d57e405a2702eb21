"""Tries in a child what may end a process: code in C that several threads cannot use at once, for example."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable

_LOOK_AGAIN_S = 0.01


def how_it_died(action: Callable[[], None], seconds: float) -> str:
    """Call a function in a fork of this process, which then ends; return how it died, empty if it did not.

    What the function raises is no death. After ``seconds`` the fork is killed. Empty, too, where there is no fork.
    """
    if not hasattr(os, "fork"):
        return ""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            action()
        os._exit(0)
    deadline = time.monotonic() + seconds
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return f"it gave no batch within {seconds:.0f} s"
        time.sleep(_LOOK_AGAIN_S)
    status = os.waitstatus_to_exitcode(ended[1])
    if status < 0:
        return f"its process was ended by {signal.Signals(-status).name}"
    return f"its process was ended with status {status}" if status else ""
