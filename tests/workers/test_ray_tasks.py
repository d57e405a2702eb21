"""How long the tasks of Ray's workers are made."""

from __future__ import annotations

import pytest

from fastload.work import choose_chunk_size
from fastload.workers.ray.pool import task_cost


@pytest.mark.parametrize(("num_workers", "seconds"), [(64, 0.128), (1000, 2.0)])
def test_a_task_takes_two_milliseconds_for_each_worker_where_there_are_many(num_workers: int, seconds: float) -> None:
    sample_ns = 1e6
    size = choose_chunk_size(10_000, num_workers, sample_ns / task_cost(num_workers))
    assert size * sample_ns / 1e9 == pytest.approx(seconds, rel=0.02)


def test_local_workers_beside_a_few_remote_ones_keep_their_short_tasks() -> None:
    assert task_cost(2, are_all=False) == 1.0
    assert task_cost(56, are_all=False) > 4.0
