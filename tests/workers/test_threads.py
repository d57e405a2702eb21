"""The ends of worker threads."""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

import pytest
from kit.datasets import Sized

import fastload


class LeavesSlowly(Sized):
    """Gives its thread something of C's to do after Python has left the thread: to sleep for a fifth of a second."""

    def __init__(self) -> None:
        super().__init__(1)
        self.libc = ctypes.CDLL(None)
        self.key = ctypes.c_uint()
        self.libc.pthread_key_create(ctypes.byref(self.key), self.libc.usleep)

    def __getitem__(self, index: int) -> int:
        self.libc.pthread_setspecific(self.key, ctypes.c_void_p(200_000))
        return threading.get_native_id()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the system does not say which threads there are")
def test_the_threads_of_a_closed_loader_have_left_c_libraries_too():
    dataset = LeavesSlowly()
    try:
        (batch,) = fastload.DataLoader(dataset, num_workers=1, worker_method="thread")
        assert str(batch.item()) not in os.listdir("/proc/self/task")
    finally:
        dataset.libc.pthread_key_delete(dataset.key)
