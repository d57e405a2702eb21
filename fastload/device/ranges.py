"""Names for parts of the training thread's time, in the traces of torch's profiler and of NVIDIA's Nsight Systems.

Where nobody records, a name costs 0.1 µs.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

import torch

from ..base.compat import profiler_enabled

_OFF: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
# A build without CUDA has no NVTX: nothing could read it.
_to_nvtx = os.environ.get("FASTLOAD_NVTX", "0") == "1" and hasattr(torch._C, "_nvtx")


def stage(name: str) -> contextlib.AbstractContextManager[Any]:
    """Return a context manager; what runs in it is shown under ``fastload.<name>`` in traces.

    Under torch's profiler it is ``record_function``. With ``FASTLOAD_NVTX=1`` in the environment when fastload is
    imported it is a range of NVTX otherwise.
    """
    if profiler_enabled():
        return torch.profiler.record_function(f"fastload.{name}")
    return torch.cuda.nvtx.range(f"fastload.{name}") if _to_nvtx else _OFF
