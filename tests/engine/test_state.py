"""A loader's state: where it is, to a dict and back."""

from __future__ import annotations

import functools
import io
import itertools
import json
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from determinism_fakes import Drawing, batches, samples, stopped_at
from kit.resuming import assert_resumes, resumed
from torch.utils.data import BatchSampler, DistributedSampler, IterableDataset, RandomSampler, get_worker_info

import fastload
from fastload import DataLoader, DistributedBatchSampler, RankMismatch, StateError

Make = Callable[..., DataLoader[Any]]


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def of_global_batches(**options: Any) -> dict[str, Any]:
    return {"batch_sampler": DistributedBatchSampler(Drawing(), 8, seed=2, **options)}


POSITION: dict[str, Callable[[], dict[str, Any]]] = {
    "shuffled": lambda: {"batch_size": 8, "shuffle": True, "seed": 5},
    "in order": lambda: {"batch_size": 8, "seed": 5},
    "last dropped": lambda: {"batch_size": 8, "shuffle": True, "drop_last": True, "seed": 5},
    "one by one": lambda: {"batch_size": 1, "shuffle": True, "seed": -5},
    "padded steps": lambda: of_global_batches(tail="pad"),
    "weighted steps": lambda: of_global_batches(tail="short", weights=[1.0 + i for i in range(53)]),
    "blocks": lambda: of_global_batches(order="block", block_size=5),
    "buckets": lambda: of_global_batches(lengths=[i % 9 for i in range(53)], bucket_window=3, tail="short"),
    "a rank": lambda: {"batch_size": 5, "sampler": fastload.DistributedSampler(Drawing(), 2, 1, seed=2)},
    "a rank, own seed": lambda: {"batch_size": 5, "seed": 9, "sampler": fastload.DistributedSampler(Drawing(), 2, 1)},
}
FAST_FORWARD: dict[str, Callable[[], dict[str, Any]]] = {
    "torch's distributed": lambda: {"batch_size": 5, "seed": 3, "sampler": DistributedSampler(Drawing(), 2, 1)},
    "a generator": lambda: {"batch_size": 8, "seeding": "sample", "shuffle": True, "generator": generator(3)},
    "two generators": lambda: {
        "batch_size": 8,
        "seeding": "sample",
        "generator": generator(4),
        "sampler": RandomSampler(Drawing(), replacement=True, num_samples=40, generator=generator(3)),
    },
    "a batch sampler": lambda: {
        "batch_sampler": BatchSampler(RandomSampler(Drawing(), generator=generator(3)), 7, False),
        "generator": generator(1),
        "seeding": "sample",
    },
    "in order, a generator": lambda: {"batch_size": 8, "seeding": "sample", "generator": generator(3)},
}
ALL = {**POSITION, **FAST_FORWARD}


def loader_of(name: str, num_workers: int = 0, **options: Any) -> DataLoader[Any]:
    dataset = Drawing(19) if name == "one by one" else Drawing()  # what every step costs grows with their square
    return DataLoader(dataset, num_workers=num_workers, **ALL[name](), **options)


@pytest.mark.parametrize("name", ALL)
def test_without_workers_every_step_of_two_epochs_can_be_resumed(name):
    steps = range(len(batches(loader_of(name))) + 1)
    assert_resumes(functools.partial(loader_of, name), itertools.product((0, 1), steps))


@pytest.mark.parametrize(
    ("name", "before", "after"), [(name, *[(0, 2), (1, 0)][place % 2]) for place, name in enumerate(POSITION)]
)
def test_with_other_workers_the_rest_is_what_it_would_have_been(name, before, after):
    later = functools.partial(loader_of, name, after, persistent_workers=after > 0)
    assert_resumes(functools.partial(loader_of, name, before), ((0, 2), (1, 3)), later)


@pytest.mark.parametrize(("name", "persistent"), [(name, place % 2 == 0) for place, name in enumerate(FAST_FORWARD)])
def test_samplers_that_are_not_ours_resume_with_workers_too(name, persistent):
    make = functools.partial(loader_of, name, 2, persistent_workers=persistent)
    assert_resumes(make, ((0, 3), (1, 1)) if persistent else ((1, 1),))


@pytest.mark.parametrize("name", ALL)
def test_a_state_that_was_loaded_is_the_state_until_the_next_iteration(name):
    state = stopped_at(loader_of(name), 1, 2)
    resumed = loader_of(name)
    resumed.load_state_dict(state)
    again = resumed.state_dict()
    assert again.keys() == state.keys()
    for key, value in state.items():
        same = torch.equal(value, again[key]) if isinstance(value, torch.Tensor) else value == again[key]
        assert same, key


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("holds", ["nothing", "a generator", "a list with a generator"])
def test_a_state_has_the_same_generators_before_an_epoch_and_in_it(shuffle, holds):
    loader = DataLoader(Drawing(), 8, shuffle=shuffle)
    held = {"nothing": None, "a generator": generator(3), "a list with a generator": [generator(3)]}
    vars(loader.sampler)["held"] = held[holds]
    before = loader.state_dict()
    next(iter(loader))
    assert loader.state_dict().keys() == before.keys()
    assert any("held" in name for name in before) == (holds != "nothing")
    assert ("generator.torch" in before) == shuffle


@pytest.mark.parametrize("name", POSITION)
def test_a_state_of_a_known_order_is_small_and_plain(name):
    state = stopped_at(loader_of(name), 1, 2)
    assert state["kind"] == "position"
    assert len(pickle.dumps(state)) < 250
    assert json.loads(json.dumps(state)) == state
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    assert torch.load(buffer, weights_only=True) == state


def _at_epoch(loaders: list[DataLoader[Any]], epoch: int) -> list[DataLoader[Any]]:
    for loader in loaders:
        loader.set_epoch(epoch)
    return loaders


@pytest.mark.parametrize("before", [1, 2, 3])
@pytest.mark.parametrize("after", [1, 2, 5])
def test_interleaved_ranks_lose_and_repeat_no_sample_when_their_number_changes(before, after):
    def rank_of(world_size: int, rank: int) -> DataLoader[Any]:
        sampler = fastload.DistributedSampler(Drawing(), world_size, rank, seed=1, tail="short")
        return DataLoader(Drawing(), 4, sampler=sampler)

    first = [rank_of(before, rank) for rank in range(before)]
    seen = [row for loader in first for batch in _some(loader, 2) for row in batch]
    state = first[0].state_dict()
    for rank in range(after):
        loader = rank_of(after, rank)
        loader.load_state_dict(state)
        seen += [row for batch in batches(loader) for row in batch]
    assert sorted(row[0] for row in seen) == list(range(53))
    whole = {row for batch in batches(rank_of(1, 0)) for row in batch}
    assert set(seen) == whole


def _some(loader: DataLoader[Any], number: int) -> list[Any]:
    iterator = iter(loader)
    return [samples(next(iterator)) for _ in range(number)]


def test_a_batch_that_ended_in_an_error_counts_as_delivered():
    class Failing(Drawing):
        def __getitem__(self, index: int) -> Any:
            if index == 9:
                raise KeyError(index)
            return super().__getitem__(index)

    for num_workers in (0, 2):
        loader = DataLoader(Failing(), 8, seed=0, num_workers=num_workers)
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(KeyError):
            next(iterator)
        assert loader.state_dict()["position"] == 16
        expected = samples(next(iterator))
        resumed = DataLoader(Failing(), 8, seed=0)
        resumed.load_state_dict({**loader.state_dict(), "position": 16})
        assert samples(next(iter(resumed))) == expected
        loader.close()


def test_setting_the_resumed_epoch_keeps_the_place_and_another_epoch_begins_at_its_start():
    whole = [batches(loader) for loader in [loader_of("shuffled")] for _ in range(3)]
    state = stopped_at(loader_of("shuffled"), 1, 3)
    for epoch, expected in ((1, whole[1][3:]), (2, whole[2]), (0, whole[0])):
        resumed = loader_of("shuffled")
        resumed.load_state_dict(state)
        resumed.set_epoch(epoch)
        assert (resumed.state_dict()["epoch"], resumed.state_dict()["position"]) == (epoch, 24 if epoch == 1 else 0)
        assert batches(resumed) == expected


def test_step_a_million_of_a_billion_samples_is_there_at_once():
    def make() -> DataLoader[Any]:
        return DataLoader(range(10**9), batch_sampler=DistributedBatchSampler(range(10**9), 256, seed=1))

    state = {**make().state_dict(), "position": 256_000_000}
    resumed = make()
    begun = time.process_time()
    resumed.load_state_dict(state)
    batch = next(iter(resumed))
    # The benchmark has the figure (below 10 ms); this only tells a list of a billion from none.
    assert time.process_time() - begun < 2
    sampler = resumed.batch_sampler.sampler
    expected = sampler.epoch_order.order.at(0, np.arange(256_000_000, 256_000_256))
    assert batch.tolist() == expected.tolist()


GOOD = {"batch_size": 8, "shuffle": True, "seed": 5}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: None, "must be the dict that state_dict\\(\\) returned, got NoneType"),
        (lambda state: [state], "got list"),
        (lambda state: {}, "no state of a fastload loader: it has no 'version', but nothing"),
        (lambda state: {"_num_yielded": 3}, "it has no 'version', but '_num_yielded'"),
        (lambda state: {**state, "version": 1}, "has version 1, and this fastload reads version 2"),
        (lambda state: {**state, "version": True}, "has version True"),
        (lambda state: {**state, "kind": "iterable"}, "of kind 'iterable', and this loader's is 'position'"),
        (lambda state: {key: state[key] for key in list(state)[:-1]}, "the state is damaged: 'position' missing"),
        (lambda state: {**state, "model": 1}, "the state is damaged: 'model' unknown"),
        (lambda state: {**state, "seed": 6}, "the seed was 6 when it was saved and is 5 now"),
        (lambda state: {**state, "length": 54}, "the number of samples was 54 when it was saved and is 53 now"),
        (lambda state: {**state, "order": "block 4"}, "the order was 'block 4' when it was saved and is 'keyed' now"),
        (lambda state: {**state, "tail": "pad"}, "the tail was 'pad' when it was saved and is 'short' now"),
        (
            lambda state: {**state, "batch_size": 4, "global_batch_size": 4},
            "the batch size was 4 when it was saved and is 8 now; the global batch size was 4",
        ),
        (lambda state: {**state, "position": -1}, "position must be an integer of at least 0, got position=-1"),
        (lambda state: {**state, "position": 1.0}, "position must be an integer"),
        (lambda state: {**state, "position": 61}, "position must be at most 53"),
        (lambda state: {**state, "epoch": True}, "epoch must be an integer"),
    ],
)
def test_a_state_that_is_none_of_this_loaders_is_refused_and_nothing_changes(change, message):
    state = stopped_at(DataLoader(Drawing(), **GOOD), 0, 3)
    loader = DataLoader(Drawing(), **GOOD)
    iterator = iter(loader)
    next(iterator)
    before = loader.state_dict()
    with pytest.raises(StateError, match=message):
        loader.load_state_dict(change(state))
    assert loader.state_dict() == before
    assert batches(loader) == batches(_at_epoch([DataLoader(Drawing(), **GOOD)], 1)[0])


class Stream(IterableDataset[int]):
    """Numbers that say which replica they are of; one replica is shorter than another."""

    def __init__(self, length: int = 41) -> None:
        self.length = length
        self.place = 0

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info is not None else (0, 1)
        while self.place < self.length - 10 * worker:
            self.place += 1
            yield (self.place - 1) * workers + worker
        self.place = 0


class StatefulStream(Stream):
    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


@pytest.mark.parametrize(
    ("batch_size", "num_workers", "persistent"),
    [(4, 0, False), (None, 0, False), (4, 2, False), (4, 3, True), (None, 3, True)],
)
def test_an_iterable_dataset_with_a_state_goes_on_where_it_was(batch_size, num_workers, persistent):
    def make() -> DataLoader[Any]:
        return DataLoader(StatefulStream(), batch_size, num_workers=num_workers, persistent_workers=persistent)

    def numbers(loader: Any) -> list[Any]:
        return [batch.tolist() if batch_size else batch for batch in loader]

    steps = (0, 1, 5, len(numbers(make()))) if not num_workers else (5, 7)
    assert_resumes(make, ((0, step) for step in steps), view=numbers)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("terminal", [False, True])
def test_an_iterable_dataset_without_a_state_is_read_again_with_a_warning(num_workers, terminal, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)

    def make() -> DataLoader[Any]:
        return DataLoader(Stream(), 4, num_workers=num_workers)

    whole = [batch.tolist() for batch in make()]
    loader = resumed(make, 0, 5)
    with pytest.warns(UserWarning, match="does not say where the dataset was, so its first 5 batches are loaded again"):
        rest = [batch.tolist() for batch in loader]
    assert rest == whole[5:]
    shown = capsys.readouterr().err
    assert "reading again" in shown if terminal else shown == ""


def test_an_iterable_dataset_that_has_become_shorter_is_an_error():
    state = stopped_at(DataLoader(Stream(), 4), 0, 9)
    resumed = DataLoader(Stream(10), 4)
    resumed.load_state_dict(state)
    with (
        pytest.warns(UserWarning, match="loaded again"),
        pytest.raises(StateError, match="saved after 9 batches, but the dataset ends before them now"),
    ):
        list(resumed)


OF_REPLICAS = "workers must be \\(\\) or hold the state of each replica"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("padded steps", {"position": 12}, "position must be a multiple of the global batch size 8, got position=12"),
        ("a generator", {"generator.loader": torch.zeros(3)}, "generator.loader must be the state of a"),
        ("a generator", {"generator.loader": "none"}, "generator.loader must be the state of a"),
        ("a generator", {"base_seed": None}, "base_seed must be an integer"),
        ("a generator", {"batches": -2}, "batches must be an integer of at least 0"),
        ("a stream", {"num_workers": 2}, "num_workers was 2 when it was saved and is 3 now"),
        ("a stream", {"workers": [1]}, OF_REPLICAS),
        ("a stream", {"workers": [{"states": [None], "next": 0}]}, OF_REPLICAS),
        ("a stream", {"workers": ({"states": [None] * 3, "next": 3},)}, OF_REPLICAS),
        ("a stream", {"workers": ({"states": [7] * 3, "next": 0},)}, OF_REPLICAS),
    ],
)
def test_values_that_no_loader_of_its_kind_would_have_saved_are_refused(name, change, message):
    loader = DataLoader(StatefulStream(), 4, num_workers=3) if name == "a stream" else loader_of(name)
    with pytest.raises(StateError, match=message):
        loader.load_state_dict({**loader.state_dict(), **change})


@pytest.mark.parametrize("options", [{"num_workers": 2}, {"num_workers": 2, "worker_method": "thread"}, {}], ids=str)
def test_an_interrupt_is_no_batch(options, monkeypatch):
    loader = DataLoader(Drawing(), 4, seed=0, shuffle=True, **options)
    iterator = iter(loader)
    first = samples(next(iterator))
    stage = iterator.source._fetcher if loader.num_workers == 0 else iterator.source
    name = "fetch" if loader.num_workers == 0 else "next"

    def interrupted(*_: Any) -> Any:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(stage, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    state = loader.state_dict()
    assert state["position"] == 4
    if loader.num_workers == 0:  # torch goes on with the batch behind the interrupted one
        third = samples(next(iterator))
        assert third == batches(DataLoader(Drawing(), 4, seed=0, shuffle=True))[2]
        assert loader.state_dict()["position"] == 12
    resumed = DataLoader(Drawing(), 4, seed=0, shuffle=True)
    resumed.load_state_dict(state)
    assert [first, *batches(resumed)] == batches(DataLoader(Drawing(), 4, seed=0, shuffle=True))
    loader.close()


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}], ids=str)
def test_an_epoch_that_could_not_begin_begins_the_next_time(options, monkeypatch):
    def make() -> DataLoader[Any]:
        return DataLoader(Drawing(), 4, seed=0, shuffle=True, **options)

    loader = make()
    whole = [batches(loader) for _ in range(3)]
    loader.close()
    resumed = make()
    resumed.load_state_dict(stopped_at(make(), 1, 3))
    for expected in (whole[1][3:], whole[2]):
        state = resumed.state_dict()
        with monkeypatch.context() as patch:
            patch.setattr("fastload.measurement.measurement.Measurement.epoch_begins", raise_mismatch)
            with pytest.raises(RankMismatch):
                iter(resumed)
        assert resumed.state_dict() == state
        assert batches(resumed) == expected
    resumed.close()


def raise_mismatch(*_: Any) -> None:
    raise RankMismatch("rank 1 has another seed")


def test_without_order_a_state_in_the_middle_of_an_epoch_warns():
    loader = DataLoader(Drawing(), 4, seed=0, num_workers=2, in_order=False)
    loader.state_dict()
    iterator = iter(loader)
    next(iterator)
    with pytest.warns(UserWarning, match="in_order=False.*may lose and repeat"):
        loader.state_dict()
    list(iterator)
    assert loader.state_dict()["epoch"] == 1


def test_the_end_of_a_padded_epoch_is_the_end_on_any_number_of_ranks():
    def rank_of(world_size: int, batch_size: int) -> DataLoader[Any]:
        return DataLoader(Drawing(9), batch_size, sampler=fastload.DistributedSampler(Drawing(9), world_size, 0))

    saved = rank_of(2, 2)
    iterator = iter(saved)
    for _ in range(3):
        next(iterator)
    state = saved.state_dict()
    assert state["position"] == 10
    resumed = rank_of(1, 4)
    resumed.load_state_dict(state)
    assert batches(resumed) == []


def test_an_epoch_that_is_set_at_the_sampler_is_in_the_state():
    by_sampler = loader_of("a rank")
    by_sampler.sampler.set_epoch(4)
    assert by_sampler.state_dict()["epoch"] == 4


def test_a_class_derived_from_our_sampler_resumes_on_any_number_of_ranks_as_ours_does():
    class Derived(DistributedBatchSampler):
        pass

    def make(kind: type[DistributedBatchSampler], world_size: int) -> DataLoader[Any]:
        return DataLoader(Drawing(), batch_sampler=kind(Drawing(), 8, rank=0, world_size=world_size))

    state = stopped_at(make(Derived, 2), 0, 2)
    assert state == stopped_at(make(DistributedBatchSampler, 1), 0, 2) | {"batch_size": 4}
    resumed = make(Derived, 1)
    resumed.load_state_dict(state)
    assert batches(resumed) == batches(make(DistributedBatchSampler, 1))[2:]
