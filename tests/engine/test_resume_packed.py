"""Loaders of packs: lengths of epochs, and resumes, in all kinds of workers and on ranks."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest
import torch
from determinism_fakes import stopped_at
from kit.datasets import Documents
from kit.resuming import assert_resumes, resumed

import fastload
from fastload.errors import ConfigError, StateError

NUMBER, STEP = 101, 4
collate = functools.partial(fastload.collate_packed, max_tokens=20, seq_idx=True)


def make_loader(
    *, dataset: Any = None, num_workers: int = 0, padded: bool = False, loading: Any = None, **more: Any
) -> fastload.DataLoader[Any]:
    data = Documents(NUMBER) if dataset is None else dataset
    lengths = None if dataset is not None else [data.tokens_of(index) for index in range(NUMBER)]
    options: Any = {"packs_per_step": STEP, "window": 30, "seed": 3, "lengths": lengths} | more
    sampler = fastload.PackedBatchSampler(data, options.pop("max_tokens", 20), **options)
    fixed = functools.partial(collate, pad_to=20, max_documents=21) if padded else collate
    return fastload.DataLoader(
        sampler.dataset, batch_sampler=sampler, collate_fn=fixed, num_workers=num_workers, **loading or {}
    )


def rows(loader: Any) -> list[Any]:
    """Return the tokens and labels, which tell the random numbers, of all batches of one pass."""
    return [
        (batch["input_ids"].tolist(), batch["labels"].tolist(), batch["cu_seq_lens_q"].tolist()) for batch in loader
    ]


def mixture() -> fastload.Mixture:
    parts = {"a": Documents(NUMBER), "b": Documents(17)}
    lengths = {name: [part.tokens_of(index) for index in range(len(part))] for name, part in parts.items()}
    return fastload.Mixture(parts, {"a": 0.6, "b": 0.4}, lengths=lengths, num_samples=NUMBER)


@pytest.mark.parametrize(
    ("loading", "of_mixture"),
    [
        ({}, False),
        ({"num_workers": 2, "padded": True}, True),
        ({"num_workers": 2, "loading": {"worker_method": "thread"}}, False),
        pytest.param({"num_workers": 1, "loading": {"persistent_workers": True}}, True, marks=pytest.mark.slow),
    ],
    ids=repr,
)
def test_any_workers_load_the_same_packs_and_resume_at_any_batch(loading, of_mixture):
    make = functools.partial(make_loader, dataset=mixture() if of_mixture else None, tail="short")
    expected = rows(make(padded=loading.get("padded", False)))
    assert_resumes(lambda: make(**loading), [(0, 4), (1, 1)], view=rows)
    loader = make(**loading)
    assert rows(loader) == expected
    loader.close()


def test_len_is_that_of_the_epoch_under_way_or_of_the_next():
    loader = make_loader(tail="short", packs_per_step=1)
    expected = [loader.batch_sampler.num_batches(epoch) for epoch in range(6)]  # type: ignore[union-attr]
    assert len(set(expected)) > 1
    for epoch in range(6):
        assert len(loader) == expected[epoch]
        assert sum(len(loader) == expected[epoch] for _ in loader) == expected[epoch]
    assert len(resumed(lambda: make_loader(tail="short", packs_per_step=1), 2, 3)) == expected[2]


def global_steps(loaders: list[Any], per_step: int) -> list[Any]:
    """Return the packs of each step of the next epoch, over all ranks, in the order of the epoch."""
    turns = itertools.zip_longest(*map(rows, loaders))
    packs = [pack for turn in turns for pack in turn if pack is not None]
    return [packs[at : at + per_step] for at in range(0, len(packs), per_step)]


@pytest.mark.slow
@pytest.mark.parametrize("of_mixture", [False, True])
def test_ranks_go_on_with_the_same_steps_and_random_numbers_as_other_numbers_of_ranks(of_mixture):
    make = functools.partial(
        make_loader, dataset=mixture() if of_mixture else None, packs_per_step=12, max_tokens=14, window=25
    )
    alone = make()
    whole, following = (global_steps([alone], 12) for _ in range(2))
    assert len(whole) > 2
    for before, after in ((2, 3), (3, 1), (1, 4), (4, 6)):
        for step in (1, len(whole) - 1):
            ranks = [functools.partial(make, rank=rank, world_size=before) for rank in range(before)]
            states = [stopped_at(rank(), 0, step * 12 // before) for rank in ranks]
            assert all(state == states[0] for state in states)
            loaders = [make(rank=rank, world_size=after) for rank in range(after)]
            for loader in loaders:
                loader.load_state_dict(states[0])
            assert [global_steps(loaders, 12) for _ in range(2)] == [whole[step:], following]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"max_tokens": 24}, "max_tokens=20.* when it was saved and is .*max_tokens=24"),
        ({"lengths": [5] * NUMBER}, "lengths=.* when it was saved"),
        ({"window": 31}, "window=30.* and is .*window=31"),
        ({"packs_per_step": 8}, "the global batch size was 4 when it was saved and is 8 now"),
        ({"tail": "pad"}, "the tail was 'drop'"),
        ({"seed": 4}, "the seed was 3"),
        ({"shuffle": False}, "packs of keyed.*packs of sequential"),
    ],
)
def test_a_state_of_other_packs_is_an_error_that_names_them(changed, message):
    state = make_loader().state_dict()
    with pytest.raises(StateError, match=message):
        make_loader(**changed).load_state_dict(state)


def test_a_position_where_no_pack_begins_and_one_within_a_step_are_errors():
    loader = make_loader()
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    assert state["position"] == 1
    with pytest.raises(
        StateError, match="saved within a step, after 1 of its 4 packs, which 2 ranks cannot go on from"
    ):
        make_loader(rank=0, world_size=2).load_state_dict(state)
    for position, message in (
        (STEP, "no pack of epoch 0 begins at 1"),
        (STEP * 102, "no pack of epoch 0 begins at 102"),
    ):
        with pytest.raises(StateError, match=message):
            make_loader().load_state_dict(state | {"position": position})


def test_a_sample_longer_than_it_said_is_an_error():
    loader = make_loader(lengths=[1] * NUMBER)
    with pytest.raises(fastload.DatasetError, match=r"max_tokens=20.* other lengths than they were packed by"):
        list(loader)


def test_replay_makes_a_sample_of_a_pack_again():
    loader = make_loader(dataset=mixture())
    packs = list(loader.batch_sampler.epoch_order.batches(1))  # type: ignore[union-attr]
    list(loader)
    made = list(loader)
    for pack, batch in zip(packs[:6], made, strict=False):
        again = collate([fastload.replay(loader, 1, position=pack.position + row) for row in range(len(pack))])
        assert torch.equal(again["labels"], batch["labels"])


def test_random_numbers_of_repeats_are_others():
    loader = make_loader(lengths=[20] * NUMBER, packs_per_step=100, tail="pad")
    made = rows(loader)
    assert len(made) == 200
    first = {tuple(ids[0]): labels for ids, labels, _ in made[:NUMBER] if len(ids[0]) > 1}
    repeated = [labels != first[tuple(ids[0])] for ids, labels, _ in made[NUMBER:] if tuple(ids[0]) in first]
    assert len(repeated) > 50
    assert all(repeated)


def test_a_loader_of_an_uncut_dataset_is_an_error():
    data = Documents(NUMBER)
    sampler = fastload.PackedBatchSampler(data, 4, [13] * NUMBER, packs_per_step=1, overlong="truncate")
    with pytest.raises(ConfigError, match=r"of sampler\.dataset"):
        fastload.DataLoader(data, batch_sampler=sampler)
