"""How a rank leaves its process group and ends, so that its exit status is its own.

In: a script's main function. Out: the end of the process, with the status that the function asked for.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

import torch.distributed as dist

# Groups that were left: see leave().
_left: list[Any] = []


def leave(group: Any = None) -> None:
    """Leave all process groups when all ranks have come so far; a rank that has failed must not call this.

    NCCL warns, and may hang, where a rank leaves early: hence the barrier. The groups are kept until the process ends:
    the last reference to one may be a DistributedDataParallel's, and dropping that waits for the group's threads while
    it holds Python's lock; a thread that is just releasing a tensor waits for the lock (seen with torch 2.13).

    Args:
        group: in which the ranks wait for each other; None: the default group.
    """
    dist.barrier(group)
    _left.extend([group, dist.group.WORLD])
    dist.destroy_process_group()


def run_rank(main: Callable[[], object]) -> None:
    """Call a script's main function; if it has joined a process group, end the process by :func:`end_process`."""
    status: object = 0
    try:
        main()
    except SystemExit as asked:
        status = asked.code
    except Exception:
        if not _has_joined():
            raise
        sys.excepthook(*sys.exc_info())
        status = 1
    if not _has_joined():
        sys.exit(status)  # type: ignore[arg-type]  # as it was asked
    if status is not None and not isinstance(status, int):
        print(status, file=sys.stderr)
        status = 1
    end_process(status or 0)


def end_process(status: int = 0) -> NoReturn:
    """End the process without Python's finalisation, after everything else that Python does at its end.

    Gloo's threads release the tensors of a collective a moment after the collective, and take Python's lock for it. If
    Python begins to finalise while such a thread waits for the lock, Python 3.13 and older end the thread inside a C++
    destructor, and C++ then ends the process: "terminate called without an active exception", SIGABRT. torch (2.13)
    has no call that waits for these threads while a DistributedDataParallel is there, and a barrier does not: another
    thread of the group runs it. Known as pytorch/pytorch#190489.

    Args:
        status: the exit status. If the standard streams cannot be written, 0 becomes 120, as in Python itself.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # threads that are not daemons; multiprocessing calls it too
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            status = status or 120
    os._exit(status)


def _has_joined() -> bool:
    return bool(_left) or dist.is_initialized()
