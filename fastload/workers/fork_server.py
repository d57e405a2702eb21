"""``forkserver``: multiprocessing's server imports torch once, for the workers of all loaders of a process.

multiprocessing has one server for a process: where it runs already, each worker imports torch itself, for seconds of a
core.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from multiprocessing import context as contexts
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

from ..errors import WorkerDied

_OURS = f"{__package__}.preload"
GIVEN = "FASTLOAD_FORK_SERVER"
"""Variable of the server's environment: what this process has, for preload.py."""
# What the server imports too if this process has done so: a worker would most likely need it.
_IF_HERE = ("numpy", "PIL.Image", "cv2", "torchvision", "torchvision.transforms.v2", "albumentations")


def let_server_import_torch(context: BaseContext) -> None:
    """Add to what multiprocessing's server will import, if it is to start workers and does not run yet.

    On Linux: elsewhere forking a process that has imported torch was not tried.
    """
    if sys.platform == "linux" and type(context) is contexts.ForkServerContext and not _runs():
        theirs = _preloaded()
        known = [name for name in (_OURS, *_IF_HERE) if name == _OURS or name in sys.modules]
        multiprocessing.set_forkserver_preload([*theirs, *(name for name in known if name not in theirs)])


def why_each_imports_torch() -> str | None:
    """Return why workers of ``forkserver`` import torch each; None: they do not, or none has started yet."""
    if sys.platform == "linux" and _runs() and _OURS not in _preloaded():
        return (
            "each worker imports torch: multiprocessing's fork server was started before the first loader; call "
            f"multiprocessing.set_forkserver_preload([{_OURS!r}]) before that"
        )
    return None


def start(process: BaseProcess) -> None:
    """Start a worker; again where the server is just ending, after an interrupt: then another one is started.

    Raises:
        WorkerDied: each server has ended while it started.
    """
    for seconds in (0.1, 1.0, None):
        try:
            if _OURS in _preloaded():
                with _modules_of_this_process():
                    forkserver.ensure_running()
            process.start()
            return
        except (ConnectionError, EOFError) as error:
            if seconds is None:
                raise WorkerDied(
                    "multiprocessing's fork server has ended while it started; its errors stand above, on stderr. It "
                    f"imports {', '.join(_preloaded())}; with multiprocessing_context='spawn' no server is needed"
                ) from error
            time.sleep(seconds)


@contextlib.contextmanager
def _modules_of_this_process() -> Iterator[None]:
    """Let a server that is started inside find modules where this process does, and not hear the user's Ctrl-C.

    It is started as ``python -c``, which looks for modules in the current folder first. An interrupt would end it in
    the middle of an import. preload.py restores the environment, and lets workers be interrupted.
    """
    path = [entry for entry in sys.path if isinstance(entry, str)]
    changes = {"PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1"}
    before = {name: os.environ.get(name) for name in changes}
    changes[GIVEN] = json.dumps({"path": path, "environment": before})
    resource_tracker.ensure_running()  # here, since it unblocks the signal
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in {**before, GIVEN: None}.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _server() -> Any:
    return getattr(forkserver, "_forkserver", None)


def _runs() -> bool:
    return getattr(_server(), "_forkserver_pid", None) is not None


def _preloaded() -> list[str]:
    return list(getattr(_server(), "_preload_modules", ()))
