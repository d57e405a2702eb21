"""``python -m benchmarks.gpu``, run on the CPU at tiny sizes; and how it reads a trace that only a GPU can give."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    """From where the benchmarks can be imported, here and in the processes that they start."""
    monkeypatch.syspath_prepend(REPOSITORY)
    monkeypatch.chdir(REPOSITORY)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *arguments], capture_output=True, text=True, timeout=200, check=False
    )


@pytest.mark.slow
def test_all_cases_run_on_the_cpu_and_leave_json_rows_and_a_table(tmp_path):
    from benchmarks.figures.rows import read_file
    from benchmarks.gpu.catalogue import ALL

    file, rows_file = tmp_path / "results.jsonl", tmp_path / "gpu.csv"
    files = ["--json", str(file), "--rows", str(rows_file)]
    result = run("--device", "cpu", "--quick", "--repetitions", "2", "--commit", "abc", *files)
    assert result.returncode == 0, result.stderr
    found = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["benchmark"] for line in found] == [case.name for case in ALL]
    for line, case in zip(found, ALL, strict=True):
        assert line["commit"] == "abc"
        assert line["hardware"]["device"] == "cpu"
        assert {"python", "torch", "torchvision"} <= line["versions"].keys()
        assert line["failed"] == {}
        assert {*line["sides"], *line["skipped"]} == {side.name for side in case.sides}
        for metrics in line["sides"].values():
            assert line["n"] == 2
            assert list(metrics) == [metric.name for metric in case.metrics]
            for numbers in metrics.values():
                assert len(numbers["values"]) == 2
                assert min(numbers["values"]) > 0
                assert numbers["first_quartile"] <= numbers["median"] <= numbers["third_quartile"]
        measured = line["sides"].keys()
        expected = [one for one in case.comparisons if {one.ours, one.theirs} <= measured]
        assert [(one["ours"], one["theirs"]) for one in line["comparisons"]] == [
            (one.ours, one.theirs) for one in expected
        ]
        # On the CPU no goal is judged.
        assert {one["reached"] for one in line["comparisons"]} <= {None}
        assert case.name in result.stdout
    blocked = next(line for line in found if line["benchmark"] == "host-blocked")
    assert blocked["n"] == 0
    assert all("not applicable" in reason for reason in blocked["skipped"].values())
    rows = read_file(rows_file)
    assert len(rows) == sum(len(line["comparisons"]) + sum(map(len, line["sides"].values())) for line in found)
    assert {(row.n, row.commit, row.date) for row in rows} == {(2, "abc", found[0]["date"])}
    ratios = {(row.case, row.ratio_of): row.ratio for row in rows if row.ratio is not None}
    expected = {
        (line["benchmark"], f"{one['ours']} / {one['theirs']}"): one["value"]
        for line in found
        for one in line["comparisons"]
    }
    assert ratios == pytest.approx(expected, rel=1e-5)


def test_ratios_are_in_fastloads_favour_above_one():
    from benchmarks.gpu.catalogue import ALL
    from benchmarks.outcome import Outcome
    from benchmarks.runner import Measured

    case = next(case for case in ALL if case.name == "step")
    values: Any = {"one batch": [{"ms/step": 4.0}], "workers": [{"ms/step": 5.0}], "resident": [{"ms/step": 4.0}]}
    outcome = Outcome(
        case=case, measured=Measured(measurements=values), arguments={}, hardware={"device": "cuda"},
        cores_used_by_others=0.0,
    )  # fmt: skip
    found = {one.ours: (ratio.value, outcome.reached(one, ratio)) for one, ratio in outcome.comparisons()}
    assert found == {"workers": (0.8, False), "resident": (1.0, True)}


def test_what_was_measured_when_time_is_up_is_settled_in_whole_rounds():
    from benchmarks.runner import Measured

    found = Measured(
        measurements={"a": [{"x": 1}, {"x": 2}], "b": [{"x": 3}], "c": [], "d": [{"x": 4}, {"x": 5}], "e": []},
        failed={"d": "broken"},
        skipped={"e": "not here"},
    )
    for _ in range(2):
        found.settle("time was up")
        assert found.measurements == {"a": [{"x": 1}], "b": [{"x": 3}]}
        assert found.skipped == {"c": "time was up", "e": "not here"}
        assert found.failed == {"d": "broken"}


def call(
    name: str, start: float, duration: float, category: str = "cuda_runtime", correlation: int | None = None
) -> dict[str, Any]:
    args = {} if correlation is None else {"args": {"correlation": correlation}}
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": duration, "tid": 1, **args}


def test_waiting_is_what_lies_within_the_loop():
    from benchmarks.gpu.trace import waits_of

    events = [
        call("loop", 100.0, 1000.0, "user_annotation"),
        call("loop", 100.0, 5000.0, "gpu_user_annotation"),
        call("cudaDeviceSynchronize", 10.0, 50.0),  # before it
        call("cudaStreamSynchronize", 90.0, 30.0),  # 20 of it within
        call("cudaLaunchKernel", 200.0, 400.0),
        call("cudaMemcpyAsync", 300.0, 100.0),
        call("cudaEventSynchronize", 500.0, 5.0),
        call("cuStreamSynchronize", 600.0, 7.0, "cuda_driver"),
        call("cudaStreamSynchronize", 700.0, 9.0, "python_function"),  # a name, and no such call
        call("cudaDeviceSynchronize", 1095.0, 50.0),  # 5 of it within
        call("cudaDeviceSynchronize", 1200.0, 50.0),  # the profiler's own end
        {"ph": "M", "name": "process_name", "ts": 0},
    ]
    waits = waits_of({"traceEvents": events}, "loop")
    assert (waits.wall_us, waits.blocked_us, waits.num_launches) == (1000.0, 37.0, 1)
    assert waits.percent == pytest.approx(3.7)
    assert sum(waits.by_name.values()) == 4
    with pytest.raises(ValueError, match="one record_function named 'other', got 0"):
        waits_of({"traceEvents": events}, "other")


BLOCKING = """
    cudaHostRegister cudaHostUnregister cudaHostAlloc cudaMallocHost cudaFreeHost cudaMalloc cudaFree cudaMemcpy
    cudaMemcpy2D cuMemHostRegister_v2 cuMemHostUnregister cuMemAlloc_v2 cuMemFree_v2 cuMemcpyDtoH_v2 cuMemcpyHtoD_v2
    cuMemcpyHtoD_v2_ptds cuMemMap cuMemUnmap cuCtxSynchronize cudaEventSynchronize cudaStreamSynchronize_ptsz
""".split()  # noqa: SIM905  (as a list it would be a page)
NOT_BLOCKING = """
    cudaMallocAsync cudaFreeAsync cudaMemcpyAsync cudaMemcpy2DAsync cuMemcpyHtoDAsync_v2 cudaMemsetAsync cudaEventQuery
    cudaHostGetDevicePointer cudaStreamWaitEvent cudaEventRecord cudaLaunchKernel cudaFuncGetAttributes
    cuMemAllocAsync cuMemFreeAsync cudaStreamIsCapturing cudaHostGetFlags
""".split()  # noqa: SIM905  (as a list it would be a page)


def test_allocating_and_page_locking_block_and_what_is_asynchronous_does_not():
    from benchmarks.gpu.trace import waits_of

    calls = [call(name, 10.0 * place, 1.0) for place, name in enumerate([*BLOCKING, *NOT_BLOCKING])]
    waits = waits_of({"traceEvents": [call("loop", 0.0, 1000.0, "user_annotation"), *calls]}, "loop")
    assert waits.by_name == dict.fromkeys(BLOCKING, 1)
    assert waits.blocked_us == len(BLOCKING)


def test_an_asynchronous_copy_of_pageable_memory_blocks():
    from benchmarks.gpu.trace import waits_of

    events = [
        call("loop", 0.0, 100.0, "user_annotation"),
        call("cudaMemcpyAsync", 10.0, 5.0, correlation=7),
        call("Memcpy HtoD (Pageable -> Device)", 12.0, 2.0, "gpu_memcpy", correlation=7),
        call("cudaMemcpyAsync", 20.0, 3.0, correlation=8),
        call("Memcpy HtoD (Pinned -> Device)", 22.0, 50.0, "gpu_memcpy", correlation=8),
        call("cudaMemcpyAsync", 30.0, 3.0),
        call("cudaLaunchKernel", 40.0, 3.0, correlation=9),
    ]
    waits = waits_of({"traceEvents": events}, "loop")
    assert (waits.blocked_us, waits.by_name) == (5.0, {"cudaMemcpyAsync (pageable)": 1})


def test_waiting_for_an_event_counts_only_if_the_device_has_nothing_else_to_do():
    from benchmarks.gpu.trace import waits_of

    def launched(at: float, begin: float, duration: float, correlation: int) -> list[dict[str, Any]]:
        launch = call("cudaLaunchKernel", at, 1.0, correlation=correlation)
        return [launch, call("a kernel", begin, duration, "kernel", correlation)]

    events = [
        call("loop", 0.0, 1000.0, "user_annotation"),
        *launched(10.0, 20.0, 80.0, 1),
        *launched(15.0, 100.0, 100.0, 2),
        call("cudaEventSynchronize", 30.0, 70.0),  # for the first kernel, while the second is queued
        call("cudaEventSynchronize", 110.0, 92.0),  # for the second, behind which there is nothing
        *launched(300.0, 310.0, 100.0, 3),
        call("cudaEventSynchronize", 295.0, 7.0),  # launched after the wait began, by another thread
        call("cudaStreamSynchronize", 320.0, 5.0),  # for all there is
    ]
    waits = waits_of({"traceEvents": events}, "loop")
    assert waits.by_name == {"cudaEventSynchronize": 2, "cudaStreamSynchronize": 1}
    assert waits.blocked_us == 92.0 + 7.0 + 5.0


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
