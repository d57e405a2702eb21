"""Called by ``sitecustomize.py`` in each process of a profiled script. Imports neither torch nor NumPy."""

from __future__ import annotations

import atexit
import json
import os
from typing import Any

from ...inject.fastload_hook import after_import
from ..recorder import Recorder
from .process import Hooks
from .rerun import VARIABLE, ArgumentChange
from .stopping import StepLimit
from .trial_runs import TrialRuns


def start(wanted: str) -> None:
    """Install the hooks as the value of ``FASTLOAD_PROFILE`` wants it: see :func:`~..command.record_script`."""
    options: dict[str, Any] = json.loads(wanted)
    recorder = Recorder(options["folder"], options["level"], temporary=options.get("temporary", False))
    limit = StepLimit(
        options["stop_after"],
        cached=options.get("cached", 0),
        again=options.get("again", 0),
        tells=os.environ.get("RANK", "0") == "0",  # one rank speaks for all: they are at the same step
    )
    hooks = Hooks(recorder, limit)
    trials = TrialRuns(hooks.live_loaders, recorder.note, hooks.close, with_stages=recorder.level < 2)
    limit.at_end = trials.run
    atexit.register(trials.run)
    if (wanted_change := os.environ.get(VARIABLE)) is not None:
        change = ArgumentChange(wanted_change)
        after_import("torch.utils.data.dataloader", change.patch)
        after_import("fastload.loader", change.patch)
