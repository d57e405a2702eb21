"""Tasks of workers on other machines: what is known of them comes from the process that they work for."""

from __future__ import annotations

from fastload.profiling.blame import segments_of
from fastload.profiling.reader import CARRYING, _carried_task
from fastload.profiling.ring import Kind, Record


def carried(begun: int, ended: int, busy_ns: int) -> Record:
    return Record(Kind.CARRIED, 0, 3, begun, ended, 1, 2, busy_ns, 8, 4)


def test_what_a_task_takes_beyond_its_work_is_a_stage_of_its_own():
    task = _carried_task(carried(1000, 1900, 600))
    assert (task.worker, task.number, task.num_samples) == (3, 4, 8)
    parts = [segment.parts for segment in segments_of(task, 0.0)]
    assert parts == [{"sample": 600}, {f"stage:{CARRYING}": 300}]


def test_a_worker_whose_clock_runs_ahead_leaves_no_time_for_the_way():
    parts = [segment.parts for segment in segments_of(_carried_task(carried(1000, 1900, 1200)), 0.0)]
    assert parts == [{"sample": 900}]
