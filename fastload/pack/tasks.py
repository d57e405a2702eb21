"""Encodes the images of a pack, in this process or in several; the results come in order."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.resource_tracker
import os
import signal
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, TypeAlias

from ..errors import PackError
from .description import PackOptions
from .encoding import encode
from .listing import refuse_pipe

Made: TypeAlias = list[bytes | str]
"""For each file what is stored of it; or, as text, why it cannot be packed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackTask:
    """Files to encode."""

    root: str
    names: Sequence[str]
    """Paths of the images below the root, with ``/``."""
    options: PackOptions


def make(task: PackTask) -> Made:
    """Encode the files of a task."""
    made: Made = []
    for name in task.names:
        try:
            path = os.path.join(task.root, *name.split("/"))
            refuse_pipe(path)
            with open(path, "rb") as file:
                data = file.read()
            made.append(encode(data, task.options))
        except MemoryError:
            raise
        except Exception as error:
            made.append(f"{type(error).__name__}: {error}")
    return made


def make_all(tasks: Sequence[PackTask], workers: int) -> Generator[Made, None, None]:
    """Do tasks, and yield their results in order. With one worker, this process does them.

    Raises:
        PackError: a process has died.
    """
    if workers == 1 or len(tasks) <= 1:
        yield from map(make, tasks)
        return
    context = multiprocessing.get_context("spawn")  # not forked: the user's process may have threads
    processes: dict[Connection, Any] = {}
    busy: dict[Connection, int] = {}
    done: dict[int, Made] = {}
    given = yielded = 0
    try:
        for number in range(min(workers, len(tasks))):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs,), name=f"fastload pack {number}", daemon=True)
            with _blocked_interrupts():
                process.start()
            processes[ours] = process
            theirs.close()
        while yielded < len(tasks):
            for one in processes.keys() - busy.keys():
                if given < min(len(tasks), yielded + 2 * len(processes)):  # so that results do not fill the memory
                    busy[one] = given
                    with contextlib.suppress(OSError):  # it has died, which is seen below
                        one.send(tasks[given])
                    given += 1
            ready = wait(list(busy))
            for one in [one for one in busy if one in ready]:
                try:
                    message = one.recv()
                except (EOFError, OSError):
                    processes[one].join()
                    raise PackError(
                        f"a process that packs died (exit code {processes[one].exitcode}), at one of the "
                        f"{len(tasks[busy[one]].names)} files from {tasks[busy[one]].names[0]} on; run the same "
                        "command again, which continues where this one stopped"
                    ) from None
                if isinstance(message, BaseException):
                    raise message
                done[busy.pop(one)] = message
            while yielded in done:
                yield done.pop(yielded)
                yielded += 1
    finally:
        for connection, process in processes.items():
            process.terminate()
            connection.close()
        for process in processes.values():
            process.join()


@contextlib.contextmanager
def _blocked_interrupts() -> Iterator[None]:
    """Block Ctrl-C while a process is started, so that the process starts with it blocked: its parent handles it."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    multiprocessing.resource_tracker.ensure_running()  # which may unblock it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(connection: Connection) -> None:
    """Do the tasks that are received, until the connection is closed, as when the parent dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    with contextlib.suppress(EOFError, OSError):
        while True:
            task = connection.recv()
            try:
                message: Any = make(task)
            except Exception as error:
                message = error
            connection.send(message)
