"""``python -m benchmarks.gpu``, run on the CPU at tiny sizes; and how it reads a trace that only a GPU can give."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
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


@pytest.mark.slow
def test_a_device_that_is_not_there_is_an_error():
    import torch

    result = run("--device", f"cuda:{torch.cuda.device_count()}", "--quick", "step")
    assert result.returncode == 2
    assert "--device cpu" in result.stderr or "Invalid device" in result.stderr


@pytest.mark.slow
def test_a_side_that_fails_is_left_out_and_the_others_go_on_in_a_new_process():
    from benchmarks.gpu.catalogue import ALL
    from benchmarks.gpu.runner import Runner
    from benchmarks.runner import Measured
    from benchmarks.spec import Side

    case = next(case for case in ALL if case.name == "host-to-device")
    copy, prefetch, *_ = case.sides
    sides = (copy, Side(name="bad", package="fastload", options={"unknown": 1}), prefetch)
    asked: list[str] = []

    async def measure() -> Measured:
        found = Measured(measurements={side.name: [] for side in sides})
        async with Runner("cpu", asked.append) as runner:
            arguments = {**case.arguments, **case.tiny}
            await runner.measure(dataclasses.replace(case, sides=sides), arguments, 2, found)
        found.settle("no reason")
        return found

    found = asyncio.run(measure())
    assert {name: len(values) for name, values in found.measurements.items()} == {"plain copy": 2, "prefetch": 2}
    assert "unexpected keyword argument 'unknown'" in found.failed["bad"]
    # In the order ABBA, without those that are left out.
    assert [what.partition(": ")[2] for what in asked] == ["plain copy", "bad", "prefetch", "prefetch", "plain copy"]


@pytest.mark.slow
def test_a_run_whose_time_is_up_prints_what_it_has_and_leaves_no_process(tmp_path):
    file = tmp_path / "results.jsonl"
    result = run("--device", "cpu", "--limit", "3", "--repetitions", "100", "--json", str(file), "resident", "step")
    assert result.returncode == 0, result.stderr
    found = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["benchmark"] for line in found] == ["resident", "step"]
    assert found[1]["sides"] == {}
    assert all("time was up: 3 s" in reason for reason in found[1]["skipped"].values())
    assert "resident" in result.stdout
    assert "time was up" in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_somebody_ends_prints_what_it_has(number, tmp_path):
    file = tmp_path / "results.jsonl"
    arguments = ["--device", "cpu", "--quick", "--repetitions", "1000", "--json", str(file), "host-to-device"]
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.gpu", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:  # the sides before the last one have been measured once
            if "threads" in line:
                break
        process.send_signal(number)
        printed, _ = process.communicate(timeout=200)
    assert process.returncode == 128 + number
    assert "plain copy" in printed
    (found,) = [json.loads(line) for line in file.read_text().splitlines()]
    assert found["benchmark"] == "host-to-device"
    assert len({len(side["GB/s"]["values"]) for side in found["sides"].values()}) <= 1


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


def test_the_device_is_busy_while_anything_runs_on_it():
    from benchmarks.gpu.trace import waits_of

    events = [
        call("loop", 100.0, 100.0, "user_annotation"),
        call("before the loop", 50.0, 60.0, "kernel"),  # 10 of it within
        call("a kernel", 120.0, 30.0, "kernel"),
        call("beside it", 130.0, 30.0, "gpu_memcpy"),
        call("and within", 140.0, 5.0, "gpu_memset"),
        call("after the host's end", 190.0, 110.0, "kernel"),
        call("cudaLaunchKernel", 150.0, 400.0),
    ]
    waits = waits_of({"traceEvents": events}, "loop")
    assert (waits.device_us, waits.busy_us) == (200.0, 10.0 + 40.0 + 110.0)
    assert waits.percent_busy == 80.0
    assert waits_of({"traceEvents": events[:1]}, "loop").percent_busy == 0.0


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


# -- all.sh ------------------------------------------------------------------------------------------------------------

# In Python's place: what needs a device is simulated, and so is pytest. The verdict is the real one.
PYTHON = """\
#!/usr/bin/env bash
echo "$*" >> "$CALLS"
case "$*" in
    "setup.py "*) exit "$BUILD" ;;
    "-m benchmarks.gpu.machine "*) exit "$MACHINE" ;;
    "-m benchmarks.gpu "*)
        while [ "$1" != --json ]; do shift; done
        cp "$RESULTS" "$2"
        [ -z "$HANG" ] || { : > "$HANG"; exec sleep 1000; }
        exit "$BENCHMARKS" ;;
    "-c import "*) exit 0 ;;
    "-m pytest "*)
        report=$(grep -o "junitxml=[^ ]*" <<< "$*")
        [[ "$report" != *parallel.xml || "$DEVICE" = cpu ]] || { echo "$FAILED" > "${report#*=}"; exit 1; }
        echo "$PASSED" > "${report#*=}" ;;
    *) exec "$REAL" "$@" ;;
esac
"""
PASSED = '<testsuites><testsuite errors="0" failures="0" skipped="0" tests="1" time="0.1"/></testsuites>'
FAILED = """<testsuites><testsuite errors="0" failures="1" skipped="0" tests="2" time="0.1">
<testcase classname="gpu.test_gpu_transforms" name="test_fails"><failure/></testcase></testsuite></testsuites>"""


def ratio(ours: str, theirs: str, value: float, reached: bool | None) -> dict[str, Any]:
    return {"ours": ours, "theirs": theirs, "value": value, "low": value, "high": value, "reached": reached}


RESULTS: list[dict[str, Any]] = [
    {
        "benchmark": "host-to-device",
        "comparisons": [ratio("prefetch", "plain copy", 0.95, True), ratio("processes", "plain copy", 0.5, None)],
    },
    {
        "benchmark": "step",
        "comparisons": [ratio("resident", "one batch", 0.5, False)],
        "failed": {"workers": "Traceback\nRuntimeError: out of processes"},
    },
    {
        "benchmark": "host-blocked",
        "sides": {
            "resident": {"% blocked": {"median": 0.1, "first_quartile": 0.1, "third_quartile": 0.2, "reached": True}}
        },
        "skipped": {"workers": "time was up"},
    },
    {"benchmark": "resident", "comparisons": [ratio("fastload", "airbench", 0.5, None)]},
]
GOALS = [
    "goal  host-to-device: prefetch against plain copy | 0.95 (0.95 to 0.95), n=5 | goal >= 0.9 | met",
    "goal  step: resident against one batch | 0.5 (0.5 to 0.5), n=5 | goal >= 0.9901 | not met",
    "goal  step: workers against one batch | - | goal >= 0.9901 | "
    "not measured: workers: RuntimeError: out of processes",
    "goal  host-blocked: resident, % blocked | 0.1 (0.1 to 0.2), n=5 | goal <= 1 | met",
    "goal  host-blocked: workers, % blocked | - | goal <= 1 | not measured: workers: time was up",
]
WAYS: dict[str, dict[str, str]] = {
    "parts fail": {"BUILD": "1", "BENCHMARKS": "3"},
    "no device": {"MACHINE": "1"},
    "no time": {"LIMIT": "1"},
    "time over": {"HANG": "hanging"},
    "interrupted": {"HANG": "hanging"},
    "on the CPU": {"DEVICE": "cpu"},
    "tests alone": {"PARTS": "tests"},
    "benchmarks alone": {"PARTS": "benchmarks"},
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_run_of_all_parts_ends_with_a_line_for_each_part_of_the_tests_and_each_goal(way, tmp_path, monkeypatch):
    out, commands, tests = tmp_path / "out", tmp_path / "commands", tmp_path / "tests"
    for folder in (out, commands, tests):
        folder.mkdir()
    for name, text in {"python": PYTHON, "nvidia-smi": "#!/bin/sh\necho a simulated GPU\n"}.items():
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    for name in ("transforms", "device"):
        (tests / f"test_gpu_{name}.py").touch()
    empty: dict[str, Any] = {"n": 5, "comparisons": [], "sides": {}, "skipped": {}, "failed": {}}
    (tmp_path / "results").write_text("".join(json.dumps(empty | line) + "\n" for line in RESULTS))
    (out / "benchmarks.jsonl").write_bytes((tmp_path / "results").read_bytes())  # of an earlier run
    (out / "parallel.xml").write_text(PASSED)
    # Limits that no machine is so slow as to reach.
    usual = {"LIMIT": "3000", "GRACE": "150", "DEVICE": "cuda", "HANG": "", "BUILD": "0", "MACHINE": "0"}
    usual |= {"BENCHMARKS": "0", "COMMIT": "abc1234", "PASSED": PASSED, "FAILED": FAILED, "REAL": sys.executable}
    usual |= {"CALLS": str(tmp_path / "calls"), "RESULTS": str(tmp_path / "results"), "TESTS": str(tests)}
    usual |= {"OUT": str(out), "PYTHON": str(commands / "python"), "PATH": f"{commands}:{os.environ['PATH']}"}
    os.mkfifo(tmp_path / "hanging")
    cases = ["resident"] if way == "on the CPU" else ["host-to-device", "step", "host-blocked"]
    command = ["benchmarks/gpu/all.sh", *cases]
    environment = os.environ | usual | WAYS[way]
    if environment["HANG"]:
        environment["HANG"] = str(tmp_path / "hanging")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        if environment["HANG"]:
            (tmp_path / "hanging").read_bytes()  # until the benchmarks are there
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            programs = {Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0]: int(pid) for pid in children}
            if way == "time over":
                os.kill(programs[b"timeout"], signal.SIGALRM)  # as its own clock does
            else:
                process.send_signal(signal.SIGTERM)
        printed, _ = process.communicate(timeout=200)
    assert (out / "log.txt").read_text() == printed
    verdict = (out / "verdict.txt").read_text().splitlines()
    assert printed.splitlines()[-len(verdict) :] == verdict
    called = (tmp_path / "calls").read_text().splitlines()
    assert process.returncode == (0 if way == "on the CPU" else 1)
    if way == "benchmarks alone":
        assert verdict == GOALS
        assert not [line for line in called if line.startswith("-m pytest")]
        return
    parallel, serial, sanitizer, *goals = verdict
    if way == "tests alone":
        assert parallel.startswith("tests in parallel: 1 passed, 1 failed, 0 skipped")
        assert goals == []
        assert not [line for line in called if line.startswith("-m benchmarks.gpu --")]
        return
    if way in ("no device", "no time"):
        assert parallel.startswith("tests in parallel: no report")
        reason = "machine: ended with status 1" if way == "no device" else "benchmarks: not started: no time was left"
        assert len(goals) == len(GOALS)
        assert all("not measured: " in goal and goal.endswith(reason) for goal in goals)
        assert not [line for line in called if line.startswith("-m pytest")]
    elif way == "on the CPU":
        assert goals[-1].endswith("| 0.5 (0.5 to 0.5), n=5 | goal >= 1 | not judged: on the CPU")
        assert "tests under the sanitizer: not started: it needs a GPU" in printed
        assert [line for line in called if "--device cpu --quick" in line]
    else:
        assert parallel.startswith("tests in parallel: 1 passed, 1 failed, 0 skipped")
        assert "test_gpu_transforms::test_fails; ended with status 1" in parallel
        assert serial.startswith("tests one by one: 1 passed, 0 failed, 0 skipped")
        assert sanitizer.startswith("tests under the sanitizer: 1 passed, 0 failed, 0 skipped")
        assert goals == GOALS
        build, machine, *others = called
        assert build == "setup.py build_ext --inplace"
        assert machine == "-m benchmarks.gpu.machine --device cuda --commit abc1234"
        together, alone, sanitized = [line for line in others if line.startswith("-m pytest")]
        assert " -n " in together
        assert " -n " not in alone + sanitized
        assert "-k not caught_by" in sanitized
        ending = {"parts fail": "ended with status 3", "time over": "stopped: its "}.get(way, "ended with status ")
        assert f"== benchmarks: {ending}" in printed
        assert ("== build: ended with status 1" in printed) == (way == "parts fail")
        assert ("the script was interrupted" in printed) == (way == "interrupted")


def test_parts_that_there_are_not_are_an_error():
    result = subprocess.run(
        ["benchmarks/gpu/all.sh"], env=os.environ | {"PARTS": "test"}, capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert "PARTS must be tests, benchmarks or tests,benchmarks, got PARTS=test" in result.stderr


@pytest.mark.parametrize(
    ("low", "value", "high", "said"),
    [(0.91, 0.93, 0.95, "met"), (0.89, 0.93, 0.95, "undecided"), (0.85, 0.88, 0.91, "undecided"),
     (0.8, 0.85, 0.9, "not met"), (0.9, 0.92, 0.95, "met")],
)  # fmt: skip
def test_a_goal_within_the_interval_is_undecided(low, value, high, said, tmp_path):
    from benchmarks.gpu.catalogue import ALL
    from benchmarks.gpu.verdict import is_undecided, verdict

    found = ratio("prefetch", "plain copy", value, value >= 0.9) | {"low": low, "high": high}
    result = {
        "benchmark": "host-to-device", "n": 5, "comparisons": [found], "sides": {}, "skipped": {}, "failed": {},
    }  # fmt: skip
    (tmp_path / "benchmarks.jsonl").write_text(json.dumps(result) + "\n")
    lines, passed = verdict(tmp_path, ["host-to-device"], {}, ["benchmarks"])
    assert lines[0].endswith(f"| {value} ({low} to {high}), n=5 | goal >= 0.9 | {said}")
    assert passed == (said == "met")
    case = next(case for case in ALL if case.name == "host-to-device")
    assert is_undecided(case, result) == (said == "undecided")


def test_what_the_machine_lacks_is_said(monkeypatch, capsys):
    from benchmarks.gpu import machine

    monkeypatch.setattr(
        machine, "PACKAGES", {"no_such_module": ("no-such-package", "nothing"), "pytest": ("pytest", "")}
    )
    monkeypatch.setattr(sys, "argv", ["machine", "--device", "cpu", "--commit", "abc1234"])
    assert machine.main() == 0
    printed = capsys.readouterr().out
    assert "no-such-package: MISSING, needed for nothing" in printed
    assert f"pytest: {pytest.__version__}" in printed
    assert "native library: " in printed
    assert "commit abc1234" in printed
