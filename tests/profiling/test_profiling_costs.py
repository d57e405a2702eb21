"""What a hook costs is measured, and multiplied by what was recorded; rings on disks that fill up; clocks."""

from __future__ import annotations

import errno
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import fastload
from fastload.profiling import ring as ring_module
from fastload.profiling.clocks import RunQueue, ThreadClocks
from fastload.profiling.recorder import Recorder
from fastload.profiling.ring import Kind, Ring, RingFile


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_recording_bears_what_its_hooks_cost(tmp_path: Path, num_workers: int) -> None:
    with fastload.profile(folder=tmp_path) as recorded:
        list(DataLoader(torch.arange(32), batch_size=4, num_workers=num_workers))
    cost = recorded.trace().hooks_ns
    rings = [RingFile(str(path)) for path in tmp_path.glob("*.ring")]
    assert cost is not None
    assert 10 < cost / sum(1 for ring in rings for _ in ring) < 1e6


def full_disk_after(pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    claim, claimed = os.posix_fallocate, []

    def fallocate(descriptor: int, offset: int, length: int) -> None:
        claimed.append(length)
        if len(claimed) > pieces:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        claim(descriptor, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", fallocate)


def test_room_is_claimed_before_it_is_written_and_a_full_disk_ends_the_recording_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring_module, "_FIRST", 10)
    full_disk_after(3, monkeypatch)
    told: list[OSError] = []
    path = str(tmp_path / "a.ring")
    ring = Ring(path, 64, is_main=True, full=told.append)
    for number in range(50):
        ring.write(Kind.SAMPLE, 0, 0, number, number)
    assert [one.begun for one in RingFile(path)] == list(range(40))
    assert [error.errno for error in told] == [errno.ENOSPC]


def test_a_ring_that_is_full_of_records_goes_round_in_its_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_module, "_FIRST", 10)
    path = str(tmp_path / "a.ring")
    ring = Ring(path, 25, is_main=False)
    for number in range(60):
        ring.write(Kind.SAMPLE, 0, 0, number, number)
    file = RingFile(path)
    assert [one.begun for one in file] == list(range(35, 60))
    assert (file.num_lost, file.is_main) == (35, False)


def test_a_disk_that_is_full_from_the_beginning_leaves_no_half_made_ring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full_disk_after(0, monkeypatch)
    recorder = Recorder(str(tmp_path))
    for _ in range(3):
        recorder.ring().write(Kind.SAMPLE, 0, 0, 1, 2)
    assert not [path for path in tmp_path.iterdir() if "ring" in path.name]
    assert capsys.readouterr().err.count("is no longer recorded: [Errno 28]") == 1


def test_a_ring_takes_little_more_room_than_its_records(tmp_path: Path) -> None:
    path = str(tmp_path / "a.ring")
    Ring(path, 1 << 18, is_main=True).write(Kind.SAMPLE, 0, 0, 1, 2)
    assert [(one.begun, one.ended) for one in RingFile(path)] == [(1, 2)]
    assert os.stat(path).st_size <= 1 << 17


# -- clocks ------------------------------------------------------------------------------------------------------------


MS = 1_000_000


class System:
    """Stands for a thread and its clocks."""

    def __init__(self, runnable: int = 0) -> None:
        self.ready = runnable
        self.asked = 0
        self.is_told = True

    def runnable(self) -> int:
        self.asked += 1
        return self.ready if self.is_told else -1


def told(queue: RunQueue, system: System, *, cpu: int = 0, runnable: int = 0, blocked: int = 0) -> int:
    """Return what is told of a stretch in which some time passes."""
    clocks: Any = lambda: system  # noqa: E731
    queue.begin(clocks)
    system.ready += runnable
    return queue.end(clocks, cpu + runnable + blocked, cpu)


def test_stretches_on_the_cpu_ask_the_system_once() -> None:
    queue, system = RunQueue(), System()
    assert [told(queue, system, cpu=MS) for _ in range(100)] == [0] * 100
    assert system.asked == 1


def test_what_others_have_just_read_is_what_the_next_stretch_begins_with() -> None:
    queue, system = RunQueue(), System()
    told(queue, system, cpu=MS)
    system.ready += 7 * MS
    clocks: Any = system
    queue.set(clocks, system.runnable())
    assert told(queue, system, cpu=MS, blocked=9 * MS) == 0


def test_the_run_queue_of_another_thread_is_no_part_of_a_stretch() -> None:
    queue, system, other = RunQueue(), System(), System(runnable=10**12)
    told(queue, system, cpu=MS)
    assert told(queue, other, cpu=MS, runnable=MS, blocked=MS) == -1
    assert told(queue, other, cpu=MS, runnable=MS, blocked=MS) == MS


def test_where_the_system_does_not_tell_it_is_unknown_and_not_zero() -> None:
    queue, system = RunQueue(), System()
    system.is_told = False
    assert told(queue, system, cpu=MS) == -1
    assert told(queue, system, cpu=MS, runnable=MS) == -1


TIMES = st.integers(0, 20 * MS)


@given(st.lists(st.tuples(TIMES, TIMES, TIMES, TIMES), max_size=30))
def test_no_stretch_is_told_less_than_it_waited_or_more_than_it_was_off_the_cpu(tasks: list[tuple[int, ...]]) -> None:
    queue, system, between = RunQueue(), System(), 0
    for cpu, runnable, blocked, idle in tasks:
        found = told(queue, system, cpu=cpu, runnable=runnable, blocked=blocked)
        off = runnable + blocked
        if off * 100 <= cpu + off:
            assert found == 0
            between += runnable + idle
        else:
            assert runnable <= found <= min(off, runnable + between)
            between = idle
        system.ready += idle


# -- files ------------------------------------------------------------------------------------------------------------


def test_the_run_queue_time_of_a_thread_is_what_the_system_says() -> None:
    file = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
    clocks = ThreadClocks()
    if clocks.is_missing:
        pytest.skip("this system tells nothing of threads in files")
    before = int(file.read_text().split()[1])
    found = clocks.runnable()
    assert before <= found <= int(file.read_text().split()[1])


def test_clocks_close_their_own_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ignored: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    made = ThreadClocks()
    own = made._own
    if own is None:
        pytest.skip("this system tells nothing of threads in files")
    del made
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(own)

    made = ThreadClocks()
    assert made._own is not None
    own = made._own
    os.close(own)
    (tmp_path / "mine").write_text("1 2 3")
    mine = os.open(tmp_path / "mine", os.O_RDONLY)
    if mine != own:  # somebody else was quicker
        mine = os.dup2(mine, own)
    del made
    assert os.pread(mine, 5, 0) == b"1 2 3"
    os.close(mine)
    assert ignored == []
