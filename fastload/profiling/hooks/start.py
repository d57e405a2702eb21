"""What ``sitecustomize.py`` calls in each process of a script that is profiled. Imports neither torch nor NumPy."""

from __future__ import annotations

import json
import os
from typing import Any

from ... import observe
from ...inject.fastload_hook import after_import
from ..recorder import Recorder
from .changing import VARIABLE, Changing
from .fastload_loader import FastloadLoader
from .fetching import Fetching
from .main_thread import MainThread
from .stages import Stages
from .stopping import Stopping
from .torch_loader import TorchLoader


def start(wanted: str) -> None:
    """Have everything heard as soon as its module is imported.

    Args:
        wanted: what ``fastload profile`` has put into the environment, as JSON: ``folder``, ``level``, ``stop_after``.
    """
    options: dict[str, Any] = json.loads(wanted)
    recorder = Recorder(options["folder"], options["level"])
    stages = Stages(recorder) if recorder.level == 2 else None
    fetching = Fetching(recorder, stages)
    loader = TorchLoader(recorder, fetching, Stopping(options["stop_after"]), MainThread(recorder, fetching))
    observe.listener = FastloadLoader(recorder, fetching, loader)
    after_import("torch.utils.data._utils.worker", loader.hook_worker)
    after_import("torch.utils.data._utils.pin_memory", loader.hook_pinning)
    after_import("torch.utils.data.dataloader", loader.hook_main)
    if stages is not None:
        stages.hook_builtins()
        after_import("PIL.Image", stages.hook_pil)
        after_import("PIL.ImageFile", stages.hook_pil_file)
        after_import("torchvision.io.image", stages.hook_torchvision_io)
        after_import("cv2", stages.hook_cv2)
        after_import("torchvision.transforms.transforms", stages.hook_compose)
        after_import("torchvision.transforms.v2._container", stages.hook_compose)
    if (change := os.environ.get(VARIABLE)) is not None:
        changing = Changing(change, recorder)
        after_import("torch.utils.data.dataloader", changing.hook)
        after_import("fastload.loader", changing.hook)


__all__ = ["start"]
