"""``forkserver``: multiprocessing's server imports torch once, for the workers of all loaders of a process.

multiprocessing has one server for a process: where it runs already, each worker imports torch itself, for seconds of a
core.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from multiprocessing import context as contexts
from multiprocessing import forkserver
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

_OURS = f"{__package__}.preload"
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
    """Start a worker; once more where the server is just ending, after an interrupt: then another one is started."""
    for seconds in (0.01, 0.1, 1.0, None):
        try:
            process.start()
            return
        except (ConnectionError, EOFError):
            if seconds is None:
                raise
            time.sleep(seconds)


def _server() -> Any:
    return getattr(forkserver, "_forkserver", None)


def _runs() -> bool:
    return getattr(_server(), "_forkserver_pid", None) is not None


def _preloaded() -> list[str]:
    return list(getattr(_server(), "_preload_modules", ()))
