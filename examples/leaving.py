"""Leave a process group and exit with the right status."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

import torch.distributed as dist

# Groups that were destroyed, kept alive: see leave().
_left: list[Any] = []


def leave(group: Any = None) -> None:
    """Destroy all process groups after all ranks have called this; a rank that has failed must not call it.

    The barrier is needed because NCCL warns, and may hang, if a rank leaves early. The groups are kept alive until the
    process exits: destroying the last reference to one waits for its threads while holding the GIL, and a thread that
    is releasing a tensor waits for the GIL (seen with torch 2.13).
    """
    dist.barrier(group)
    _left.extend([group, dist.group.WORLD])
    dist.destroy_process_group()


def run_rank(main: Callable[[], object]) -> None:
    """Call a script's main function; if it has created a process group, exit with :func:`end_process`."""
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
        sys.exit(status)  # type: ignore[arg-type]
    if status is not None and not isinstance(status, int):
        print(status, file=sys.stderr)
        status = 1
    end_process(status or 0)


def end_process(status: int = 0) -> NoReturn:
    """Exit without finalising the interpreter, after everything else that Python does at exit.

    Gloo's threads release the tensors of a collective a moment after it, and need the GIL for that. If the interpreter
    is finalised while such a thread waits for the GIL, Python 3.13 and older end the thread inside a C++ destructor,
    and C++ aborts the process: "terminate called without an active exception", SIGABRT. torch (2.13) has no call that
    waits for these threads while a DistributedDataParallel exists; a barrier does not. See pytorch/pytorch#190489.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are not daemons
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            status = status or 120
    os._exit(status)


def _has_joined() -> bool:
    return bool(_left) or dist.is_initialized()
