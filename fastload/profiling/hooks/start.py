"""What ``sitecustomize.py`` calls in each process of a script that is profiled. Imports neither torch nor NumPy."""

from __future__ import annotations

import atexit
import json
import os
import sys
from typing import Any

from ... import observe
from ...inject.fastload_hook import after_import
from ..recorder import Recorder
from .cold import Cold
from .devices import Copies
from .fastload_loader import FastloadLoader
from .fetching import Fetching
from .iterators import Iterators, Nesting
from .patching import Places
from .rerun import VARIABLE, Changing
from .stages import Stages
from .stopping import Stopping
from .torch_loader import Pinning, Tasks, TorchLoader
from .training_loop import MainThread, Waits
from .trials import Trying


class Hooks:
    """All hooks of a process: each is put in as soon as its module is imported.

    Args:
        recorder: where records go.
        stopping: ends the script after its steps; None: it runs to its own end.
        only: hear this loader alone; None: all.
        cold: take files out of the page cache before they are opened.
    """

    def __init__(
        self, recorder: Recorder, stopping: Stopping | None = None, only: Any = None, *, cold: bool = False
    ) -> None:
        self._places = Places(recorder)
        self._closed = False
        self._waiting: list[object] = []
        stages = Stages(recorder, self._places) if recorder.level == 2 else None
        nesting, iterators = Nesting(), Iterators(recorder, only)
        self.trying = Trying(iterators.living, recorder.note, self.close)
        if cold:
            Cold(recorder, nesting)
        fetching = Fetching(recorder, nesting, stages)
        self._loop = MainThread(recorder, fetching)
        self._copies = Copies(recorder, self._places)
        stopping = stopping or Stopping(None)
        stopping.end_workers = iterators.end_workers
        waits = Waits(recorder, iterators, nesting, self._loop, stopping, self._copies)
        tasks = Tasks(recorder, iterators, nesting, fetching)
        loader = TorchLoader(self._places, waits, tasks, Pinning(recorder, iterators, nesting))
        observe.listener = FastloadLoader(recorder, fetching, iterators, waits)
        self._after("torch", self._copies.hook_torch)
        self._after("torch.utils.data._utils.worker", loader.hook_worker)
        self._after("torch.utils.data._utils.pin_memory", loader.hook_pinning)
        self._after("torch.utils.data.dataloader", loader.hook_main)
        self._after("torchdata.stateful_dataloader.worker", loader.hook_worker)
        self._after("torchdata.stateful_dataloader.stateful_dataloader", loader.hook_torchdata)
        if stages is not None:
            stages.hook_builtins()
            self._after("PIL.Image", stages.hook_pil)
            self._after("PIL.ImageFile", stages.hook_pil_file)
            self._after("fastload.late.source", stages.hook_late)
            self._after("torchvision.io.image", stages.hook_torchvision_io)
            self._after("cv2", stages.hook_cv2)
            self._after("torchvision.transforms.transforms", stages.hook_compose)
            self._after("torchvision.transforms.v2._container", stages.hook_compose)

    def _after(self, name: str, action: Any) -> None:
        guarded = self._places.guarded(action)
        self._waiting.append(after_import(name, lambda module: None if self._closed else guarded(module)))

    def close(self) -> None:
        """Put everything back."""
        self._closed = True
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder not in self._waiting]
        self._copies.close()
        self._places.restore()
        self._loop.close()
        observe.listener = None


def start(wanted: str) -> None:
    """Have everything heard as soon as its module is imported.

    Args:
        wanted: what ``fastload profile`` has put into the environment, as JSON: ``folder``, ``level``,
            ``stop_after``, ``cold``, ``cached``, ``again`` (see :class:`~.stopping.Stopping`).
    """
    options: dict[str, Any] = json.loads(wanted)
    recorder = Recorder(options["folder"], options["level"])
    stopping = Stopping(options["stop_after"], cached=options.get("cached", 0), again=options.get("again", 0))
    hooks = Hooks(recorder, stopping, cold=options.get("cold", False))
    stopping.at_end = hooks.trying.run
    atexit.register(hooks.trying.run)
    if (change := os.environ.get(VARIABLE)) is not None:
        changing = Changing(change, recorder)
        after_import("torch.utils.data.dataloader", changing.hook)
        after_import("fastload.loader", changing.hook)


__all__ = ["Hooks", "start"]
