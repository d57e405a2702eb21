"""torch's augmentation depends on the number of workers; fastload's does not."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
import worker_count as example


@pytest.fixture(autouse=True)
def global_generators_as_they_were() -> Iterator[None]:
    state = random.getstate(), np.random.get_state()
    yield
    random.setstate(state[0])
    np.random.set_state(state[1])


def test_with_another_number_of_workers_torchs_order_stays_and_its_augmentation_changes() -> None:
    orders, drawn = zip(*(example.torchs(num_workers) for num_workers in (0, 1, 2, 3)), strict=True)
    assert len(set(orders)) == 1
    assert len(set(drawn)) == 4
    assert example.torchs(2) == (orders[2], drawn[2])  # it is the workers, not chance


def test_fastloads_are_the_same_for_any_workers_and_ranks() -> None:
    alone = example.ours(0)
    assert {example.ours(num_workers) for num_workers in (1, 2, 3)} == {alone}
    assert {example.ours_on_ranks(world_size) for world_size in (1, 2, 4)} == {alone}
