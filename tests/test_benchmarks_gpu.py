"""``python -m benchmarks.gpu``, run on the CPU at tiny sizes; and how it reads a trace that only a GPU can give."""

from __future__ import annotations

import json
import os
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


@pytest.mark.slow
def test_all_cases_run_on_the_cpu_where_no_goal_is_judged(tmp_path):
    from benchmarks.gpu.catalogue import ALL

    file = tmp_path / "results.jsonl"
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--repetitions", "1", "--commit", "abc"]
    result = subprocess.run([*command, "--json", str(file)], capture_output=True, text=True, timeout=220, check=False)
    assert result.returncode == 0, result.stderr
    found = [json.loads(line) for line in file.read_text().splitlines()]
    for line, case in zip(found, ALL, strict=True):
        assert (line["case"], line["commit"], line["hardware"]["device"]) == (case.name, "abc", "cpu")
        assert {*line["sides"], *line["skipped"]} == {side.name for side in case.sides}
        assert all(goal["met"].startswith(("not judged", "not measured")) for goal in line["goals"])


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


# -- all.sh ------------------------------------------------------------------------------------------------------------

# In Python's place: what needs a device is simulated, and so is pytest. The verdict is the real one.
PYTHON = """\
#!/usr/bin/env bash
echo "$*" >> "$CALLS"
case "$*" in
    "setup.py "*) exit 1 ;;
    "-m benchmarks.gpu.machine "*) exit 0 ;;
    "-m benchmarks.gpu "*)
        while [ "$1" != --json ]; do shift; done
        cp "$RESULTS" "$2"
        exec sleep 1000 ;;
    "-c import "*) exit 0 ;;
    "-m pytest "*)
        report=$(grep -o "junitxml=[^ ]*" <<< "$*")
        [[ "$report" != *parallel.xml ]] || { echo "$FAILED" > "${report#*=}"; exit 1; }
        echo "$PASSED" > "${report#*=}" ;;
    *) exec "$REAL" "$@" ;;
esac
"""
PASSED = '<testsuites><testsuite errors="0" failures="0" skipped="0" tests="1" time="0.1"/></testsuites>'
FAILED = """<testsuites><testsuite errors="0" failures="1" skipped="0" tests="2" time="0.1">
<testcase classname="gpu.test_gpu_transforms" name="test_fails"><failure/></testcase></testsuite></testsuites>"""


def goal(what: str, found: str, words: str, met: str) -> dict[str, str]:
    return {"what": what, "found": found, "words": words, "met": met}


RESULTS: list[dict[str, Any]] = [
    {"case": "host-to-device", "goals": [goal("prefetch against plain copy, GB/s", "0.95", ">= 0.9", "met")]},
    {
        "case": "step",
        "goals": [
            goal("resident against one batch, ms/step", "0.5", ">= 0.9901", "not met"),
            goal("workers against one batch, ms/step", "-", ">= 0.9901", "not measured: workers: no processes"),
        ],
    },
]
GOALS = [
    "goal  host-to-device: prefetch against plain copy, GB/s | 0.95 | goal >= 0.9 | met",
    "goal  resident: not measured: benchmarks: stopped: its ",
    "goal  step: resident against one batch, ms/step | 0.5 | goal >= 0.9901 | not met",
    "goal  step: workers against one batch, ms/step | - | goal >= 0.9901 | not measured: workers: no processes",
]


@pytest.mark.slow
def test_a_run_of_all_parts_ends_with_a_line_for_each_part_of_the_tests_and_each_goal(tmp_path):
    out, python, tests = tmp_path / "out", tmp_path / "python", tmp_path / "tests"
    for folder in (out, tests):
        folder.mkdir()
    python.write_text(PYTHON)
    python.chmod(0o755)
    for name in ("transforms", "device"):
        (tests / f"test_gpu_{name}.py").touch()
    (tmp_path / "results").write_text("".join(json.dumps(line) + "\n" for line in RESULTS))
    environment = {"LIMIT": "30", "DEVICE": "cuda", "COMMIT": "abc1234", "REAL": sys.executable}
    environment |= {
        "PASSED": PASSED,
        "FAILED": FAILED,
        "CALLS": str(tmp_path / "calls"),
        "RESULTS": str(tmp_path / "results"),
        "TESTS": str(tests),
    }
    environment |= {"OUT": str(out), "PYTHON": str(python)}
    command = ["benchmarks/gpu/all.sh", "host-to-device", "resident", "step"]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | environment, timeout=200, check=False
    )
    assert done.returncode == 1
    assert (out / "log.txt").read_text() == done.stdout
    parallel, serial, sanitizer, *goals = (out / "verdict.txt").read_text().splitlines()
    pytests = [line for line in (tmp_path / "calls").read_text().splitlines() if line.startswith("-m pytest")]
    assert "== build: ended with status 1" in done.stdout, "which does not stop the others"
    assert parallel.startswith("tests in parallel: 1 passed, 1 failed, 0 skipped")
    assert "test_gpu_transforms::test_fails; ended with status 1" in parallel
    assert serial.startswith("tests one by one: 1 passed, 0 failed, 0 skipped")
    assert sanitizer.startswith("tests under the sanitizer: 1 passed, 0 failed, 0 skipped")
    assert len(goals) == len(GOALS)
    assert all(line.startswith(words) for line, words in zip(goals, GOALS, strict=True)), goals
    assert [" -n " in line for line in pytests] == [True, False, False]
    assert "== benchmarks: stopped: its " in done.stdout
