"""What a hook costs is measured, and multiplied by what was recorded; rings on disks that fill up; clocks."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import fastload
from fastload.profiling import clocks
from fastload.profiling import ring as ring_module
from fastload.profiling.clocks import ThreadClock
from fastload.profiling.recorder import Recorder
from fastload.profiling.ring import RecordKind, Ring, RingFile


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_recording_bears_what_its_hooks_cost(tmp_path: Path, num_workers: int) -> None:
    with fastload.profile(folder=tmp_path) as recorded:
        list(DataLoader(torch.arange(32), batch_size=4, num_workers=num_workers))
    cost = recorded.trace().hooks_ns
    rings = [RingFile(str(path)) for path in tmp_path.glob("*.ring")]
    assert cost is not None
    assert 10 < cost / sum(len(ring.records) for ring in rings) < 1e6


def full_disk_after(pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    claim, claimed = os.posix_fallocate, []

    def fallocate(descriptor: int, offset: int, length: int) -> None:
        claimed.append(length)
        if len(claimed) > pieces:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        claim(descriptor, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", fallocate)


def test_room_is_claimed_before_it_is_written_and_a_full_disk_ends_the_recording_only(tmp_path, monkeypatch):
    monkeypatch.setattr(ring_module, "_FIRST", 10)
    full_disk_after(3, monkeypatch)
    told: list[OSError] = []
    path = str(tmp_path / "a.ring")
    ring = Ring(path, 64, is_main=True, full=told.append)
    for number in range(50):
        ring.write(RecordKind.SAMPLE, 0, 0, number, number)
    assert [one.begun for one in RingFile(path).records] == list(range(40))
    assert [error.errno for error in told] == [errno.ENOSPC]


@pytest.mark.parametrize("error", ["[Errno 28]", "[Errno 2]"], ids=["the disk is full", "the folder goes"])
def test_where_no_ring_can_be_made_nothing_is_recorded_and_that_is_said_once(tmp_path, monkeypatch, capsys, error):
    recorder = Recorder(str(tmp_path))
    if error == "[Errno 28]":
        full_disk_after(0, monkeypatch)
    else:
        shutil.rmtree(tmp_path)
    for _ in range(3):
        recorder.ring().write(RecordKind.SAMPLE, 0, 0, 1, 2)
    assert not [path for path in tmp_path.glob("*") if "ring" in path.name]
    assert capsys.readouterr().err.count(f"is no longer recorded: {error}") == 1


# -- clocks ------------------------------------------------------------------------------------------------------------


MS = 1_000_000


class System:
    """Stands for the clocks of a system with one thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.cpu = self.ready = self.asked = 0
        monkeypatch.setattr(clocks, "run_queue_ns", self.read)
        monkeypatch.setattr(clocks.time, "thread_time_ns", lambda: self.cpu)
        monkeypatch.setattr(clocks.time, "perf_counter_ns", lambda: self.now)

    def read(self) -> int | None:
        self.asked += 1
        return self.ready

    def told(self, clock: ThreadClock, cpu: int = 0, runnable: int = 0, blocked: int = 0) -> tuple[int, int]:
        """Return what is told of an interval in which some time passes."""
        clock.begin()
        self.cpu += cpu
        self.ready += runnable
        self.now += cpu + runnable + blocked
        return clock.end(self.now)


def test_intervals_on_the_cpu_ask_the_system_once_and_what_it_does_not_tell_is_no_zero(monkeypatch):
    system, clock = System(monkeypatch), ThreadClock()
    assert [system.told(clock, cpu=MS) for _ in range(100)] == [(MS, 0)] * 100
    assert system.asked == 1
    monkeypatch.setattr(clocks, "run_queue_ns", lambda: None)
    clock = ThreadClock()
    assert [system.told(clock, cpu=MS, blocked=blocked) for blocked in (0, MS)] == [(MS, -1)] * 2


TIMES = st.integers(0, 20 * MS)


@given(st.lists(st.tuples(TIMES, TIMES, TIMES, TIMES), max_size=30))
def test_no_interval_is_told_less_than_it_waited_or_more_than_it_was_off_the_cpu(tasks: list[tuple[int, ...]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        system, clock, between = System(patch), ThreadClock(), 0
        for cpu, runnable, blocked, idle in tasks:
            _, found = system.told(clock, cpu, runnable, blocked)
            off = runnable + blocked
            if off * 100 <= cpu + off:
                assert found == 0
                between += runnable + idle
            else:
                assert runnable <= found <= min(off, runnable + between)
                between = idle
            system.ready += idle


def test_the_run_queue_time_of_a_thread_is_what_the_system_says() -> None:
    file = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
    if not file.exists():
        pytest.skip("this system tells nothing of threads in files")
    before = int(file.read_text().split()[1])
    found = clocks.run_queue_ns()
    assert found is not None
    assert before <= found <= int(file.read_text().split()[1])
