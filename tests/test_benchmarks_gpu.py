"""``python -m benchmarks.gpu``, run on the CPU at tiny sizes; and how it reads a trace that only a GPU can give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    """From where the benchmarks can be imported, here and in the processes that they start."""
    monkeypatch.syspath_prepend(REPOSITORY)
    monkeypatch.chdir(REPOSITORY)


# -- Traces ------------------------------------------------------------------------------------------------------------


def call(
    name: str, start: float, duration: float, category: str = "cuda_runtime", correlation: int | None = None
) -> dict[str, Any]:
    args = {} if correlation is None else {"args": {"correlation": correlation}}
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": duration, "tid": 1, **args}


def launched(at: float, begin: float, duration: float, correlation: int) -> list[dict[str, Any]]:
    launch = call("cudaLaunchKernel", at, 1.0, correlation=correlation)
    return [launch, call("a kernel", begin, duration, "kernel", correlation)]


def test_calls_that_wait_within_the_loop_are_counted_and_no_others():
    from benchmarks.gpu.trace import waits_of

    events = [
        call("loop", 100.0, 1000.0, "user_annotation"),
        call("loop", 100.0, 5000.0, "gpu_user_annotation"),
        call("cudaStreamSynchronize", 90.0, 30.0),  # 20 of it within
        call("cudaFree", 130.0, 1.0),
        call("cuMemcpyHtoD_v2_ptds", 135.0, 1.0, "cuda_driver"),
        call("cudaHostRegister", 140.0, 1.0),
        call("cudaMallocAsync", 150.0, 9.0),
        call("cudaStreamSynchronize", 160.0, 9.0, "python_function"),  # a name, and no such call
        *launched(200.0, 210.0, 80.0, 1),
        *launched(205.0, 290.0, 100.0, 2),
        call("cudaEventSynchronize", 220.0, 70.0),  # for the first kernel, while the second is queued
        call("cudaEventSynchronize", 300.0, 92.0),  # for the second, behind which there is nothing
        call("cudaMemcpyAsync", 500.0, 5.0, correlation=7),
        call("Memcpy HtoD (Pageable -> Device)", 502.0, 2.0, "gpu_memcpy", correlation=7),
        call("cudaMemcpyAsync", 520.0, 3.0, correlation=8),
        call("Memcpy HtoD (Pinned -> Device)", 522.0, 50.0, "gpu_memcpy", correlation=8),
        call("cudaDeviceSynchronize", 1200.0, 50.0),  # the profiler's own end
        call("after the host's end", 1090.0, 110.0, "kernel", correlation=9),
        {"ph": "M", "name": "process_name", "ts": 0},
    ]
    waits = waits_of({"traceEvents": events}, "loop")
    blocking = {"cudaStreamSynchronize", "cudaFree", "cuMemcpyHtoD_v2_ptds", "cudaHostRegister", "cudaEventSynchronize"}
    assert waits.by_name == dict.fromkeys([*blocking, "cudaMemcpyAsync (pageable)"], 1)
    assert (waits.wall_us, waits.blocked_us, waits.num_launches) == (1000.0, 20.0 + 3.0 + 92.0 + 5.0, 2)
    assert (waits.device_us, waits.busy_us) == (1100.0, 180.0 + 2.0 + 50.0 + 110.0)
    with pytest.raises(ValueError, match="one record_function named 'other', got 0"):
        waits_of({"traceEvents": events}, "other")


def test_the_profiler_of_this_torch_writes_such_a_trace(tmp_path):
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    from benchmarks.gpu.trace import waits_of

    with profile(activities=[ProfilerActivity.CPU]) as profiled, record_function("loop"):
        torch.ones(100).sum()
    file = tmp_path / "trace.json"
    profiled.export_chrome_trace(str(file))
    waits = waits_of(json.loads(file.read_text()), "loop")
    assert waits.wall_us > 0
    assert (waits.blocked_us, waits.num_launches) == (0.0, 0)
