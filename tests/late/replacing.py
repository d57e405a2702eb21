"""What a worker process replaces of other packages: done here, and put back."""

from __future__ import annotations

import itertools
import sys
from importlib.util import find_spec
from typing import Any

from torchvision.transforms.v2.functional import _utils

import fastload.late
from fastload.base import overrides
from fastload.late import containers

TABLE = [
    one
    for module, one in overrides.table()
    if module in {*itertools.chain(*overrides.MODULES.values()), *overrides.OTHER_MODULES[:2]}
    and one.library != "torchcodec.decoders"
    and find_spec(one.package) is not None
]
"""The overrides that are installed in a worker process, or for Pillow's files."""
WATCHED = [one for one in TABLE if one.library not in ("cv2", "torchvision.io", "PIL.Image")]
_BEFORE = [one.found() for one in WATCHED]


def put_back() -> None:
    """Put back what was replaced, and let it be replaced again."""
    overrides.undo()
    for one in containers.OVERRIDES:
        one.undo()
    assert not replaced()
    containers._known.in_worker_process = False
    containers._known.modules.clear()


def forget(monkeypatch: Any) -> None:
    """Let what is known of functions be found anew, as in a process that has made no sample."""
    monkeypatch.setattr(containers, "_known", containers._Known())
    monkeypatch.setattr(containers, "_tables", {})
    of_files = {key: agrees for key, agrees in overrides.results.items() if "fastload.native" in key[0]}
    monkeypatch.setattr(overrides, "results", of_files)
    for kernels in _utils._KERNEL_REGISTRY.values():
        monkeypatch.delitem(kernels, containers.DeferredTensor, raising=False)
    monkeypatch.delitem(sys.modules, "fastload.late.kernels", raising=False)
    monkeypatch.delattr(fastload.late, "kernels", raising=False)


def replaced() -> set[str]:
    return {one.path for one, before in zip(WATCHED, _BEFORE, strict=True) if one.found() is not before}
