"""Tries in a child what may end a process: code in C that several threads cannot use at once, for example."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable


def how_it_died(action: Callable[[], None], seconds: float) -> str:
    """Call a function in a fork of this process, which then ends; return how it died, empty if it did not.

    What the function raises is no death. After ``seconds`` the fork is killed. Empty, too, where there is no fork.
    """

    def act() -> None:
        with contextlib.suppress(BaseException):
            action()
        os._exit(0)

    if "fork" not in multiprocessing.get_all_start_methods():
        return ""
    child = multiprocessing.get_context("fork").Process(target=act, daemon=True)
    child.start()
    child.join(seconds)
    status = child.exitcode
    if status is None:
        child.kill()
        child.join()
        return f"it gave no batch within {seconds:.0f} s"
    if status < 0:
        return f"its process was ended by {signal.Signals(-status).name}"
    return f"its process was ended with status {status}" if status else ""
