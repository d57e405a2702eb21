"""``benchmarks/gpu/all.sh`` with a simulated device: every part, each way it can end, and the verdict."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[1]
SCRIPT = REPOSITORY / "benchmarks/gpu/all.sh"

# In Python's place: what needs a device is simulated, and so is pytest, which takes seconds to start, unless its report
# is the one that $REAL_PYTEST names. The verdict is the real one.
PYTHON = """\
#!/usr/bin/env bash
echo "$*" >> "$CALLS"
case "$*" in
    "setup.py "*) echo "building without JPEG decoding"; exit "${BUILD:-0}" ;;
    "-m benchmarks.gpu.machine "*) echo "one simulated device"; exit "${MACHINE:-0}" ;;
    "-m benchmarks.gpu "*)
        while [ "$1" != --json ]; do shift; done
        cp "$RESULTS" "$2"
        echo "the table"
        [ -z "${LEAVE:-}" ] || { setsid sleep 1000 & echo $! > "$LEAVE"; }
        [ -z "${HANG:-}" ] || { : > "$HANG"; exec sleep 1000; }
        exit "${BENCHMARKS:-0}" ;;
    "-c import "*) exit 0 ;;
    "-m pytest "*)
        report=$(grep -o "junitxml=[^ ]*" <<< "$*")
        [[ "$report" == *"$REAL_PYTEST"* ]] && exec "$REAL" "$@"
        echo "$PASSED" > "${report#*=}" ;;
    *) exec "$REAL" "$@" ;;
esac
"""
PASSED = '<testsuites><testsuite errors="0" failures="0" skipped="0" tests="1" time="0.1"/></testsuites>'

PASSING = "def test_passes():\n    pass\n"
FAILING = "def test_fails():\n    assert 1 == 2, 'as it should'\n"

# Both write to a pipe, and so wait for its reader: a test that hangs, and what runs with the tests once one has failed.
HANGING = """
import time

def test_hangs():
    open({begun!r}, "w").close()
    time.sleep(1000)
"""

# The limits of the script are such that no machine is so slow as to reach them: tests say when a part's time is over.
LIMIT_S, GRACE_S = 3000, 150
LONG_S = 200
"""How long a script may take before a test gives up."""


def result(name: str, **changed: Any) -> dict[str, Any]:
    """A line of benchmarks.jsonl."""
    return {"benchmark": name, "n": 5, "comparisons": [], "sides": {}, "skipped": {}, "failed": {}, **changed}


def ratio(ours: str, theirs: str, value: float, reached: bool | None) -> dict[str, Any]:
    return {"ours": ours, "theirs": theirs, "value": value, "low": value, "high": value, "reached": reached}


RESULTS = [
    result(
        "host-to-device",
        comparisons=[ratio("prefetch", "plain copy", 0.95, True), ratio("processes", "plain copy", 0.5, False)],
        failed={"threads": "Traceback\nRuntimeError: out of threads"},
    ),
    result(
        "host-blocked",
        sides={
            "resident": {"% blocked": {"median": 0.1, "first_quartile": 0.1, "third_quartile": 0.2, "reached": True}}
        },
        skipped={"workers": "time was up"},
    ),
]


class Run:
    """The script in a folder of its own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.out = folder / "out"
        self.tests = folder / "tests"
        self.calls = folder / "calls"
        self.tests.mkdir()
        commands = folder / "commands"
        commands.mkdir()
        for name, text in {"python": PYTHON, "nvidia-smi": "#!/bin/sh\necho a simulated GPU\n"}.items():
            (commands / name).write_text(text)
            (commands / name).chmod(0o755)
        results = folder / "results"
        results.write_text("".join(json.dumps(line) + "\n" for line in RESULTS))
        for name, value in {
            "PATH": f"{commands}:{os.environ['PATH']}",
            "PYTHON": commands / "python",
            "REAL": sys.executable,
            "RESULTS": results,
            "CALLS": self.calls,
            "OUT": self.out,
            "TESTS": self.tests,
            "COMMIT": "abc1234",
            "LIMIT": LIMIT_S,
            "GRACE": GRACE_S,
            "PASSED": PASSED,
            "REAL_PYTEST": "none",
        }.items():
            monkeypatch.setenv(name, str(value))
        for name in ("parallel", "serial"):
            self.write(name, PASSING)

    def write(self, part: str, text: str) -> None:
        name = {"parallel": "test_gpu_transforms.py", "serial": "test_gpu_device.py"}[part]
        (self.tests / name).write_text(text)

    @contextmanager
    def start(self, *cases: str) -> Iterator[subprocess.Popen[str]]:
        command = [SCRIPT, *(cases or ("host-to-device", "host-blocked"))]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                yield process
            except BaseException:
                process.terminate()  # or this would wait for its end
                raise

    def __call__(self, *cases: str) -> tuple[int, list[str]]:
        """Return the status, and the lines behind the beginning of the verdict."""
        with self.start(*cases) as process:
            return self.ending(process)

    def ending(self, process: subprocess.Popen[str]) -> tuple[int, list[str]]:
        """Return the same of a script that was started."""
        self.printed, self.complaints = process.communicate(timeout=LONG_S)
        log = (self.out / "log.txt").read_text()
        assert log == self.printed
        lines = self.printed.splitlines()
        begin = next(number for number, line in enumerate(lines) if line.startswith("== verdict"))
        verdict = lines[begin + 1 :]
        assert (self.out / "verdict.txt").read_text().splitlines() == verdict
        return process.returncode, verdict

    def called(self) -> list[str]:
        return self.calls.read_text().splitlines()


def pipe(path: Path) -> Path:
    """Make a pipe that has a name: reading it waits for one who opens it to write."""
    os.mkfifo(path)
    return path


def end_part(process: subprocess.Popen[str], grace: int = GRACE_S) -> int:
    """Let the time of the part that runs be over, and return how many seconds it had."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    commands = {int(pid): Path(f"/proc/{pid}/cmdline").read_text().split("\0") for pid in children}
    ((pid, words),) = ((pid, words) for pid, words in commands.items() if words[0] == "timeout")
    assert words[1:3] == ["--signal=INT", f"--kill-after={grace}"]
    os.kill(pid, signal.SIGALRM)  # as timeout's own clock does
    return int(words[3])


@pytest.fixture
def script(tmp_path, monkeypatch):
    return Run(tmp_path, monkeypatch)


GOALS = [
    "goal  host-to-device: prefetch against plain copy | 0.95 (0.95 to 0.95), n=5 | goal >= 0.9 | met",
    "goal  host-to-device: processes against plain copy | 0.5 (0.5 to 0.5), n=5 | goal >= 0.9 | not met",
    "goal  host-to-device: threads against plain copy | - | goal >= 0.9 | "
    "not measured: threads: RuntimeError: out of threads",
    "goal  host-blocked: resident, % blocked | 0.1 (0.1 to 0.2), n=5 | goal <= 1 | met",
    "goal  host-blocked: workers, % blocked | - | goal <= 1 | not measured: workers: time was up",
]


@pytest.mark.slow
def test_a_run_ends_with_a_line_for_each_part_of_the_tests_and_each_goal(script, monkeypatch):
    monkeypatch.setenv("REAL_PYTEST", ".xml")
    script.write("parallel", PASSING + FAILING)
    status, verdict = script()
    assert status == 1  # a test failed, and so did goals
    parallel, serial, sanitizer, *goals = verdict
    assert parallel.startswith("tests in parallel: 1 passed, 1 failed, 0 skipped")
    assert "test_gpu_transforms::test_fails; ended with status 1" in parallel
    assert serial.startswith("tests one by one: 1 passed, 0 failed, 0 skipped")
    assert sanitizer.startswith("tests under the sanitizer: 1 passed, 0 failed, 0 skipped")
    assert goals == GOALS
    assert "building without JPEG decoding" in script.printed
    assert "a simulated GPU" in script.printed
    assert "AssertionError: as it should" in script.printed
    assert "the table" in script.printed
    # What comes back from a machine that is lent: few files, and all of them.
    names = {"log.txt", "verdict.txt", "parallel.xml", "serial.xml", "sanitizer.xml", "benchmarks.jsonl"}
    assert {file.name for file in script.out.iterdir()} == names


@pytest.mark.slow
def test_a_failed_build_and_failed_benchmarks_stop_nothing(script, monkeypatch):
    monkeypatch.setenv("BUILD", "1")
    monkeypatch.setenv("BENCHMARKS", "3")
    status, verdict = script()
    assert status == 1
    assert verdict[3:] == GOALS
    assert "== build: ended with status 1" in script.printed
    assert "== benchmarks: ended with status 3" in script.printed


@pytest.mark.slow
def test_without_a_device_nothing_is_tested_or_measured_and_the_verdict_says_so(script, monkeypatch):
    monkeypatch.setenv("MACHINE", "1")
    status, verdict = script()
    assert status == 1
    assert verdict[0] == "tests in parallel: no report"
    assert {line.rpartition(" | ")[2] for line in verdict[3:]} == {"not measured: machine: ended with status 1"}
    assert not any("-m pytest" in line for line in script.called())


@pytest.mark.slow
def test_benchmarks_that_hang_are_ended_and_what_they_had_is_judged(script, monkeypatch, tmp_path):
    begun = pipe(tmp_path / "begun")
    monkeypatch.setenv("HANG", str(begun))
    with script.start() as process:
        begun.read_bytes()
        seconds = end_part(process)
        status, verdict = script.ending(process)
    assert status == 1
    assert f"== benchmarks: stopped: its {seconds} s were over" in script.printed
    assert verdict[3:] == GOALS


@pytest.mark.slow
def test_parts_for_which_no_time_is_left_are_not_started(script, monkeypatch):
    monkeypatch.setenv("LIMIT", "1")
    status, verdict = script()
    assert status == 1
    assert {line.split()[1] for line in script.called() if line.startswith("-m ")} == {"benchmarks.gpu.verdict"}
    assert not any("setup.py" in line for line in script.called())
    assert all(line.endswith("benchmarks: not started: no time was left") for line in verdict[3:])


@pytest.mark.slow
def test_a_signal_ends_the_part_that_runs_and_leads_to_the_verdict(script, monkeypatch, tmp_path):
    monkeypatch.setenv("REAL_PYTEST", "parallel.xml")
    begun = pipe(tmp_path / "begun")
    script.write("parallel", HANGING.format(begun=str(begun)))
    with script.start() as process:
        begun.read_bytes()
        process.send_signal(signal.SIGTERM)
        printed, _ = process.communicate(timeout=LONG_S)
    assert process.returncode == 1
    assert "the script was interrupted" in printed
    last = printed.splitlines()[-1]
    assert last.startswith("goal  host-blocked: workers")
    assert last.endswith("not measured: benchmarks: not started: the script was interrupted")


@pytest.mark.slow
def test_on_the_cpu_nothing_is_judged_and_nothing_fails(script, monkeypatch, tmp_path):
    monkeypatch.setenv("DEVICE", "cpu")
    lines = [result("resident", comparisons=[ratio("fastload", "airbench", 0.5, None)])]
    (tmp_path / "results").write_text("".join(json.dumps(line) + "\n" for line in lines))
    status, verdict = script("resident")
    assert status == 0, script.printed
    assert verdict[-1].endswith("| 0.5 (0.5 to 0.5), n=5 | goal >= 1 | not judged: on the CPU")
    assert "tests under the sanitizer: not started: it needs a GPU" in script.printed
    assert any("--device cpu --quick" in line for line in script.called())
