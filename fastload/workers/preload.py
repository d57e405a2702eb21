"""What fastload's fork server imports before it forks: this module, and so all that a worker process runs.

Nothing is begun here, for neither a thread nor a device would be in the workers.
"""

from __future__ import annotations

import json
import os
import signal
import sys

GIVEN = "FASTLOAD_FORK_SERVER"
"""Variable in which the process that starts the server says what it has: see fork_server.py."""

_given = json.loads(os.environ.pop(GIVEN, "null"))
if _given is not None:
    sys.path[:] = _given["path"]
    for _name, _value in _given["environment"].items():
        os.environ.pop(_name, None)
        if _value is not None:
            os.environ[_name] = _value

import numpy as np  # noqa: E402

from . import worker_process as worker_process  # noqa: E402

_server = os.getpid()


def _begin_in_worker() -> None:
    """Give a worker what a new process has: a random state of NumPy's of its own, and interrupts."""
    if os.getppid() == _server:
        np.random.seed()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


if _given is not None:
    os.register_at_fork(after_in_child=_begin_in_worker)
