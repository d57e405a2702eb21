"""A fork server of fastload's own, in which torch is imported once, for all workers of all loaders of a process.

In: the context that is to start workers. Out: the one that starts them; another one where the given one is
multiprocessing's own of ``forkserver``.

multiprocessing has one fork server for a process, which is the user's: it may be running already, and what it imports
is for ``multiprocessing.set_forkserver_preload`` to say. Workers that it forks import torch each, which takes seconds
of a core. fastload's server imports torch first, then what the user names there. It ends with this process.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import threading
import types
import warnings
from collections.abc import Iterator
from multiprocessing import context as contexts
from multiprocessing import forkserver, popen_forkserver, resource_tracker
from multiprocessing.context import BaseContext
from typing import Any

from .held_interrupts import was_interrupted
from .preload import GIVEN

# What the server imports too if this process has done so: a worker would most likely need it.
_IF_HERE = ("numpy", "PIL.Image", "cv2", "torchvision", "torchvision.transforms.v2", "albumentations")


class _Process:
    """What this process has."""

    server: Any = None
    """multiprocessing's ``ForkServer``, with modules of ours; None: not started yet."""
    failed = False
    """Whether it ended while it imported them."""
    lock = threading.Lock()


_process = _Process()


def _begin_in_child() -> None:
    _process.lock = threading.Lock()  # a thread that is not here may hold it
    _forget()


def _forget() -> None:
    server, _process.server = _process.server, None
    alive = getattr(server, "_forkserver_alive_fd", None)
    if alive is not None:
        os.close(alive)  # the server ends when nobody has this


os.register_at_fork(after_in_child=_begin_in_child)


def with_own_server(context: BaseContext) -> BaseContext:
    """Return the context that starts workers where a user has given, or Python has chosen, this one.

    On Linux: elsewhere forking a process that has imported torch was not tried.
    """
    is_known = sys.platform == "linux" and type(context) is contexts.ForkServerContext
    return _Context() if is_known and not _process.failed else context


class _Popen(popen_forkserver.Popen):
    """A worker process, as multiprocessing's class starts it, but by the other server."""

    def _launch(self, process: Any) -> None:
        if not _process.failed:
            try:
                _launch_by_own_server(self, process)
                return
            except (EOFError, ConnectionError):  # it has ended before it answered, so this start is none
                self._give_up()
        _launch(self, process)

    def _give_up(self) -> None:
        _process.failed = True
        pid = getattr(_process.server, "_forkserver_pid", None)
        _forget()
        if pid is not None:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if self.finalizer is not None:
            self.finalizer()
        self._fds: list[int] = []
        named = ", ".join(_names_of_user()) or "none"
        warnings.warn(
            "fastload's fork server ended while it imported torch and the modules of "
            f"multiprocessing.set_forkserver_preload ({named}); what it wrote to stderr says why. Workers are started "
            "by multiprocessing's server instead, and import torch each",
            RuntimeWarning,
            stacklevel=2,
        )


class _Context(contexts.ForkServerContext):
    class Process(contexts.ForkServerProcess):
        @staticmethod
        def _Popen(process: Any) -> Any:  # noqa: N802  # multiprocessing's name
            return _Popen(process)


def _names_of_user() -> list[str]:
    known: list[str] = getattr(getattr(forkserver, "_forkserver", None), "_preload_modules", [])
    return [name for name in known if name != "__main__"]


def _connect(files: Any) -> Any:
    """Return what ``multiprocessing.forkserver.connect_to_new_process`` returns."""
    with _process.lock:
        server = _process.server
        if server is None:
            server = forkserver.ForkServer()
            known = [name for name in _IF_HERE if name in sys.modules]
            # The script as multiprocessing's own server has it: from Python 3.14 on it is imported, before the others.
            server.set_forkserver_preload([f"{__package__}.preload", *known, *_names_of_user(), "__main__"])
            _process.server = server
        with _starting():
            server.ensure_running()
        return server.connect_to_new_process(files)


@contextlib.contextmanager
def _starting() -> Iterator[None]:
    """Let a server that is started inside find the modules of this process, and not hear the user's Ctrl-C.

    It is started as ``python -c``, which would look for modules in the current folder first, and not where the script
    does. The interrupt would end it in the middle of an import; :mod:`.preload` lets it through again.
    """
    path = [entry for entry in sys.path if isinstance(entry, str)]
    changes = {"PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1"}
    before = {name: os.environ.get(name) for name in changes}
    changes[GIVEN] = json.dumps({"path": path, "environment": before})
    resource_tracker.ensure_running()  # here, since it unblocks the signal
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in {**before, GIVEN: None}.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def _read_signed(file: int) -> int:
    """Read what the server answers, once it has imported everything.

    Raises:
        KeyboardInterrupt: the user has asked for it meanwhile.
    """
    while not select.select([file], [], [], 0.1)[0]:
        if was_interrupted():
            raise KeyboardInterrupt
    found: int = forkserver.read_signed(file)
    return found


_launch: Any = popen_forkserver.Popen._launch  # type: ignore[attr-defined]  # private, and not in the stub
_ours = types.SimpleNamespace(connect_to_new_process=_connect, read_signed=_read_signed)
# The same code, for which the name of the process-wide server is that of ours.
_launch_by_own_server = types.FunctionType(_launch.__code__, {**vars(popen_forkserver), "forkserver": _ours})
