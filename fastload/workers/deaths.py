"""Why a worker process ended, in words.

In: a process that has ended. Out: the :class:`~fastload.errors.WorkerDied` to raise.
"""

from __future__ import annotations

import signal
from multiprocessing.process import BaseProcess

from ..errors import WorkerDied
from ..work import WorkItem


def died(worker_id: int, process: BaseProcess, item: WorkItem | None) -> WorkerDied:
    """Return the error that says how a worker process ended, and what it was doing.

    Args:
        worker_id: the worker.
        process: it has ended, or is about to.
        item: what it was working on; None: nothing.
    """
    process.join()
    code = process.exitcode
    samples: tuple[object, ...] = ()
    doing = "between two tasks"
    if item is not None:
        samples = tuple(item.indices) if isinstance(item.indices, list | tuple) else (item.indices,)
        doing = f"while loading batch {item.batch_id} (samples {_shortened(samples)})"
    how = f"exited with code {code}"
    if code is not None and code < 0:
        try:
            how = f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            how = f"was killed by signal {-code}"
    hint = "; the kernel log will say if memory ran out" if code == -signal.SIGKILL else ""
    error = WorkerDied(
        f"DataLoader worker (pid(s) {process.pid}) exited unexpectedly: worker {worker_id} {how} {doing}{hint}",
        worker_id=worker_id,
        exitcode=code,
        samples=samples,
    )
    # torch's words, for those who look for them: there its signal handler's error is the cause of the other.
    ended = f"is killed by signal: {signal.strsignal(-code)}." if code is not None and code < 0 else "has ended."
    error.__cause__ = RuntimeError(f"DataLoader worker (pid {process.pid}) {ended}")
    return error


def _shortened(samples: tuple[object, ...]) -> str:
    shown = [repr(sample)[:40] for sample in samples[:8]]
    return ", ".join(shown) + (f", ... {len(samples)} in all" if len(samples) > 8 else "")


__all__ = ["died"]
