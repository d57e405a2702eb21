"""Whether other processes live."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

SOON_S = 60.0
"""How long "it is gone" and "it is there" may take before a test gives up: long, for a machine that does more."""


def alive(pid: int) -> bool:
    """Return whether a process is there and has not ended, reaped or not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def wait_gone(pids: Iterable[int], within: float = SOON_S) -> None:
    """Block until none of the processes lives (one that nobody has reaped yet is as good as gone)."""
    deadline = time.monotonic() + within
    left = list(pids)
    while left := [pid for pid in left if alive(pid)]:
        assert time.monotonic() < deadline, f"processes {left} still live after {within} s"
        time.sleep(0.01)
