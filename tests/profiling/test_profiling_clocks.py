"""What clocks say of short stretches, by a system that is made up; files of theirs that others have closed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastload.profiling.clocks import RunQueue, ThreadClocks

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


def test_of_a_stretch_off_the_cpu_and_of_the_next_one_the_run_queue_is_told() -> None:
    queue, system = RunQueue(), System()
    told(queue, system, cpu=MS)
    assert told(queue, system, cpu=MS, runnable=2 * MS) == 2 * MS
    system.ready += 5 * MS
    assert told(queue, system, cpu=MS, runnable=MS, blocked=9 * MS) == MS
    assert told(queue, system, cpu=MS, blocked=4 * MS) == 0


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


def test_clocks_close_their_own_files_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ignored: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    made = ThreadClocks()
    own = list(made._open_files)
    if not own:
        pytest.skip("this system tells nothing of threads in files")
    del made
    for descriptor in own:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)

    made = ThreadClocks()
    first, *rest = made._open_files
    for descriptor in (first, *rest):
        os.close(descriptor)
    (tmp_path / "mine").write_text("1 2 3")
    mine = os.open(tmp_path / "mine", os.O_RDONLY)
    if mine != first:  # somebody else was quicker
        mine = os.dup2(mine, first)
    del made
    assert os.pread(mine, 5, 0) == b"1 2 3"
    os.close(mine)
    assert ignored == []
