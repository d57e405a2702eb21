"""How many tasks a slow worker is given: as many as do not make local workers wait for it."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fastload.work import chunk_bounds
from fastload.workers.ray.pace import MOST_TASKS, Pace

ROWS, SAMPLE_S, NETWORK_S = 32, 0.02, 0.01


class Remote:
    """A simulated worker on another machine."""

    def __init__(self) -> None:
        self.pace = Pace()
        self.num_tasks, self.idle_from, self.arrived = 0, 0.0, 0.0


def simulated(
    num_local: int, num_remote: int, slower: float, chunk: int, *, seconds: float, paced: bool = True
) -> float:
    """Return samples per second of a loader whose remote workers are so many times slower than its local ones.

    Tasks are taken in order, batches are given out in order, at once, and two for each worker are open.
    """
    num_open = 2 * (num_local + num_remote)
    open_s = num_open * ROWS * SAMPLE_S / num_local
    order = itertools.count()
    now, next_batch, next_open = 0.0, 0, 0
    tasks: deque[tuple[int, int]] = deque()
    missing: dict[int, int] = {}
    idle = num_local
    remotes = [Remote() for _ in range(num_remote)]
    events: list[tuple[float, int, Remote | None, Any]] = []
    while now < seconds:
        for batch in range(next_open, next_batch + num_open):
            rows = [stop - start for start, stop in chunk_bounds(ROWS, chunk)]
            missing[batch] = len(rows)
            tasks.extend((batch, number) for number in rows)
        next_open = next_batch + num_open
        while tasks:
            free = [one for one in remotes if one.num_tasks < (one.pace.tasks(open_s, now) if paced else MOST_TASKS)]
            if idle:
                idle -= 1
                batch, number = tasks.popleft()
                heapq.heappush(events, (now + number * SAMPLE_S, next(order), None, (batch, now)))
            elif free:
                remote = min(free, key=lambda one: one.num_tasks)
                batch, number = tasks.popleft()
                remote.num_tasks += 1
                remote.idle_from = max(now, remote.idle_from) + number * SAMPLE_S * slower
                heapq.heappush(events, (remote.idle_from + NETWORK_S, next(order), remote, (batch, now)))
            else:
                break
        now, _, done_by, (batch, handed_out) = heapq.heappop(events)
        if done_by is None:
            idle += 1
        else:
            done_by.num_tasks -= 1
            done_by.pace.note(now - max(handed_out, done_by.arrived), now)
            done_by.arrived = now
        missing[batch] -= 1
        while missing.get(next_batch) == 0:
            del missing[next_batch]
            next_batch += 1
    return next_batch * ROWS / now


@given(
    num_local=st.integers(1, 4),
    num_remote=st.integers(1, 6),
    slower=st.floats(0.5, 100),
    chunk=st.integers(4, ROWS),
)
@example(num_local=2, num_remote=2, slower=100.0, chunk=ROWS)
@settings(max_examples=25, deadline=None)
def test_workers_of_any_speed_never_make_a_loader_much_slower_than_local_workers_alone(
    num_local, num_remote, slower, chunk
):
    alone = num_local / SAMPLE_S
    # Its first task is what shows that a worker is slow, and all wait for it once.
    rate = simulated(num_local, num_remote, slower, chunk, seconds=20 + ROWS * SAMPLE_S * slower * 10)
    assert rate >= 0.75 * alone


def test_without_a_limit_slow_workers_make_a_loader_slower_than_local_workers_alone() -> None:
    assert simulated(2, 2, 100, ROWS, seconds=600, paced=False) < 0.1 * 2 / SAMPLE_S
    assert simulated(2, 2, 100, ROWS, seconds=600) > 0.75 * 2 / SAMPLE_S


@pytest.mark.parametrize("chunk", [4, 32])
@pytest.mark.parametrize(("num_local", "num_remote"), [(2, 2), (2, 14)])
def test_workers_as_fast_as_local_ones_are_all_used(num_local: int, num_remote: int, chunk: int) -> None:
    rate = simulated(num_local, num_remote, 1, chunk, seconds=20)
    assert rate > 0.9 * (num_local + num_remote) / SAMPLE_S


def test_a_worker_has_one_task_until_its_speed_is_known() -> None:
    assert Pace().tasks(1.0, 0.0) == 1


def test_without_local_workers_each_has_all_its_tasks() -> None:
    pace = Pace()
    assert pace.tasks(float("inf"), 0.0) == MOST_TASKS
    pace.note(1000.0, 0.0)
    assert pace.tasks(float("inf"), 0.0) == MOST_TASKS


def test_a_slow_worker_rests_many_times_as_long_as_its_task_took_and_is_used_again_when_it_is_fast() -> None:
    pace = Pace()
    pace.note(2.0, 100.0)
    assert pace.tasks(1.0, 101.0) == pace.tasks(1.0, 130.0) == 0
    assert pace.tasks(1.0, 200.0) == 1
    for second in range(200, 220):
        pace.note(0.01, float(second))
    assert pace.tasks(1.0, 220.0) == MOST_TASKS


def test_a_worker_without_a_measurable_task_has_all_its_tasks() -> None:
    pace = Pace()
    pace.note(0.0, 0.0)
    assert pace.tasks(0.1, 0.0) == MOST_TASKS
