"""Loaders of mixtures that are resumed: as they were, on other ranks, and with other weights and sources."""

from __future__ import annotations

import itertools
import json
import pickle
import re
from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pytest
from determinism_fakes import stopped_at
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.datasets import Made
from kit.resuming import assert_resumes
from ranks import run_ranks

from fastload import (
    ConfigError,
    DataLoader,
    DistributedBatchSampler,
    DistributedSampler,
    Mixture,
    PackedBatchSampler,
    RankMismatch,
    StateError,
)
from fastload.sampling.mixture_order import _order_of_source

SIZES = {"a": 40, "b": 20, "c": 10}
WEIGHTS = {"a": 2, "b": 1, "c": 1}


def mixture_of(weights: Any = WEIGHTS, sizes: dict[str, int] = SIZES, **options: Any) -> Mixture:
    """Return a mixture whose samples are their source's place in the alphabet times 1,000, and their index in it."""
    sources: dict[str, Any] = {
        name: Made(size, lambda index, name=name: 1000 * (ord(name) - 97) + index) for name, size in sizes.items()
    }
    return Mixture(sources, weights, **{"num_samples": 48, **options})


def loader_of(*arguments: Any, rank: int = 0, world_size: int = 1, batch: int = 24, **options: Any) -> DataLoader[Any]:
    mixture = mixture_of(*arguments, **options)
    sampler = DistributedBatchSampler(mixture, batch, seed=7, rank=rank, world_size=world_size, tail="short")
    return DataLoader(mixture, batch_sampler=sampler)


def steps(loader: DataLoader[Any]) -> list[list[int]]:
    return [np.asarray(batch).tolist() for batch in loader]


def drawn_of(loader: DataLoader[Any], number: int) -> list[int]:
    """Return so many samples from where a loader is, over its epochs."""
    return list(
        itertools.islice((sample for _ in itertools.count() for batch in steps(loader) for sample in batch), number)
    )


LOADERS = {
    "shuffle": lambda: DataLoader(mixture_of(), 8, shuffle=True, seed=3),
    "one sample": lambda: DataLoader(mixture_of(), None, shuffle=True, seed=3),
    "batches": lambda: loader_of(batch=8),
    "rows": lambda: DataLoader(mixture_of(), 8, sampler=DistributedSampler(mixture_of(), 2, 1, seed=3)),
    "schedule": lambda: loader_of([(0, WEIGHTS), (10, {"a": 1}), (61, {"b": 1, "c": 3})], max_epochs={"c": 1}, batch=8),
}


@pytest.mark.parametrize("name", LOADERS)
def test_a_loader_of_a_mixture_resumes_exactly(name):
    assert_resumes(LOADERS[name], [(0, 0), (0, 3), (1, 2), (2, 1)], view=steps)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 6, 8])
def test_a_state_of_any_step_goes_on_on_any_number_of_ranks(num_ranks):
    loader = loader_of()
    whole = [batch for _ in range(2) for batch in steps(loader)]
    for step in range(4):
        state = stopped_at(loader_of(), *divmod(step, 2))
        shares = []
        for rank in range(num_ranks):
            loader = loader_of(rank=rank, world_size=num_ranks)
            loader.load_state_dict(state)
            shares.append([batch for _ in range(2) for batch in steps(loader)][: 4 - step])
        assert [list(itertools.chain(*parts)) for parts in zip(*shares, strict=True)] == whole[step:]


def test_a_state_is_small_and_plain():
    loader = loader_of([(0, WEIGHTS), (96, {"a": 1.0})], max_epochs={"c": 9})
    state = stopped_at(loader, 0, 1)
    assert json.loads(json.dumps(state)) == state
    assert len(pickle.dumps(state)) < 200 + 16 * 3 * 2 + 30
    other = loader_of([(0, WEIGHTS), (96, {"a": 1.0})], max_epochs={"c": 9})
    other.load_state_dict(json.loads(json.dumps(state)))
    assert steps(other) == steps(loader_of([(0, WEIGHTS), (96, {"a": 1.0})], max_epochs={"c": 9}))[1:]


CHANGES = {
    "weights": ((dict(WEIGHTS, a=4),), {}, "the weight, by draw, of 'a' was {0: 0.5} and is {0: 0.6666666666666666}; "),
    "a schedule": (
        ([(0, WEIGHTS), (9, {"a": 1})],),
        {},
        "the weight, by draw, of 'b' was {0: 0.25} and is {0: 0.25, 9: 0.0}",
    ),
    "a new source": ((WEIGHTS, {**SIZES, "d": 5}), {}, "source 'd' is new; load"),
    "a source less": (({"a": 1}, {"a": 40, "b": 20}), {}, "source 'c' is missing; load"),
    "a length": ((WEIGHTS, {**SIZES, "b": 21}), {}, "the length of 'b' was 20 and is 21; load"),
    "a limit": ((), {"max_epochs": {"b": 7}}, "max_epochs of 'b' was None and is 7; load"),
    "an epoch": ((), {"num_samples": 72}, "num_samples was 48 and is 72; load it with mixture='continue'"),
}


@pytest.mark.filterwarnings("ignore:sources of the mixture")
@pytest.mark.parametrize("what", CHANGES)
def test_a_state_of_another_mixture_is_an_error_that_names_the_change_and_is_continued_if_asked_for(what):
    arguments, options, words = CHANGES[what]
    state = stopped_at(loader_of(), 0, 1)
    loader = loader_of(*arguments, **options)
    before = loader.state_dict()
    with pytest.raises(StateError, match=re.escape(words)):
        loader.load_state_dict(state)
    assert loader.state_dict() == before
    loader.load_state_dict(state, mixture="continue")
    assert len(steps(loader)) == (options.get("num_samples", 48) - 24) // 24
    with pytest.raises(StateError, match="the state belongs to another loader"):
        loader.load_state_dict(state)


def test_other_differences_are_not_continued():
    state = stopped_at(loader_of(), 0, 1)
    with pytest.raises(StateError, match="the global batch size was 24 when it was saved and is 48"):
        loader_of(batch=48).load_state_dict(state, mixture="continue")
    with pytest.raises(StateError, match="the order was 'mixture 24' when it was saved and is 'mixture 8'"):
        loader_of(block=8).load_state_dict(state)
    with pytest.raises(ConfigError, match="mixture must be 'continue' or None, got mixture='go on'"):
        loader_of().load_state_dict(state, mixture="go on")
    with pytest.raises(StateError, match="'mixture' unknown"):
        plain = DataLoader(range(70), batch_sampler=DistributedBatchSampler(range(70), 24, seed=7))
        plain.load_state_dict(state, mixture="continue")


stages = st.tuples(
    st.dictionaries(st.sampled_from("abcd"), st.sampled_from([0.01, 1, 2, 30]), min_size=1),  # weights
    st.dictionaries(st.sampled_from("abcd"), st.integers(1, 3)),  # added to the lengths
    st.integers(1, 4),  # steps in an epoch
    st.integers(0, 6),  # steps until the next change
)


@pytest.mark.filterwarnings("ignore:sources of the mixture")
@settings(max_examples=10)
@given(changes=st.lists(stages, min_size=2, max_size=4), seed=st.integers(0, 99))
def test_sources_go_on_where_they_were_whatever_changes_and_a_second_resume_is_exact(changes, seed):
    lengths, drawn, state, epochs = {"a": 9, "b": 5, "c": 13}, [], None, defaultdict(list)
    expected: dict[str, list[int]] = {}  # what a source is to give, from its last change on
    given: dict[str, list[int]] = defaultdict(list)

    for weights, added, num_steps, until in changes:
        before = dict(lengths)
        lengths |= {name: lengths.get(name, 4) + more for name, more in added.items() if name in weights}
        lengths |= {name: 6 for name in weights if name not in lengths}

        def make(weights: Any = weights, sizes: Any = None, length: int = 4 * num_steps) -> DataLoader[Any]:
            mixture = mixture_of(weights, dict(sizes), num_samples=length)
            return DataLoader(mixture, batch_sampler=DistributedBatchSampler(mixture, 4, seed=seed))

        loader = make(sizes=lengths)
        if state is not None:
            loader.load_state_dict(state, mixture="continue")
        for name, length in lengths.items():
            if length != before.get(name) or name not in expected:
                # It begins its next epoch.
                epochs[name] += [None] * -(-len(given[name]) // before.get(name, 1))
                given[name] = []
                orders = (_order_of_source(seed, len(epochs[name]) + more, name, length) for more in range(15))
                expected[name] = [int(index) for order in orders for index in order.at(np.arange(length))]
        batches = iter(batch for _ in itertools.count() for batch in loader)
        taken = [next(batches).tolist() for _ in range(until)]
        state = pickle.loads(pickle.dumps(loader.state_dict()))
        again = make(sizes=dict(reversed(lengths.items())))
        again.load_state_dict(state)
        assert drawn_of(again, 20) == list(
            itertools.islice(itertools.chain.from_iterable(b.tolist() for b in batches), 20)
        )
        drawn += taken
        for sample in itertools.chain(*taken):
            given[chr(97 + sample // 1000)].append(sample % 1000)
        for name, own in given.items():
            assert own == expected[name][: len(own)]
    counts = again.dataset.counts(4 * len(drawn))
    assert {name: count for name, count in counts.items() if count} == Counter(
        chr(97 + sample // 1000) for sample in itertools.chain(*drawn)
    )


@pytest.mark.parametrize("block", [3, 16, 100])
@pytest.mark.parametrize("make", ["batches", "rows"])
def test_a_change_within_a_block_holds_from_its_end(block, make):
    def loader_with(weights: Any) -> DataLoader[Any]:
        mixture = mixture_of(weights, block=block, num_samples=120)
        if make == "rows":
            return DataLoader(mixture, 4, sampler=DistributedSampler(mixture, 1, 0, seed=7))
        return DataLoader(mixture, batch_sampler=DistributedBatchSampler(mixture, 4, seed=7))

    samples: list[int] = []
    state = loader_with({"a": 1, "b": 1, "c": 0}).state_dict()
    for turn, weights in enumerate([{"a": 1, "b": 1, "c": 0}, {"c": 1}, {"a": 9, "b": 1, "c": 5}]):
        loader = loader_with(weights)
        loader.load_state_dict(state, mixture="continue")
        batches = iter(loader)
        samples += itertools.chain(*(next(batches).tolist() for _ in range(5 + turn)))
        state = loader.state_dict()
        again = loader_with(weights)
        again.load_state_dict(state)
        rest = [batch.tolist() for batch in batches]
        assert steps(again) == rest
    samples += itertools.chain(*rest)
    assert len(samples) == 120
    for name, size in SIZES.items():
        own = [sample % 1000 for sample in samples if sample // 1000 == ord(name) - 97]
        orders = (_order_of_source(7, epoch, name, size).at(np.arange(size)).tolist() for epoch in range(20))
        assert own == list(itertools.chain(*orders))[: len(own)]


def test_a_block_under_way_that_the_new_mixture_cannot_finish_is_an_error():
    state = stopped_at(loader_of(block=32), 0, 1)
    with pytest.raises(StateError, match="a block or a window that has samples of 'a', of which 40 were there and 39"):
        loader_of(WEIGHTS, {**SIZES, "a": 39}, block=32).load_state_dict(state, mixture="continue")
    with pytest.raises(
        StateError, match=r"num_samples was 48 and is 24, .* within the last block .* give num_samples=48"
    ):
        loader_of(block=32, num_samples=24).load_state_dict(state, mixture="continue")


def test_a_source_of_another_length_begins_its_next_epoch_with_a_warning():
    state = stopped_at(loader_of(), 0, 1)
    loader = loader_of(WEIGHTS, {**SIZES, "b": 21})
    with pytest.warns(UserWarning, match=r"sources of the mixture have other lengths .*: b"):
        loader.load_state_dict(state, mixture="continue")
    assert [sample % 1000 for sample in drawn_of(loader, 200) if sample // 1000 == 1][:21] == _order_of_source(
        7, 1, "b", 21
    ).at(np.arange(21)).tolist()


def test_a_removed_source_that_comes_back_goes_on_where_it_was():
    both, alone = ({"a": 1, "b": 1}, {"a": 40, "b": 20}), ({"a": 1}, {"a": 40})
    state, samples = None, []
    for arguments in (both, alone, both):
        loader = loader_of(*arguments, batch=8)
        if state is not None:
            loader.load_state_dict(state, mixture="continue")
        samples += next(iter(loader)).tolist()
        state = loader.state_dict()
    of_b = [sample - 1000 for sample in samples if sample >= 1000]
    assert of_b == _order_of_source(7, 0, "b", 20).at(np.arange(len(of_b))).tolist()
    assert len(of_b) == 8


def test_an_epoch_before_the_mixture_was_continued_is_an_error():
    loader = loader_of(num_samples=72)
    loader.load_state_dict(stopped_at(loader_of(), 2, 1), mixture="continue")
    loader.set_epoch(1)
    with pytest.raises(ConfigError, match="epoch must be at least 2, which begins with draw 96 of the mixture"):
        steps(loader)


def test_a_new_loader_of_a_continued_mixture_begins_at_its_beginning():
    mixture = mixture_of({"a": 1, "b": 3}, num_samples=72)

    def loader_with(mixture: Mixture) -> DataLoader[Any]:
        return DataLoader(mixture, batch_sampler=DistributedBatchSampler(mixture, 24, seed=7))

    loader_with(mixture).load_state_dict({**stopped_at(loader_of(), 2, 1), "tail": "drop"}, mixture="continue")
    assert steps(loader_with(mixture)) == steps(loader_with(mixture_of({"a": 1, "b": 3}, num_samples=72)))


def test_a_limit_that_is_lower_than_what_was_drawn_ends_a_source_at_once():
    state = stopped_at(loader_of({"a": 1, "c": 1}), 0, 1)
    loader = loader_of({"a": 1, "c": 1}, max_epochs={"c": 1})
    loader.load_state_dict(state, mixture="continue")
    assert all(sample < 1000 for sample in drawn_of(loader, 100))


@pytest.mark.parametrize(
    "record",
    [
        None,
        [],
        [0, 0, 0, 48],
        [0, 0, 0, 0, [0, "a", 1.0, 40]],
        [0, 0, -1, 48, [0, "a", 1.0, 40]],
        [0, 0, 0, 48, [1, "a", 1.0, 40]],
        [9, 0, 0, 48, [0, "a", 1.0, 40]],
        [0, 0, 0, "48", [0, "a", 1.0, 40]],
        [0, 0, 0, 48, [0, "a", 1.0, 40], [0, "a", 1.0, 40]],
        [0, 0, 0, 48, [0, "a", 1.0]],
        [0, 0, 0, 48, [0, 1.0]],
        [0, 0, 0, 48, [0, "a", 1.0, 40], [9, 0.5, 0.5]],
        [0, 0, 0, 48, [0, "a", 1, 40]],
        [0, 0, 0, 48, [0, "a", float("nan"), 40]],
        [0, 0, 0, 48, [0, "a", 0.0, 40]],
        [0, 0, 0, 48, [0, "a", 1.0, 0]],
        [0, 0, 0, 48, [0, "a", 1.0, [40, -1]]],
        [0, 0, 0, 48, [0, 5, 1.0, 40]],
        [0, 0, 0, 48, [True, "a", 1.0, 40]],
    ],
)
@pytest.mark.parametrize("how", [None, "continue"])
def test_a_damaged_record_is_a_state_error(record, how):
    state = loader_of().state_dict()
    assert state["mixture"] == [0, 0, 0, 48, [0, "a", "b", "c", 0.5, 0.25, 0.25, 40, 20, 10]]
    with pytest.raises(StateError, match="the state is damaged: its mixture is"):
        loader_of().load_state_dict({**state, "mixture": record}, mixture=how)


def test_ranks_that_mix_otherwise_are_told_so(tmp_path):
    def body(rank: int) -> Any:
        same = mixture_of()
        alike = steps(DataLoader(same, batch_sampler=DistributedBatchSampler(same, 8, seed=1)))
        other = mixture_of({"a": 1 + rank, "b": 1, "c": 1})
        with pytest.raises(RankMismatch, match=r"mixture is .* on rank [01] and .* on rank"):
            iter(DataLoader(other, batch_sampler=DistributedBatchSampler(other, 8, seed=1)))
        return alike

    first, second = run_ranks(body, tmp_path)
    sampler = DistributedBatchSampler(mixture_of(), 8, seed=1)
    assert [a + b for a, b in zip(first, second, strict=True)] == steps(DataLoader(mixture_of(), batch_sampler=sampler))


def test_packs_of_the_window_under_way_stay_and_the_next_window_has_the_new_weights():
    def make(weights: Any, names: str = "ab") -> DataLoader[Any]:
        sizes = {name: SIZES[name] for name in names}
        lengths = {name: np.arange(size) % 5 + 1 for name, size in sizes.items()}
        mixture = mixture_of(weights, sizes, lengths=lengths, num_samples=64, block=8)
        sampler = PackedBatchSampler(mixture, 10, packs_per_step=2, window=16, seed=1, tail="short")
        return DataLoader(mixture, batch_sampler=sampler)

    whole, state = steps(make({"a": 1, "b": 1})), stopped_at(make({"a": 1, "b": 1}), 0, 2)
    end = next(number for number in range(len(whole)) if sum(map(len, whole[:number])) == 16)
    assert end > 3
    loader = make({"a": 1})
    loader.load_state_dict(state, mixture="continue")
    batches = iter(loader)
    taken = [next(batches).tolist() for _ in range(end)]
    middle = loader.state_dict()
    rest = [batch.tolist() for batch in batches]
    assert taken[: end - 2] == whole[2:end]
    later = list(itertools.chain(*taken[end - 2 :], *rest))
    assert len(later) == 48
    assert all(sample < 1000 for sample in later)
    again = make({"a": 1})
    again.load_state_dict(middle)
    assert steps(again) == rest
    with pytest.raises(
        StateError, match="has samples of 'b', of which 20 were there and 0 are: keep them, with weight 0"
    ):
        make({"a": 1}, "a").load_state_dict(state, mixture="continue")
