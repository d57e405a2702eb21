"""All hooks of a process; ``sitecustomize.py`` installs them in each one of a profiled script.

Imports neither torch nor NumPy.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from ... import observe
from ...inject.fastload_hook import after_import
from ..recorder import Recorder
from .devices import CopyHooks
from .fastload_loader import FastloadListener
from .session import Session
from .stopping import StepLimit
from .torch_loader import TorchHooks


class Hooks:
    """All hooks of a process; each is installed as soon as its module is imported.

    Without a ``limit`` the script runs to its own end; ``only``: the loader to record, else all.
    """

    def __init__(self, recorder: Recorder, limit: StepLimit | None = None, only: Any = None) -> None:
        self._closed = False
        self._finders: list[object] = []
        self._recorder = recorder
        self._session = session = Session(recorder, only)
        self._patches = session.patches
        self._copies = CopyHooks(recorder, session.patches)
        limit = limit or StepLimit(None)
        limit.end_workers = session.end_workers
        torch = TorchHooks(session, limit, self._copies)
        observe.listener = FastloadListener(session)
        modules = {
            "torch": self._copies.patch_torch,
            "torch.utils.data._utils.worker": torch.patch_workers,
            "torch.utils.data._utils.pin_memory": torch.patch_pinning,
            "torch.utils.data.dataloader": torch.patch_iterators,
            "torchdata.stateful_dataloader.worker": torch.patch_workers,
            "torchdata.stateful_dataloader.stateful_dataloader": torch.patch_torchdata,
        }
        if session.stages is not None:
            session.stages.patch_open()
            modules |= session.stages.modules
        for name, action in modules.items():
            self._after(name, action)

    def _after(self, name: str, action: Any) -> None:
        guarded = self._patches.guarded(action)
        self._finders.append(after_import(name, lambda module: None if self._closed else guarded(module)))

    def close(self) -> None:
        """Restore everything."""
        self._closed = True
        self._recorder.note("ended", at=time.perf_counter_ns())
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder not in self._finders]
        self._copies.close()
        self._patches.restore()
        self._session.close()
        observe.listener = None


def start(wanted: str) -> None:
    """Install the hooks as the value of ``FASTLOAD_PROFILE`` wants it: see :func:`~..command.record_script`."""
    options: dict[str, Any] = json.loads(wanted)
    recorder = Recorder(options["folder"], options["level"], temporary=options.get("temporary", False))
    tells = os.environ.get("RANK", "0") == "0"  # one rank speaks for all: they are at the same step
    Hooks(recorder, StepLimit(options["stop_after"], tells=tells))
