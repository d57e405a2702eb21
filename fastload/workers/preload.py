"""What a fork server imports before it forks: torch, and all that a worker process runs. See spawn_start.py.

Nothing is begun here, for neither a thread nor a device would be in the workers.
"""

from __future__ import annotations

import os

import numpy as np

from . import worker_process as worker_process

_server = os.getpid()


def _begin_in_child() -> None:
    """Give a process that the server has forked a random state of NumPy's, as a new one has."""
    if os.getppid() == _server:
        np.random.seed()


os.register_at_fork(after_in_child=_begin_in_child)
