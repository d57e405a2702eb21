"""Puts hooks into torch's DataLoader, in the main process and in its workers, and into torchdata's.

What is replaced are functions of torch's own modules, looked up by name; each that is not there, or does not look as
it should, is noted as missing, and what it would have told is unknown (never zero). fastload's loaders derive from the
same base of iterators, so their waits are heard here too; how their batches come about is told by their own stages.

NOTE [Versions of torch]
Up to torch 2.15 one class of iterators has workers, which are processes and run ``_worker_loop``. Behind 2.15, in
torch's main branch, what processes and threads have in common is a class that both derive from, and each has a loop of
its own. A method is replaced in each class that defines it, so that both ways of dividing them are heard.
"""

from __future__ import annotations

import sys
from typing import Any

from .pinning import Pinning
from .selftest import Places
from .tasks import Tasks
from .waits import Waits

_SHARED = ("_ParallelDataLoaderIter",)
_WITH_WORKERS = ("_ThreadingDataLoaderIter", "_MultiProcessingDataLoaderIter")
_LOOPS = ("_worker_loop", "_process_worker_loop")
_THREAD_LOOP = "_thread_worker_loop"


class TorchLoader:
    """Knows what lies where in torch, whatever its version.

    Args:
        places: puts the hooks in.
        waits: hears the loop.
        tasks: hears tasks on their way.
        pinning: hears batches being pinned.
    """

    def __init__(self, places: Places, waits: Waits, tasks: Tasks, pinning: Pinning) -> None:
        self._places = places
        self._waits = waits
        self._tasks = tasks
        self._pinning = pinning

    def hook_main(self, module: Any) -> None:
        """Hear the iterators of ``torch.utils.data.dataloader``."""
        replace, waits, tasks = self._places.replace, self._waits, self._tasks
        base = getattr(module, "_BaseDataLoaderIter", None)
        replace(base, "__init__", waits.init, "passes over loaders", takes=("self", "loader"))
        replace(base, "__next__", waits.next, "waits in next()", uses=("_next_data",))
        replace(base, "_next_index", tasks.draw, "time in the sampler")
        self._hook_kinds(module, _SHARED, _WITH_WORKERS)
        kind = getattr(module, "_DatasetKind", None)
        replace(kind, "create_fetcher", tasks.fetcher, "samples and collation", takes=("dataset", "collate_fn"))

    def _hook_kinds(self, module: Any, shared: tuple[str, ...], with_workers: tuple[str, ...]) -> None:
        """Hear iterators that have workers."""
        replace_in, waits, tasks = self._places.replace_in, self._waits, self._tasks
        ends = [getattr(module, name) for name in with_workers if hasattr(module, name)]
        kinds = [*(getattr(module, name) for name in shared if hasattr(module, name)), *ends]
        made, again = ("self", "loader"), ("self", "loader", "first_iter")
        handing = ("_next_index", "_send_idx", "_task_info")
        for kind in ends or [None]:
            signal = "the workers' processes"
            self._places.replace(kind, "__init__", waits.init_with_workers, signal, takes=made, uses=("_workers",))
        replace_in(kinds, "_reset", waits.reset, "passes of persistent workers", takes=again)
        replace_in(kinds, "_try_put_index", tasks.hand, "when batches are handed to workers", uses=handing)
        replace_in(kinds, "_try_get_data", tasks.get, "when batches arrive", uses=("_data_queue",))
        looked_at = ("_rcvd_idx", "_try_put_index")
        replace_in(kinds, "_next_data", _unchanged, "which batch next() gives", uses=looked_at)

    def hook_worker(self, module: Any) -> None:
        """Hear ``torch.utils.data._utils.worker``: which batch a worker is at."""
        signal = "what workers do"
        takes: tuple[str, ...] = ("index_queue", "worker_id")
        for name in [name for name in _LOOPS if hasattr(module, name)] or _LOOPS[:1]:
            self._places.replace(module, name, self._tasks.process_loop, signal, takes=takes)
        if hasattr(module, _THREAD_LOOP):
            takes = (*takes, "data_queue")
            self._places.replace(module, _THREAD_LOOP, self._tasks.thread_loop, "what worker threads do", takes=takes)

    def hook_torchdata(self, module: Any) -> None:
        """Hear ``torchdata.stateful_dataloader.stateful_dataloader``, whose iterators derive from torch's base."""
        self._hook_kinds(module, (), ("_StatefulMultiProcessingDataLoaderIter",))
        heard = sys.modules["torchdata.stateful_dataloader.worker"]._worker_loop
        if getattr(module, "_worker_loop", heard) is not heard:  # imported before it was heard
            self._places.replace(module, "_worker_loop", lambda _: heard, "what torchdata's workers do")

    def hook_pinning(self, module: Any) -> None:
        """Hear ``torch.utils.data._utils.pin_memory``: copies to page-locked memory, by a thread or the loop."""
        replace, pinning = self._places.replace, self._pinning
        replace(module, "_pin_memory_loop", pinning.loop, "pinning", takes=("in_queue", "out_queue"))
        replace(module, "pin_memory", pinning.pin, "pinning by the loop", takes=("data",))


def _unchanged(function: Any) -> Any:
    return function


__all__ = ["TorchLoader"]
