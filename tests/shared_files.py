"""Files that torch keeps in /dev/shm for tensors which go from one process to another, and whose they are.

Tests run in several processes at a time, and some of them kill a worker of torch's in the midst of a batch: that leaves
such a file for good. So a file counts only where it was made: by this process, or by one that descends from it.
"""

from __future__ import annotations

import mmap
import os
import re
import time
from pathlib import Path

_FOLDER = Path("/dev/shm")
_begun = time.time() - 1.0  # its clock is coarser
# One byte for each process id: whether it was forked from this process, directly or by another forked one. Forked
# processes share this memory and set their bytes themselves, so that those are known too that have ended.
_forked = mmap.mmap(-1, 1 + int(Path("/proc/sys/kernel/pid_max").read_text())) if _FOLDER.is_dir() else None


def files_of_this_process() -> set[str]:
    """Return the names of torch's files that this process has made, or one that descends from it.

    Descendants are those that live, and those that were forked since :func:`forget_processes` was called. torch's files
    are called ``torch_<process id>_<number>_<count>``.
    """
    try:
        names = os.listdir(_FOLDER)
    except OSError:
        return set()
    makers = ((name, re.match(r"torch_(\d+)_", name)) for name in names)
    return {name for name, maker in makers if maker is not None and _is_ours(int(maker[1])) and _is_recent(name)}


def _is_recent(name: str) -> bool:
    """Return whether a file was made since this process began: a process id may have been used before."""
    try:
        return (_FOLDER / name).stat().st_ctime >= _begun
    except OSError:  # removed meanwhile
        return False


def forget_processes() -> None:
    """Forget which processes were forked: their ids may be given to others' processes by now."""
    if _forked is not None and _forked[0]:
        _forked[:] = bytes(len(_forked))


def _is_ours(pid: int) -> bool:
    if pid == os.getpid() or (_forked is not None and pid < len(_forked) and _forked[pid]):
        return True
    while pid > 1:
        try:
            # The process's name, which is in brackets, may contain anything.
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            return False
        if pid == os.getpid():
            return True
    return False


def _note_this_process() -> None:
    if _forked is not None:
        _forked[0] = _forked[os.getpid()] = 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_this_process)
