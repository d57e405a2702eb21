"""How long the tasks of Ray's workers are. Without Ray."""

from __future__ import annotations

import pytest

from fastload.work import choose_chunk_size
from fastload.workers.ray.pool import task_cost


@pytest.mark.parametrize(("num_workers", "seconds"), [(64, 0.128), (1000, 2.0)])
@pytest.mark.parametrize("stored", [False, True])
def test_a_task_takes_two_milliseconds_for_each_worker_where_there_are_many(num_workers, seconds, stored):
    sample_ns = 1e6
    size = choose_chunk_size(10_000, num_workers, sample_ns / task_cost(num_workers, stored=stored))
    assert size * sample_ns / 1e9 == pytest.approx(seconds, rel=0.02)


@pytest.mark.parametrize(("stored", "size"), [(False, 1), (True, 4)])
def test_a_task_of_few_workers_is_longer_where_its_result_goes_through_the_object_store(stored, size):
    assert choose_chunk_size(32, 8, 20e6 / task_cost(8, stored=stored)) == size


def test_all_of_many_workers_share_the_first_batch() -> None:
    assert choose_chunk_size(256, 8, 1e6 / task_cost(8, stored=True), awaited=True) == 32
