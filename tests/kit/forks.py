"""Something done in a forked process."""

from __future__ import annotations

import os
from collections.abc import Callable


def is_true_in_a_child(work: Callable[[], bool]) -> bool:
    """Fork, and return what ``work`` returned in the child; False too where it raised."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
