"""How worker processes start that inherit nothing, by ``spawn`` or ``forkserver``.

Their job is pickled, once for all of them if possible. Each imports torch, which takes seconds of a core: if all
started at once, each import would take as many times longer as there are workers for a core, and the first batch would
wait for that. So as many start at a time as there are cores; and multiprocessing's fork server, of which a process has
one, imports torch once for all workers, unless it runs already.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import mmap
import multiprocessing
import os
import pickle
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from multiprocessing import context as contexts
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np

from ..base.cgroups import processor_quota, processors
from ..buffers.packing import pack, unpack
from ..buffers.slots import MemoryFile
from ..errors import WorkerDied, add_note
from .samples import Job

JOB_OFFSET = 1 << 42
"""Offset of the job in slot 0."""
_PRELOAD = f"{__package__}.preload"
GIVEN = "FASTLOAD_FORK_SERVER"
"""Variable of the fork server's environment: what this process has, for preload.py."""
# What the server imports too if this process has done so: a worker would most likely need it.
_IF_HERE = ("numpy", "PIL.Image", "cv2", "torchvision", "torchvision.transforms.v2", "albumentations")


class SharedJob:
    """A job that lies in the memory file, pickled once for all workers. Their tensors and arrays share its pages."""

    def __init__(self, length: int) -> None:
        self._length = length

    def load(self, memory: MemoryFile | None) -> Job:
        """Return the job, in the worker."""
        assert memory is not None
        # Private: a worker may change its copy of the dataset, as it may after a fork.
        mapped = mmap.mmap(memory.fd, self._length, flags=mmap.MAP_PRIVATE, offset=JOB_OFFSET)
        with _noting_what_cannot_be_imported():
            job: Job = unpack(np.frombuffer(mapped, dtype=np.uint8))
        return job


class PickledJob:
    """A job that is pickled for each worker, while its process is being started.

    By itself, so that ``load`` raises what unpickling raises: multiprocessing would end the worker.
    """

    def __init__(self, job: Job) -> None:
        self._job = job

    def __getstate__(self) -> bytes:
        return bytes(ForkingPickler.dumps(self._job))

    def __setstate__(self, pickled: bytes) -> None:
        self._pickled = pickled

    def load(self, memory: MemoryFile | None) -> Job:
        """Return the job, in the worker."""
        with _noting_what_cannot_be_imported():
            job: Job = pickle.loads(self._pickled)
        return job


class SpawnStart:
    """Starts the workers of a job; ``takes_any``: whether any worker takes any task, so that some may start later."""

    def __init__(self, job: Job, context: BaseContext, file: MemoryFile | None, *, takes_any: bool) -> None:
        _let_server_import_torch(context)
        self._method = context.get_start_method()
        # The cache's descriptor goes to each worker as it is started.
        job = dataclasses.replace(job, cache=None)
        shared = _share_job(job, file)
        self.source = shared or PickledJob(job)
        self.at_once = _cores() if shared is not None and takes_any else job.num_workers
        """How many workers may be starting."""
        self.job_pickled = "pickled for each worker" if shared is None else "pickled once for all workers"

    def start(self, process: BaseProcess) -> None:
        """Start a worker; again where the fork server is just ending, after an interrupt: then another one is started.

        Raises:
            WorkerDied: each server has ended while it started.
        """
        for seconds in (0.1, 1.0, None):
            try:
                if self._method == "forkserver" and _PRELOAD in _preloaded():
                    with _modules_of_this_process():
                        forkserver.ensure_running()
                process.start()
                return
            except (TypeError, AttributeError, pickle.PicklingError) as error:
                error.add_note(
                    f"the dataset, collate_fn and worker_init_fn must be picklable for workers started by "
                    f"{self._method!r}; define them at the top level of a module, or pass "
                    "multiprocessing_context='fork'"
                )
                raise
            except (ConnectionError, EOFError) as error:
                if self._method != "forkserver":
                    raise
                if seconds is None:
                    raise WorkerDied(
                        "multiprocessing's fork server has ended while it started; its errors stand above, on stderr. "
                        f"It imports {', '.join(_preloaded())}; multiprocessing_context='spawn' needs no server"
                    ) from error
                time.sleep(seconds)


@contextlib.contextmanager
def _noting_what_cannot_be_imported() -> Iterator[None]:
    """Add to the error of a class or function of the user's ``__main__`` why a worker has no such name."""
    try:
        yield
    except (AttributeError, ImportError) as error:
        if "main__'" in str(error):  # "__mp_main__" is the script, as a worker imports it
            add_note(
                error,
                "a worker that is not forked imports the classes and functions of the dataset, collate_fn and "
                "worker_init_fn, and cannot import what is defined in a notebook's cell or below "
                "`if __name__ == '__main__'`: move it to a module (%%writefile makes one from a cell), or pass "
                "multiprocessing_context='fork' or worker_method='thread'",
            )
        raise


def _share_job(job: Job, file: MemoryFile | None) -> SharedJob | None:
    """Write a job to the memory file; None where that cannot be, and multiprocessing pickles it for each worker."""
    if file is None:
        return None
    try:
        pieces, length = pack(job, for_all=True)
    except Exception:
        # Locks, queues and shared tensors can only be passed while a process is being started; and for what cannot be
        # pickled at all, multiprocessing's own error follows.
        return None
    file.write(list(pieces), JOB_OFFSET)
    return SharedJob(length)


def _cores() -> int:
    quota = processor_quota()
    return processors() if quota is None else max(1, min(processors(), math.ceil(quota)))


def _let_server_import_torch(context: BaseContext) -> None:
    """Add to what multiprocessing's server will import, if it is to start workers and does not run yet.

    On Linux: elsewhere forking a process that has imported torch was not tried.
    """
    if sys.platform == "linux" and type(context) is contexts.ForkServerContext and not _runs():
        theirs = _preloaded()
        known = [name for name in _IF_HERE if name in sys.modules and name not in theirs]
        # First, since it says where the others are found.
        multiprocessing.set_forkserver_preload([*(() if _PRELOAD in theirs else (_PRELOAD,)), *theirs, *known])


def why_each_imports_torch() -> str | None:
    """Return why workers of ``forkserver`` import torch each; None: they do not, or none has started yet."""
    if sys.platform == "linux" and _runs() and _PRELOAD not in _preloaded():
        return (
            "each worker imports torch: multiprocessing's fork server was started before the first loader; call "
            f"multiprocessing.set_forkserver_preload([{_PRELOAD!r}]) before that"
        )
    return None


@contextlib.contextmanager
def _modules_of_this_process() -> Iterator[None]:
    """Let a server that is started inside find modules where this process does, and not hear the user's Ctrl-C.

    It is started as ``python -c``, which looks for modules in the current folder first. An interrupt would end it in
    the middle of an import. preload.py restores the environment, and lets workers be interrupted.
    """
    path = [entry for entry in sys.path if isinstance(entry, str)]
    # Only where preload.py is, which then adds the others: a module in the script's folder may have the name of one
    # that Python imports while it starts.
    ours = str(Path(__file__).parents[2])
    places = [ours, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    changes = {"PYTHONPATH": os.pathsep.join(places), "PYTHONSAFEPATH": "1"}
    before = {name: os.environ.get(name) for name in changes}
    changes[GIVEN] = json.dumps({"path": path, "environment": before})
    resource_tracker.ensure_running()  # here, since it unblocks the signal
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.environ.update(changes)
    try:
        yield
    finally:
        set_variables({**before, GIVEN: None})
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def set_variables(values: Mapping[str, str | None]) -> None:
    """Set variables of the environment; None: there is none."""
    for name, value in values.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


def _server() -> Any:
    return getattr(forkserver, "_forkserver", None)


def _runs() -> bool:
    return getattr(_server(), "_forkserver_pid", None) is not None


def _preloaded() -> list[str]:
    return list(getattr(_server(), "_preload_modules", ()))
