"""Imports of a fork server before it forks: torch, and all that a worker process runs. See spawn_start.py.

Nothing is begun here, for neither a thread nor a device would be in the workers.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from .spawn_start import GIVEN, set_variables

_given = json.loads(os.environ.pop(GIVEN, "null"))
if _given is not None:
    sys.path[:] = _given["path"]
    set_variables(_given["environment"])

import numpy as np  # noqa: E402  # found where the user's process finds it

from . import worker_process as worker_process  # noqa: E402

_server = os.getpid()


def _begin_in_child() -> None:
    """Give a process that the server has forked what a new one has: a random state of NumPy's, and interrupts."""
    if os.getppid() == _server:
        np.random.seed()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


os.register_at_fork(after_in_child=_begin_in_child)
