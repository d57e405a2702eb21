"""The same batches, bit for bit, whoever loads them."""

from __future__ import annotations

import pytest
import torch
from determinism_fakes import Drawing, Mixed, batches
from kit.comparison import difference
from kit.generators import generator_states, seed_generators

from fastload import DataLoader, DistributedBatchSampler
from fastload.testing import assert_deterministic


@pytest.mark.parametrize("method", ["thread", pytest.param("fork", marks=pytest.mark.slow)])
def test_batches_are_the_same_for_any_workers_chunks_and_ranks_and_after_a_resume(method):
    loader = DataLoader(Mixed(), 8, shuffle=True, seed=11)
    report = assert_deterministic(loader, batches=3, methods=[method])
    assert {check.verdict for check in report.checks} == {"equal"}
    assert {check.name for check in report.checks} == {"again", "workers", "next epoch", "world size", "resume"}


def test_the_batch_size_and_the_order_change_no_sample():
    whole = {row[0]: row for batch in batches(DataLoader(Drawing(), 8, shuffle=True, seed=11)) for row in batch}
    for loader in (
        DataLoader(Drawing(), 5, shuffle=True, seed=11, num_workers=2),
        DataLoader(Drawing(), 53, seed=11),
        DataLoader(Drawing(), batch_sampler=DistributedBatchSampler(Drawing(), 4, seed=3, tail="short"), seed=11),
    ):
        assert {row[0]: row for batch in batches(loader) for row in batch} == whole


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_users_generators_neither_change_the_batches_nor_are_changed_by_them(num_workers):
    given = []
    for seed in (1, 2):
        seed_generators(seed)
        iterator = iter(DataLoader(Drawing(), 8, shuffle=True, seed=11, num_workers=num_workers))
        before = generator_states()  # torch has drawn a base seed by then, and so have we
        given.append(batches(iterator))
        assert generator_states() == before
    assert given[0] == given[1]


def test_with_torchs_seeding_threads_have_the_streams_of_torchs_worker_processes():
    torchs = torch.utils.data.DataLoader(
        Drawing(), 8, shuffle=True, num_workers=2, generator=torch.Generator().manual_seed(4)
    )
    threads = DataLoader(
        Drawing(), 8, shuffle=True, num_workers=2, generator=torch.Generator().manual_seed(4), seeding="torch",
        worker_method="thread",
    )  # fmt: skip
    assert difference(list(threads), list(torchs)) is None
