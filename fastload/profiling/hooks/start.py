"""What ``sitecustomize.py`` calls in each process of a script that is profiled. Imports neither torch nor NumPy."""

from __future__ import annotations

import json
from typing import Any

from ...inject.fastload_hook import after_import
from ..recorder import Recorder
from .fetching import Fetching
from .stopping import Stopping
from .torch_loader import TorchLoader


def start(wanted: str) -> None:
    """Have everything heard as soon as its module is imported.

    Args:
        wanted: what ``fastload profile`` has put into the environment, as JSON: ``folder``, ``level``, ``stop_after``.
    """
    options: dict[str, Any] = json.loads(wanted)
    recorder = Recorder(options["folder"], options["level"])
    loader = TorchLoader(recorder, Fetching(recorder), Stopping(options["stop_after"]))
    after_import("torch.utils.data._utils.worker", loader.hook_worker)
    after_import("torch.utils.data._utils.pin_memory", loader.hook_pinning)
    after_import("torch.utils.data.dataloader", loader.hook_main)


__all__ = ["start"]
