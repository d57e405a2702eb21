"""All ranks share one draw by weight."""

from __future__ import annotations

import pytest
import weighted_sampling as example


@pytest.mark.parametrize("epoch", [0, 3])
def test_any_number_of_ranks_shares_the_same_draw(epoch: int) -> None:
    alone = example.global_batches(example.shares(1, epoch, 100))
    assert sum(map(len, alone)) == 100
    for world_size in (2, 4):
        assert example.global_batches(example.shares(world_size, epoch, 100)) == alone


def test_each_epoch_has_another_draw() -> None:
    assert example.shares(1, 0, 100) != example.shares(1, 1, 100)


def test_frequencies_over_all_ranks_follow_the_weights() -> None:
    drawn = [index for batch in example.global_batches(example.shares(4, 0, 10_000)) for index in batch]
    wanted = [weight / sum(example.WEIGHTS) for weight in example.WEIGHTS]
    found = example.frequencies(drawn)
    assert found[0] == 0
    # Five standard deviations; the draws are the same each time.
    assert all(
        abs(one - other) <= 5 * (other * (1 - other) / 1e4) ** 0.5 for one, other in zip(found, wanted, strict=True)
    )


def test_torchs_sampler_with_one_seed_gives_all_ranks_the_same_samples() -> None:
    first, second = example.torchs_draws([1, 1], 100)
    assert first == second
    assert 0 not in first
    first, second = example.torchs_draws([1, 2], 100)
    assert first != second
