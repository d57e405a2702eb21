"""One sample of an epoch again."""

from __future__ import annotations

from typing import Any

import pytest
from determinism_fakes import Drawing, batches
from kit.datasets import Stream
from kit.generators import generator_states
from torch.utils.data import DistributedSampler, Subset

import fastload
from fastload import ConfigError, DataLoader, DistributedBatchSampler, replay


def taken_apart(sample: Any) -> Any:
    *rest, pair = sample
    return (*rest, tuple(pair.tolist()))


class DrawingInBatches(Drawing):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


def steps(rank: int, world_size: int, **options: Any) -> dict[str, Any]:
    return {"batch_sampler": DistributedBatchSampler(Drawing(), 8, rank=rank, world_size=world_size, **options)}


def test_every_sample_of_every_epoch_is_found_again_by_its_index():
    loader = DataLoader(Drawing(), 8, shuffle=True, seed=3)
    for epoch in range(2):
        for row in (row for batch in batches(loader) for row in batch):
            assert taken_apart(replay(loader, epoch, row[0])) == row


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize(
    "options",
    [{"tail": "pad"}, {"tail": "short", "weights": [1.0] * 53}, {"order": "block", "block_size": 3}],
    ids=["padded", "weighted", "blocks"],
)
def test_every_sample_is_found_again_by_its_position(options, world_size):
    loaders = [DataLoader(Drawing(), **steps(rank, world_size, **options)) for rank in range(world_size)]
    given_out = [batches(loader) for loader in loaders]
    for step in range(max(map(len, given_out))):
        rows = [row for one in given_out if step < len(one) for row in one[step]]
        for place, row in enumerate(rows):
            assert taken_apart(replay(loaders[-1], 0, position=8 * step + place)) == row


def test_repeats_of_padding_have_an_augmentation_of_their_own():
    loader = DataLoader(Drawing(), **steps(0, 1, tail="pad"))
    rows = [row for batch in batches(loader) for row in batch]
    assert [row[0] for row in rows[53:]] == [row[0] for row in rows[:3]]
    assert all(repeat != first for repeat, first in zip(rows[53:], rows[:3], strict=True))
    assert taken_apart(replay(loader, 0, rows[0][0])) == rows[0]


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_dataset_that_loads_batches_at_once_is_seeded_for_the_batch_again(world_size):
    for make in (
        lambda rank: steps(rank, world_size, tail="short"),
        lambda rank: {
            "batch_size": 4,
            "sampler": fastload.DistributedSampler(Drawing(), world_size, rank, tail="short"),
        },
    ):
        for rank in range(world_size):
            loader = DataLoader(DrawingInBatches(), **make(rank))
            for row in (row for batch in batches(loader) for row in batch):
                assert taken_apart(replay(loader, 0, row[0])) == row


def test_subsets_and_samplers_that_are_not_ours_are_served_too():
    loader = DataLoader(Subset(Drawing(), [5, 50, 7]), 2, shuffle=True, seed=1)
    rows = [row for batch in batches(loader) for row in batch]
    assert {taken_apart(replay(loader, 0, index)) for index in range(3)} == set(rows)
    torchs = DataLoader(Drawing(), 5, sampler=DistributedSampler(Drawing(), 2, 1), seed=3)
    rows = [row for batch in batches(torchs) for row in batch]
    for place, row in enumerate(rows):
        assert taken_apart(replay(torchs, 0, row[0], position=1 + 2 * place)) == row


def test_the_global_generators_stay_as_they_are():
    before = generator_states()
    replay(DataLoader(Drawing(), seed=1), 4, 7)
    assert generator_states() == before


@pytest.mark.parametrize(
    ("loader", "arguments", "message"),
    [
        (DataLoader(Drawing()), {"index": 1}, "give the DataLoader seed=..., got seed=None"),
        (DataLoader(Stream(lambda: [1]), seed=1), {"index": 1}, "replay needs a map-style dataset"),
        (DataLoader(Drawing(), seed=1), {}, "index=None occurs 0 times"),
        (DataLoader(Drawing(), seed=1), {"index": 1, "epoch": -1}, "epoch must be an integer from 0"),
        (DataLoader(Drawing(), seed=1), {"position": -1}, "position must be an integer of at least 0"),
        (DataLoader(Drawing(), seed=1), {"position": 53}, "position must be below 53, the length of an epoch"),
        (DataLoader(Drawing(), seed=1), {"index": 4, "position": 5}, "position 5 of epoch 0 has index 5, got index=4"),
        (DataLoader(Drawing(), **steps(0, 1, weights=[1.0] + [0.0] * 52)), {"index": 0}, "index=0 occurs 53 times"),
        (DataLoader(Drawing(), seed=1, sampler=[3, 4]), {"index": 4}, "replay needs index and position"),
        (
            DataLoader(DrawingInBatches(), 2, seed=1, shuffle=True),
            {"index": 60},
            "from 0 to 52, .* occurs 0 times",
        ),
    ],
)
def test_what_names_no_sample_is_refused_with_the_remedy(loader, arguments, message):
    with pytest.raises(ConfigError, match=message):
        replay(loader, **{"epoch": 0, **arguments})
