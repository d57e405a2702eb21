"""How fast something runs, and what other programs took meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fastload.measurement import rate
from fastload.measurement.rate import Rate, Stopwatch, memory


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="the system does not say")
def test_what_this_process_computes_is_its_own_and_what_others_compute_is_theirs(monkeypatch: pytest.MonkeyPatch):
    machine, cpu = 10.0, 1.0
    monkeypatch.setattr(rate, "_machine_s", lambda: machine)
    monkeypatch.setattr(rate, "_cpu_s", lambda: cpu)
    now = 5.0
    monkeypatch.setattr(rate.time, "perf_counter", lambda: now)
    watch = Stopwatch()
    machine, cpu, now = 10.25, 1.1, 5.5
    found = watch.rate(20)
    assert found.cpu_s == pytest.approx(0.1)
    assert found.others == pytest.approx(0.3)
    assert (found.seconds, found.per_s) == (0.5, 40)


def test_processors_are_crowded_where_others_leave_none_free(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rate, "processors", lambda: 4)
    cases = [(3.0, 1.8), (3.0, 0.2), (0.1, 7.8), (None, 1.0)]
    assert [Rate(1, 2.0, cpu_s, others).is_crowded for others, cpu_s in cases] == [True, False, False, False]


def test_what_the_system_does_not_say_is_none(monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", fail)
    monkeypatch.setattr(os, "listdir", fail)
    found = Stopwatch().rate(1)
    assert (found.cpu_s, found.others, memory()) == (None, None, None)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="the system does not say")
def test_a_child_counts_with_its_parent():
    code = "import time; held = bytearray(b'x') * (64 << 20); end = time.process_time() + 0.3\n"
    code += "while time.process_time() < end: pass\nprint('done', flush=True); input()"
    before, watch = memory(), Stopwatch()
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"done\n"
        found, after = watch.rate(1), memory()
        child.communicate(b"\n")
    assert found.cpu_s is not None
    assert found.cpu_s >= 0.25
    assert before is not None
    assert after is not None
    assert after - before > 60 << 20
