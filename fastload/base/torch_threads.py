"""How many threads torch's operators use."""

from __future__ import annotations

import os
import threading

import torch

_lock = threading.Lock()
# A child has no thread that could release it.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def use_one_torch_thread() -> None:
    """Let torch's operators use one thread where this thread calls them. Other threads keep what they have."""
    with _lock:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        # torch also notes the number for all threads that have not called an operator yet.
        restoring = threading.Thread(target=torch.set_num_threads, args=(before,), name="fastload_restores_num_threads")
        restoring.start()
        restoring.join()
