"""Called by ``sitecustomize.py`` in each process of a profiled script. Imports neither torch nor NumPy."""

from __future__ import annotations

import json
import os
from typing import Any

from ..recorder import Recorder
from .process import Hooks
from .stopping import StepLimit


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
    Hooks(recorder, limit)
