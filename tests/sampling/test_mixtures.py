"""The draws of a mixture: quotas, sources' own orders and epochs, limits, and the samplers that take them."""

from __future__ import annotations

import itertools
import math
import pickle
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.datasets import Noisy, Sized
from torch.utils.data import ConcatDataset, RandomSampler, Subset, WeightedRandomSampler

import fastload
from fastload import ConfigError, DataLoader, DistributedBatchSampler, DistributedSampler, Mixture
from fastload.sampling.mixture_order import MixtureOrder, _order_of_source
from fastload.sampling.quotas import END, Quotas

weights = st.floats(1e-9, 1.0) | st.sampled_from([1e-9, 1e-300, 1.0])
seeds = st.integers(-(2**127), 2**127 - 1)


def by_fractions(weights: list[float], draws: int) -> list[int]:
    """Return the quotas of so many draws, one node of the tree after the other."""
    total = sum(map(Fraction, weights))
    whole = [max(1, math.floor(weight * END / total)) for weight in map(Fraction, weights)]
    order = sorted(range(len(weights)), key=lambda place: -whole[place])
    whole[order[0]] += END - sum(whole)
    counts = [0] * len(weights)

    def divide(places: list[int], draws: int) -> None:
        if len(places) == 1:
            counts[places[0]] = draws
            return
        both = sum(whole[place] for place in places)
        sums = list(itertools.accumulate(whole[place] for place in places))
        cut = min(range(1, len(places)), key=lambda cut: abs(2 * sums[cut - 1] - both))
        share = math.floor(Fraction(END * sums[cut - 1], both) + Fraction(1, 2))
        left = math.floor(Fraction(draws * share, END) + Fraction(1, 2))
        divide(places[:cut], left)
        divide(places[cut:], draws - left)

    divide(order, draws)
    return counts


@given(weights=st.lists(weights, min_size=1, max_size=12), draws=st.integers(0, END - 1))
def test_quotas_are_those_of_exact_arithmetic(weights, draws):
    assert Quotas(weights).counts(np.array([draws]))[0].tolist() == by_fractions(weights, draws)


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), num=st.integers(1, 1000), spread=st.floats(0, 10), first=st.integers(0, 10**12))
def test_quotas_sum_rise_and_are_off_by_less_than_three_at_any_prefix(seed, num, spread, first):
    drawn = np.exp(np.random.default_rng(seed).normal(size=num) * spread)
    shares = [Fraction(max(weight, drawn.max() * 1e-9)) for weight in drawn.tolist()]
    draws = np.arange(first, first + 300)
    counts = Quotas([float(share) for share in shares]).counts(draws)
    assert counts.sum(axis=1).tolist() == draws.tolist()
    assert (np.diff(counts, axis=0) >= 0).all()
    total = sum(shares)
    exact = np.array(
        [float(share * first / total - int(count)) for share, count in zip(shares, counts[0], strict=True)]
    )
    later = np.array([float(share / total) for share in shares]) * np.arange(300)[:, None]
    assert np.abs(exact + later - (counts - counts[0])).max() < 3


# Never change these: they say that next year's mixtures are this year's.
PINNED_QUOTAS = [
    [1, 0, 0, 0, 0],
    [4, 2, 1, 0, 0],
    [154, 64, 25, 10, 3],
    [600000000001, 250000000000, 100000000000, 40000000000, 10000000000],
]
PINNED = [[1, 3, 7, 4, 2, 0, 1, 5, 0, 3], [1, 3, 6, 4, 1, 5, 2, 0, 3, 7], [0, 6, 2, 3, 1, 4, 1, 4, 5, 3]]


def test_quotas_and_draws_are_the_pinned_ones():
    assert Quotas([0.6, 0.25, 0.1, 0.04, 0.01]).counts(np.array([1, 7, 256, 10**12 + 1])).tolist() == PINNED_QUOTAS
    mixture = Mixture({"web": Sized(5), "code": Sized(3)}, {"web": 3, "code": 1}, num_samples=10)
    assert mixture.order(1, 4).at(0, np.arange(10)).tolist() == PINNED[0]
    assert mixture.order(1, 4).at(7, np.arange(10)).tolist() == PINNED[1]
    assert mixture.order(-1, 3).at(0, np.arange(10)).tolist() == PINNED[2]


@st.composite
def mixtures(draw: Any) -> Mixture:
    """Draw a mixture of up to six sources, with a schedule, limits, and epochs of any length."""
    names = draw(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6, unique=True))
    some = st.dictionaries(st.sampled_from(names), weights, min_size=1)
    starts = sorted({0, *draw(st.lists(st.integers(1, 80), max_size=2))})
    return Mixture(
        {name: Sized(draw(st.integers(1, 30))) for name in names},
        [(start, draw(some)) for start in starts],
        max_epochs=draw(st.dictionaries(st.sampled_from(names), st.integers(1, 4), max_size=len(names) - 1)),
        num_samples=1,
        block=draw(st.sampled_from([1, 3, 8, 64])),
    )


def drawn(mixture: Mixture, seed: int, number: int) -> list[tuple[str, int]]:
    """Return the first draws, (source, index in it), fewer where all sources are at their limits."""
    order = mixture.order(seed)
    most = min(number, sum(mixture.counts(0).values()) + sum(mixture.plan.counts(number).values()))
    order = order.with_plan(order.plan, max(1, most))
    starts = dict(zip(mixture.names, [0, *mixture.cumulative_sizes], strict=False))
    indices = order.at(0, np.arange(most))
    names = [mixture.names[place] for place in mixture.source_of(indices)]
    return [(name, index - starts[name]) for name, index in zip(names, indices.tolist(), strict=True)]


def own_order(seed: int, name: str, length: int, number: int) -> list[int]:
    """Return the first draws of a source: its keyed order, epoch after epoch."""
    epochs = (_order_of_source(seed, epoch, name, length).at(np.arange(length)) for epoch in itertools.count())
    return list(itertools.islice((int(index) for order in epochs for index in order), number))


@given(mixture=mixtures(), seed=seeds)
def test_a_sources_draws_are_its_keyed_order_whatever_else_there_is(mixture, seed):
    found = drawn(mixture, seed, 150)
    for name, dataset in zip(mixture.names, mixture.datasets, strict=True):
        own = [index for source, index in found if source == name]
        assert own == own_order(seed, name, len(dataset), len(own))
    assert Counter(name for name, _ in found) == Counter(mixture.plan.counts(150))
    for name, share in mixture.plan.stages[0].sources.items():
        assert not share.limit or mixture.plan.counts(10**6)[name] <= share.limit * share.length


@given(mixture=mixtures(), seed=seeds, epoch_length=st.integers(1, 50), data=st.data())
def test_random_access_equals_sequential_access_across_stages_limits_and_epochs(mixture, seed, epoch_length, data):
    most = min(150, sum(mixture.plan.counts(150).values()))
    order = mixture.order(seed).with_plan(mixture.plan, epoch_length)
    draws = np.array(data.draw(st.lists(st.integers(0, max(0, most // epoch_length * epoch_length - 1)), max_size=20)))
    if most < epoch_length or not len(draws):
        return
    epochs = [order.at(epoch, np.arange(epoch_length)) for epoch in range(most // epoch_length)]
    whole = np.concatenate(epochs)
    again = pickle.loads(pickle.dumps(order))  # without what it has computed
    for epoch in set((draws // epoch_length).tolist()):
        inside = draws[draws // epoch_length == epoch]
        assert again.at(epoch, inside % epoch_length).tolist() == whole[inside].tolist()


@given(mixture=mixtures(), seed=seeds)
def test_the_place_of_a_source_in_the_dict_does_not_matter(mixture, seed):
    backwards = Mixture(dict(reversed(list(zip(mixture.names, mixture.datasets, strict=True)))), num_samples=1, block=8)
    backwards.plan, backwards.block = mixture.plan, mixture.block
    assert drawn(backwards, seed, 60) == drawn(mixture, seed, 60)


def test_each_global_batch_has_its_quota_of_each_source_in_random_order():
    shares = {"a": 0.6, "b": 0.25, "c": 0.1, "d": 0.05}
    mixture = Mixture({name: Sized(10_000) for name in shares}, shares, num_samples=64 * 100)
    batches = [mixture.source_of(batch) for batch in DistributedBatchSampler(mixture, 64, seed=1)]
    for batch in batches:
        found = np.bincount(batch, minlength=4)
        assert np.abs(found - 64 * np.array(list(shares.values()))).max() < 2
    first = [batch[0] for batch in batches]
    assert Counter(first).most_common(1)[0][0] == 0
    assert len(set(first)) > 2
    together = np.stack(batches) == 3  # no place in the batch is preferred
    assert together.sum(axis=0).max() < 20


def test_blocks_are_not_alike():
    order = Mixture({"a": Sized(10**6), "b": Sized(10**6)}, {"a": 1, "b": 1}, num_samples=1 << 14).order(3, 64)
    sources = (order.at(0, np.arange(1 << 14)) >= 10**6).reshape(-1, 64) * 2.0 - 1
    correlations = (sources @ sources.T)[np.triu_indices(256, 1)] / 8
    assert abs(correlations.mean()) < 0.05
    assert 0.9 < correlations.std() < 1.1


def test_without_weights_an_epoch_is_each_sample_once():
    mixture = Mixture({"a": Sized(13), "b": Sized(5), "c": Sized(1)})
    for epoch in range(3):
        assert sorted(mixture.order(1).at(epoch, np.arange(19)).tolist()) == list(range(19))


@pytest.mark.parametrize(
    ("options", "number"),
    [
        ({"num_samples": "first"}, 41),
        ({"num_samples": "all"}, 199),
        ({"num_samples": "all", "max_epochs": {"b": 1}}, 120),
        ({"num_samples": "first", "max_epochs": 1}, 120),
        ({"num_samples": 7}, 7),
        ({"num_samples": np.int64(7)}, 7),
    ],
)
def test_an_epoch_lasts_as_long_as_num_samples_says(options, number):
    mixture = Mixture({"a": Sized(100), "b": Sized(20)}, {"a": 0.5, "b": 0.5}, **options)
    assert mixture.num_samples == len(DistributedSampler(mixture, 1, 0)) == number


def test_a_source_at_its_limit_leaves_its_share_to_the_others_and_then_there_is_an_end():
    mixture = Mixture({"a": Sized(10), "b": Sized(10)}, {"a": 9, "b": 1}, max_epochs={"a": 2, "b": 5}, num_samples=35)
    assert mixture.counts(25) == {"a": 20, "b": 5}
    assert mixture.counts(70) == {"a": 20, "b": 50}
    order = mixture.order(1)
    assert Counter(order.at(0, np.arange(35)).tolist()) + Counter(order.at(1, np.arange(35)).tolist()) == Counter(
        {**dict.fromkeys(range(10), 2), **dict.fromkeys(range(10, 20), 5)}
    )
    with pytest.raises(ConfigError, match=r"epoch 2 needs draws 70 to 104 .* max_epochs before: {'a': 20, 'b': 50}"):
        order.at(2, np.arange(1))


def test_weights_of_tokens_are_divided_by_the_mean_length_and_alpha_flattens_weights():
    lengths = {"a": [10] * 40, "b": np.array([30] * 40)}
    sources: dict[str, Any] = {"a": Sized(40), "b": Sized(40)}
    mixture = Mixture(sources, {"a": 1, "b": 1}, unit="token", lengths=lengths)
    assert mixture.counts(4) == {"a": 3, "b": 1}
    assert mixture.lengths is not None
    assert mixture.lengths.tolist() == [10] * 40 + [30] * 40
    assert Mixture(sources, unit="token", lengths=lengths).counts(80) == {"a": 40, "b": 40}
    assert Mixture(sources, {"a": 16, "b": 1}, alpha=0.5).counts(50) == {"a": 40, "b": 10}
    assert Mixture(sources, {"a": 16, "b": 1}, alpha=0).counts(50) == {"a": 25, "b": 25}
    assert Mixture(sources, {"a": 16, "b": 0}, alpha=0).counts(50) == {"a": 50, "b": 0}


@pytest.mark.parametrize("huge", [1e308, 10**300, 5e-324])
def test_weights_of_any_size_count(huge):
    mixture = Mixture({"a": Sized(10), "b": Sized(10)}, {"a": huge, "b": huge})
    assert mixture.counts(10) == {"a": 5, "b": 5}
    assert Mixture({"a": Sized(10), "b": Sized(10)}, {"a": 1e300, "b": 1e-300}, num_samples=9).counts(9)["b"] == 0


SOURCES: Any = {"a": Sized(4), "b": Sized(2)}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"datasets": {}}, "datasets must be a dict of at least one dataset by its name, got dict"),
        ({"datasets": [Sized(3)]}, "datasets must be a dict .* got list"),
        ({"datasets": {"a": Mixture({"b": Sized(1)})}}, "datasets must not be mixtures, and 'a' is one: give"),
        ({"datasets": {"a": Sized(0)}}, "datasets must not be empty, and 'a' has no sample; leave it out"),
        ({"datasets": {"a": iter(range(3))}}, "take an index, and 'a' is range_iterator: write"),
        ({"weights": {"a": -1}}, "weights must be finite numbers of at least 0, got -1 for 'a'"),
        ({"weights": {"a": math.nan}}, "got nan for 'a'"),
        ({"weights": {"a": math.inf}}, "got inf for 'a'"),
        ({"weights": {"a": "many"}}, "got 'many' for 'a'"),
        ({"weights": {}}, "weights must not all be 0, got {}"),
        ({"weights": {"a": 0}}, "weights must not all be 0, got {'a': 0}"),
        ({"weights": {"A": 1}}, r"weights must be for the sources \['a', 'b'\], got unknown=\['A'\], missing=\[\]"),
        ({"weights": [1, 2]}, r"weights must be a dict .* or a list of \(draw, such a dict\)"),
        ({"weights": [(5, {"a": 1})]}, "the first of which is 0, got list with draws"),
        ({"weights": [(0, {"a": 1}), (9, {"b": 1}), (9, {"a": 1})]}, "rising draws"),
        ({"alpha": -1}, "alpha must be a number of at least 0, got alpha=-1"),
        ({"alpha": math.nan}, "got alpha=nan"),
        ({"unit": "tokens"}, "unit must be 'sample' or 'token', got unit='tokens'"),
        ({"unit": "token"}, "unit='token' needs lengths"),
        ({"lengths": {"a": [1] * 4}}, r"lengths must be for the sources .* missing=\['b'\]"),
        ({"lengths": {"a": [1] * 4, "b": [1]}}, r"2 integers, one for each of 'b', got list of shape \(1,\)"),
        ({"lengths": {"a": [1] * 4, "b": [[1], [1, 2]]}}, "2 integers, one for each of 'b'"),
        ({"lengths": {"a": [1] * 4, "b": [1, -1]}}, "one for each of 'b', got -1 in place 1"),
        ({"lengths": {"a": [1] * 4, "b": [0.5, 1]}}, "float64"),
        ({"lengths": {"a": [1] * 4, "b": [0, 0]}, "unit": "token"}, r"all lengths of \['b'\] are 0"),
        ({"block": 0}, "block must be an integer of at least 1, got block=0"),
        ({"max_epochs": 0}, r"max_epochs\['a'\] must be an integer of at least 1"),
        ({"max_epochs": {"c": 1}}, r"max_epochs must be for the sources .* unknown=\['c'\]"),
        ({"num_samples": 0}, "num_samples must be 'first', 'all' or an integer of at least 1, got num_samples=0"),
        ({"num_samples": "both"}, "got num_samples='both'"),
        ({"num_samples": 7, "max_epochs": 1}, "num_samples=7 needs draws .* may give {'a': 4, 'b': 2}"),
        ({"num_samples": "all", "weights": [(0, {"a": 1, "b": 1}), (1, {"a": 1})]}, "num_samples='all' needs draws"),
    ],
)
def test_bad_input_is_an_error_that_names_it(options, words):
    with pytest.raises(ConfigError, match=words):
        Mixture(**{"datasets": SOURCES, **options})


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": True},
        {"sampler": RandomSampler(range(6))},
        {"sampler": WeightedRandomSampler([1.0] * 6, 6)},
        {"sampler": torch.utils.data.DistributedSampler(range(6), 2, 0)},
        {"sampler": DistributedSampler(range(6), 2, 0)},
        {"batch_sampler": DistributedBatchSampler(range(6), 2)},
    ],
)
def test_a_loader_whose_sampler_does_not_know_the_mixture_says_what_to_write(options):
    with pytest.raises(
        ConfigError, match=r"which \w+ does not know: write DataLoader\(mixture, .* shuffle=True, seed=1"
    ):
        DataLoader(Mixture(SOURCES), **options)


@pytest.mark.parametrize(
    "options", [{"shuffle": False}, {"order": "block"}, {"weights": [1] * 6}, {"lengths": [1] * 6}]
)
def test_a_mixture_has_no_other_order(options):
    with pytest.raises(ConfigError, match="of a Mixture"):
        DistributedBatchSampler(Mixture(SOURCES), 2, **options)


@pytest.mark.parametrize("tail", ["drop", "short", "pad"])
@pytest.mark.parametrize("num_ranks", [2, 3, 4, 6, 8])
def test_global_batches_are_the_same_on_any_number_of_ranks(num_ranks, tail):
    mixture = Mixture({"a": Sized(40), "b": Sized(30), "c": Sized(7)}, {"a": 1, "b": 2, "c": 0.5}, num_samples=100)
    alone = list(DistributedBatchSampler(mixture, 24, seed=5, tail=tail))
    shares = [
        list(DistributedBatchSampler(mixture, 24, seed=5, tail=tail, rank=rank, world_size=num_ranks))
        for rank in range(num_ranks)
    ]
    assert [list(itertools.chain(*step)) for step in itertools.zip_longest(*shares, fillvalue=())] == alone
    rows = [list(DistributedSampler(mixture, num_ranks, rank, seed=5, tail="short")) for rank in range(num_ranks)]
    alone = list(DistributedSampler(mixture, 1, 0, seed=5))
    assert [index for step in itertools.zip_longest(*rows) for index in step if index is not None] == alone


def test_a_loader_shuffles_by_the_mixture_with_its_batches_as_blocks_and_epoch_after_epoch():
    mixture = Mixture({"a": range(12), "b": range(12, 16)}, {"a": 3, "b": 1}, num_samples=8)  # type: ignore[dict-item]
    loader = DataLoader(mixture, batch_size=4, shuffle=True, seed=1)
    batches = [batch.tolist() for _ in range(4) for batch in loader]
    order = DistributedBatchSampler(mixture, 4, seed=1).epoch_order.order
    assert batches == [
        order.at(epoch, np.arange(8)).reshape(2, 4)[step].tolist() for epoch in range(4) for step in (0, 1)
    ]
    assert len(loader) == 2
    assert "mixture 4" in loader.explain()
    unbatched = DataLoader(mixture, batch_size=None, shuffle=True, seed=1)
    assert Counter(map(int, unbatched)) == Counter(mixture.order(1).at(0, np.arange(8)).tolist())


def test_a_subset_of_a_mixture_and_a_concat_dataset_of_its_sources_have_each_sample_once():
    mixture = Mixture(SOURCES, {"a": 1})
    assert sorted(map(int, DataLoader(Subset(mixture, [1, 5]), shuffle=True, seed=1))) == [1, 1]
    assert sorted(map(int, DataLoader(ConcatDataset(mixture.datasets)))) == [0, 0, 1, 1, 2, 3]


def test_a_sample_of_a_mixture_is_replayed_by_its_position():
    mixture = Mixture({"a": Noisy(12), "b": Noisy(30)}, {"a": 1, "b": 1}, num_samples=24)
    loader = DataLoader(mixture, batch_size=4, shuffle=True, seed=1)
    expected = list(loader)[2][1][1]
    assert fastload.replay(loader, 0, position=9)[1] == expected


@pytest.mark.slow
def test_a_mixture_is_verified():
    mixture = Mixture({"a": Noisy(12), "b": Noisy(30)}, {"a": 1, "b": 1}, num_samples=24)
    loaders = [
        DataLoader(mixture, 4, shuffle=True, seed=1, num_workers=1),
        DataLoader(mixture, batch_sampler=DistributedBatchSampler(mixture, 4, seed=1)),
    ]
    for loader in loaders:
        report = fastload.verify(loader, methods=["fork", "thread"])
        assert report.ok, report
        assert {"workers", "next epoch", "world size", "resume"} <= {check.name for check in report.checks}


def test_substitutes_come_from_sources_that_are_drawn():
    mixture = Mixture({"a": Sized(4), "b": Sized(3), "c": Sized(5)}, [(0, {"a": 1}), (9, {"c": 1})], num_samples=20)
    order: MixtureOrder = mixture.order(1)
    assert order.possible().tolist() == [0, 1, 2, 3, 7, 8, 9, 10, 11]


def test_sources_and_counts_are_told_for_logs():
    mixture = Mixture(SOURCES, {"a": 1, "b": 1}, max_epochs=3)
    assert mixture.source_of(torch.tensor([[0, 3], [4, 5]])).tolist() == [[0, 0], [1, 1]]
    assert mixture.names[mixture.source_of(4)] == "b"
    assert mixture.counts(0) == {"a": 0, "b": 0}
    with pytest.raises(IndexError, match="indices must be in 0 to 5, got 0 to 6"):
        mixture.source_of([0, 6])
    with pytest.raises(ConfigError, match="num_draws must be at most 18"):
        mixture.counts(19)


def test_a_mixture_of_a_thousand_sources_at_a_late_draw():
    mixture = Mixture({f"source {i}": Sized(i + 1) for i in range(1000)}, num_samples=10**6)
    first = mixture.order(1).at(10**9, np.arange(1000))
    assert first.tolist() == mixture.order(1).at(10**9, np.arange(2000))[:1000].tolist()
