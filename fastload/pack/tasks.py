"""Makes the parts of a pack, in this process or in several.

A part has a temporary name until it is complete and on the disk. Its contents depend on its task alone.
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
from .description import PackOptions
from .encoding import encode
from .listing import refuse_pipe
from .parts import write_part

Failures = list[tuple[str, str]]
"""(name, reason) of files that cannot be packed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackTask:
    """A part to make."""

    path: str
    """Of the part's file."""
    root: str
    names: Sequence[str]
    """Paths of the images below the root, with ``/``."""
    labels: Sequence[int]
    classes: Sequence[str]
    options: PackOptions
    skip: bool
    """Make the part without files that cannot be packed; otherwise such a part is not made."""


def make(task: PackTask, tell: Callable[[], object]) -> Failures:
    """Make a part, and return the files that cannot be packed; ``tell`` is called after each image.

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
                stored = encode(data, task.options)
            except MemoryError:
                raise
            except Exception as error:
                failures.append((name, f"{type(error).__name__}: {error}"))
            else:
                yield stored, name, label
            tell()

    temporary = f"{task.path}.{os.getpid()}.tmp"
    try:
        write_part(temporary, images(), task.classes)
        if task.skip or not failures:
            os.replace(temporary, task.path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    return failures


def make_all(tasks: Sequence[PackTask], workers: int, tell: Callable[[], object]) -> Iterator[Failures]:
    """Make parts, and yield the files of each that cannot be packed, in the order of completion.

    With one worker, this process makes all parts. ``tell`` is called after each image.

    Raises:
        OSError: a part cannot be written.
        PackError: a process has died.
    """
    if workers == 1 or len(tasks) <= 1:
        for task in tasks:
            yield make(task, tell)
        return
    waiting = list(reversed(tasks))
    # Not forked, because Arrow has threads, and the user's process may have some.
    context = multiprocessing.get_context("spawn")
    busy: dict[Connection, tuple[Any, PackTask]] = {}
    processes = []

    def give(connection: Connection, process: Any) -> None:
        busy[connection] = process, waiting.pop()
        try:
            connection.send(busy[connection][1])
        except OSError:
            raise _died(*busy[connection]) from None

    try:
        for number in range(min(workers, len(tasks))):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs,), name=f"fastload pack {number}", daemon=True)
            with _blocked_interrupts():
                process.start()
            processes.append((process, ours))
            theirs.close()
            give(ours, process)
        while busy:
            for one in wait(list(busy)):
                assert isinstance(one, Connection)
                process, task = busy[one]
                try:
                    message = one.recv()
                except (EOFError, OSError):
                    raise _died(process, task) from None
                if message is None:
                    tell()
                    continue
                if isinstance(message, BaseException):
                    raise message
                yield message
                if waiting:
                    give(one, process)
                else:
                    del busy[one]
    finally:
        for process, connection in processes:
            process.terminate()
            connection.close()
        for process, _ in processes:
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


def _died(process: Any, task: PackTask) -> PackError:
    process.join()
    return PackError(
        f"the process that made {os.path.basename(task.path)} died (exit code {process.exitcode}); run the same "
        "command again, which continues where this one stopped"
    )


def _work(connection: Connection) -> None:
    """Make the parts that are received, until the connection is closed, as when the parent dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    try:
        while True:
            task = connection.recv()
            try:
                message: Any = make(task, lambda: connection.send(None))
            except (BrokenPipeError, ConnectionResetError):
                return
            except Exception as error:
                message = error
            connection.send(message)
    except (EOFError, OSError):
        return
