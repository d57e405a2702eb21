"""The share of a training loop in which the device or its driver blocks the host, from a trace of torch's profiler.

Claim: below 1 %, whether the images lie on the device or come from workers.

The loop and its sides are those of ``step.py``. Counted are the calls that block: see ``trace.py``. A host that waits
because its queue of launches is full, or because the device is several batches behind, is not counted: it is far enough
ahead. "one batch" shows what the step itself
does. The profiler makes the loop slower, on the host; its time is part of the loop's.

"% busy" is the share of the same time in which the device had a kernel or a copy under way: a step that is bound by
launches shows there.

Meaningless if: the trace tells of no launches ("launches" in the JSON line), which is an error here.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.gpu.measuring import CannotMeasure, measuring
from benchmarks.gpu.step import warm_steps
from benchmarks.gpu.trace import waits_of
from benchmarks.spec import Measurement, Side

_LOOP = "loader and step"


@measuring
def loop(side: Side, *, num_steps: int, device: str, **arguments: Any) -> Measurement:
    if torch.device(device).type != "cuda":
        raise CannotMeasure(f"not applicable: with device={device} there are no CUDA calls in which to wait")
    work = warm_steps(side.name, num_steps, device=device, **arguments)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        with record_function(_LOOP):
            work()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "trace.json")
        profiled.export_chrome_trace(str(file))
        waits = waits_of(json.loads(file.read_text()), _LOOP)
    if not waits.num_launches:
        raise RuntimeError("the trace tells of no launches: the profiler did not see the device")
    return {
        "% blocked": waits.percent,
        "% busy": waits.percent_busy,
        "loop ms": waits.wall_us / 1e3,
        "statistics": {"calls that waited": waits.by_name, "launches": waits.num_launches},
    }
