"""``with fastload.profile(loader) as recorded:`` records a part of a program, from within.

In: a loader, or none for all that the program has. Out: a recording in a folder, as ``fastload profile`` makes it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

from .. import observe
from ..errors import ConfigError
from ..inject import put_first
from .analysis import Analysis
from .analyze import analysis_of
from .hooks.start import Hooks
from .reader import read_trace
from .recorder import Recorder
from .recording import write_settings
from .trace import Trace

_VARIABLE = "FASTLOAD_PROFILE"


class Recording:
    """What :func:`profile` gives: a context in which loading is recorded."""

    def __init__(self, loader: Any, folder: str | os.PathLike[str] | None, level: int, warmup: int) -> None:
        self.folder = Path(folder) if folder is not None else None
        """Where the recording is; made at the beginning if it was not named."""
        self._loader = loader
        self._level = level
        self._warmup = warmup
        self._hooks: Hooks | None = None
        self._environment: dict[str, str | None] = {}

    def __enter__(self) -> Recording:
        """Begin to record."""
        if observe.listener is not None:
            raise ConfigError(
                "profile() while this process is recorded already, by another profile() or by fastload profile; end "
                "the first one before"
            )
        if self.folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix="fastload-profile-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        if any(self.folder.iterdir()):
            raise ConfigError(f"folder={str(self.folder)!r} is not empty; name one that does not exist yet")
        write_settings(self.folder, command=list(sys.argv), warmup=self._warmup, full=True, within=True)
        folder = str(self.folder.resolve())
        for name in (_VARIABLE, "PYTHONPATH"):
            self._environment[name] = os.environ.get(name)
        # Workers that are started by spawn hear it by their environment, as under the command.
        os.environ[_VARIABLE] = json.dumps({"folder": folder, "level": self._level, "stop_after": None})
        put_first(os.environ)
        self._hooks = Hooks(Recorder(folder, self._level), None, self._loader)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End it; what was recorded stays."""
        for name, value in self._environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if self._hooks is not None:
            self._hooks.close()
            self._hooks = None

    def analysis(self) -> Analysis:
        """Return what it comes to: verdict, blame, predictions; what ``fastload report`` shows.

        Raises:
            TraceError: the loader was not asked for a batch.
        """
        return analysis_of(str(self.folder))

    def trace(self) -> Trace:
        """Return what was recorded until now.

        Raises:
            TraceError: the loader was not asked for a batch.
        """
        return read_trace(str(self.folder))


def profile(
    loader: Any = None, *, folder: str | os.PathLike[str] | None = None, level: int = 1, warmup: int = 0
) -> Recording:
    """Return a context in which loading is recorded.

    What begins within it is heard: iterators, and the workers that they start. Workers that are there already
    (``persistent_workers``) are not, nor is a forkserver's child if the server was there before.

    Args:
        loader: record this one only, a loader of torch's or of fastload's; None: all of this process.
        folder: where to; one that does not exist yet, or is empty. None: a new one among the system's temporary files.
        level: 0: waits and tasks; 1: samples too; 2: stages within them too.
        warmup: steps at the beginning on which no verdict is based.

    Raises:
        ConfigError: an argument is wrong; on entering: this process is recorded already, or the folder is not empty.

    Example::

        with fastload.profile(loader) as recorded:
            train_one_epoch(loader)
        print(recorded.analysis().ranks[0].verdict.sentence)
    """
    if loader is not None and not hasattr(loader, "num_workers"):
        raise ConfigError(
            f"loader must be a DataLoader, or None for all of this process, got a {type(loader).__name__}; of what "
            "wraps a DataLoader, name the one within"
        )
    if level not in (0, 1, 2):
        raise ConfigError(f"level must be 0, 1 or 2, got {level!r}")
    if not isinstance(warmup, int) or warmup < 0:
        raise ConfigError(f"warmup must be an integer of at least 0, got {warmup!r}")
    return Recording(loader, folder, level, warmup)


__all__ = ["Recording", "profile"]
