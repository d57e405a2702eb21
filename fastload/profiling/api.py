"""``with fastload.profile(loader) as recorded:`` records a part of a program, from within it."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import observe
from ..errors import ConfigError, TraceError
from .analyze import analysis_of
from .hooks.process import Hooks
from .reader import read_trace
from .recorder import Recorder
from .recording import begin, empty_folder
from .schema import Analysis
from .trace import Trace

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

_Folder = str | os.PathLike[str] | None


class Recording:
    """A context that records loading; returned by ``fastload.profile``."""

    def __init__(self, loader: DataLoader[Any] | None, folder: _Folder, level: int, warmup: int) -> None:
        self.folder = Path(folder) if folder is not None else None
        """The folder of the recording; if none was named, it is made on entering the context, and removed when this
        object is collected, or the process ends."""
        self._loader = loader
        self._level = level
        self._warmup = warmup
        self._hooks: Hooks | None = None
        self._environment: dict[str, str | None] = {}

    def __enter__(self) -> Recording:
        """Start to record."""
        if observe.listener is not None:
            raise ConfigError(
                "profile() cannot be used while this process is already recorded, by another profile() or by fastload "
                "profile; end that recording first"
            )
        temporary = self.folder is None
        if self.folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix="fastload-profile-"))
            weakref.finalize(self, _remove, self.folder, os.getpid())
        folder = empty_folder(self.folder, "folder=")
        # Spawned workers are recorded because of their environment, as under the command.
        wanted = begin(
            folder, level=self._level, temporary=temporary, command=list(sys.argv), warmup=self._warmup, within=True
        )
        self._environment = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
        self._hooks = Hooks(Recorder(folder, self._level, temporary=temporary), None, self._loader)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop to record; the recording stays as long as this object, or its folder if one was named."""
        for name, value in self._environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if self._hooks is not None:
            self._hooks.close()
            self._hooks = None

    def analysis(self) -> Analysis:
        """Return the analysis: verdict, blame, bounds; what ``fastload report`` shows.

        Raises:
            TraceError: no loader was asked for a batch.
        """
        return analysis_of(str(self.folder))

    def _repr_html_(self) -> str:
        """Return the summary for a notebook, or why there is none yet."""
        from ..base.console import as_html
        from .summary import summary

        if self._hooks is not None or self.folder is None:
            return as_html("no summary yet: iterate the loader in a with block of this recording, and leave the block")
        try:
            return as_html(summary(self.analysis()))
        except TraceError as error:
            return as_html(str(error))

    def trace(self) -> Trace:
        """Return what was recorded so far; raises as ``analysis``."""
        return read_trace(str(self.folder))


def _remove(folder: Path, pid: int) -> None:
    if os.getpid() == pid:  # a forked child has a copy of the object
        shutil.rmtree(folder, ignore_errors=True)


def profile(
    loader: DataLoader[Any] | None = None, *, folder: _Folder = None, level: int = 1, warmup: int = 0
) -> Recording:
    """Record the loading of a part of a program: a context manager.

    It records the iterations that begin within the context, and the workers that they start. Workers that were started
    before (``persistent_workers``, or by a forkserver) are not recorded.

    Args:
        loader: the loader to record, torch's or fastload's; None: all loaders of this process.
        folder: a new or empty folder for the recording; None: a temporary one, which is removed with the recording
            that is returned.
        level: what to record. 1: waits, tasks and samples; 2: also the stages within samples.
        warmup: number of steps at the beginning that do not count.

    Returns:
        The recording, with ``folder``, ``analysis()`` (verdict, blame, bounds) and ``trace()``.

    Raises:
        ConfigError: an argument is out of its range. On entering: this process is already recorded, or the folder is
            not empty.

    Examples:
        ```python
        with fastload.profile(loader) as recorded:
            train_one_epoch(loader)
        print(recorded.analysis().ranks[0].verdict.sentence)
        ```
    """
    if loader is not None and not hasattr(loader, "num_workers"):
        raise ConfigError(
            f"loader must be a DataLoader, or None for all of this process, got a {type(loader).__name__}; for an "
            "object that wraps a DataLoader, pass the DataLoader"
        )
    if level not in (1, 2):
        raise ConfigError(f"level must be 1 or 2, got {level!r}")
    if not isinstance(warmup, int) or warmup < 0:
        raise ConfigError(f"warmup must be an integer of at least 0, got {warmup!r}")
    return Recording(loader, folder, level, warmup)
