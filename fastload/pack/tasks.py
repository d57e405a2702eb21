"""A part's images -> its file, in this process or in several.

In: tasks. Out: what could not be packed of each. A file appears under its name when it is complete and on the disk;
before, it has a temporary one. What a file holds depends on its task alone.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.resource_tracker
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from ..errors import PackError
from .encoding import encode
from .listing import refuse_pipe
from .options import PackOptions
from .parts import check_size, write_part

Failures = list[tuple[str, str]]
"""Name and reason of each file that could not be packed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A part that is to be made."""

    path: str
    """Of its file."""
    root: str
    names: Sequence[str]
    """Of the images, below the root."""
    labels: Sequence[int]
    classes: Sequence[str]
    options: PackOptions
    skip: bool
    """Whether the part is made without the files that cannot be packed; else it is not made."""


def make(task: Task, tell: Callable[[], object]) -> Failures:
    """Make a part.

    Args:
        task: the part.
        tell: called after each image.

    Raises:
        OSError: the part cannot be written.
    """
    failures: Failures = []

    def images() -> Iterator[tuple[bytes, str, int]]:
        for name, label in zip(task.names, task.labels, strict=True):
            try:
                path = os.path.join(task.root, *name.split("/"))
                refuse_pipe(path)
                with open(path, "rb") as file:
                    data = file.read()
                stored = check_size(encode(data, task.options))
            except MemoryError:
                raise
            except Exception as error:
                failures.append((name, f"{type(error).__name__}: {error}"))
            else:
                yield stored, name, label
            tell()

    temporary = temporary_name(task.path)
    try:
        write_part(temporary, images(), task.classes)
        if task.skip or not failures:
            os.replace(temporary, task.path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    return failures


def temporary_name(path: str) -> str:
    """Return what a file is called in this process until it is complete."""
    return f"{path}.{os.getpid()}.tmp"


def make_all(tasks: Sequence[Task], workers: int, tell: Callable[[], object]) -> Iterator[Failures]:
    """Make parts, and return what could not be packed of each, in the order in which they are done.

    Args:
        tasks: the parts.
        workers: processes; with one, this process does it.
        tell: called after each image.

    Raises:
        OSError: a part cannot be written.
        PackError: a process has died.
    """
    if workers == 1 or len(tasks) <= 1:
        for task in tasks:
            yield make(task, tell)
        return
    waiting = list(reversed(tasks))
    # Not forked: the user's process may have threads, and Arrow has.
    context = multiprocessing.get_context("spawn")
    busy: dict[Connection, tuple[Any, Task]] = {}
    processes = []
    try:
        for number in range(min(workers, len(tasks))):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs,), name=f"fastload pack {number}", daemon=True)
            with _held_interrupts():
                process.start()
            processes.append((process, ours))
            theirs.close()
            busy[ours] = process, waiting.pop()
            _send(ours, *busy[ours])
        while busy:
            for one in wait(list(busy)):
                assert isinstance(one, Connection)
                process, task = busy[one]
                try:
                    told = one.recv()
                except (EOFError, OSError):
                    raise _died(process, task) from None
                if told is None:
                    tell()
                    continue
                if isinstance(told, BaseException):
                    raise told
                yield told
                if waiting:
                    busy[one] = process, waiting.pop()
                    _send(one, *busy[one])
                else:
                    del busy[one]
    finally:
        for process, connection in processes:
            process.terminate()
            connection.close()
        for process, _ in processes:
            process.join()


@contextlib.contextmanager
def _held_interrupts() -> Iterator[None]:
    """Have a process that is started begin deaf to Ctrl-C, which is its parent's; here it comes afterwards."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    multiprocessing.resource_tracker.ensure_running()  # which may let it through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _send(connection: Connection, process: Any, task: Task) -> None:
    try:
        connection.send(task)
    except OSError:
        raise _died(process, task) from None


def _died(process: Any, task: Task) -> PackError:
    process.join()
    return PackError(
        f"a process that packed {os.path.basename(task.path)} ended by itself (exit code {process.exitcode}); run the "
        "same command again: it goes on where this one ended"
    )


def _work(connection: Connection) -> None:
    """Make the parts that come through a connection until it is closed, which it is when the parent dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    try:
        while True:
            task = connection.recv()
            try:
                told: Any = make(task, lambda: connection.send(None))
            except (BrokenPipeError, ConnectionResetError):
                return
            except Exception as error:
                told = error
            connection.send(told)
    except (EOFError, OSError):
        return


__all__ = ["Failures", "Task", "make", "make_all", "temporary_name"]
