"""How many threads torch's operators use."""

from __future__ import annotations

import os
import threading

import torch


class _Process:
    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Make a new lock, since a thread that a fork has not taken along may hold the old one."""
        self.lock = threading.Lock()


_process = _Process()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_process.renew)


def use_one_torch_thread() -> None:
    """Let torch's operators use one thread where this thread calls them. Other threads keep what they have."""
    with _process.lock:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        # torch also notes the number for all threads that have not called an operator yet.
        restoring = threading.Thread(target=torch.set_num_threads, args=(before,), name="fastload_restores_num_threads")
        restoring.start()
        restoring.join()
