"""A loader's state: where it is, to a dict and back."""

from __future__ import annotations

import functools
import io
import itertools
import json
import pickle
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from determinism_fakes import Drawing, batches, samples, stopped_at
from kit.comparison import difference
from kit.datasets import Made, PlacedReplicas, Replicas
from kit.resuming import assert_resumes, resumed
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler

import fastload
from fastload import DataLoader, DistributedBatchSampler, RankMismatch, StateError


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
    ("name", "before", "after"),
    [
        *((name, *[(0, 2), (1, 0)][place % 2]) for place, name in enumerate(POSITION)),
        *((name, 2, None) for name in FAST_FORWARD),
    ],
)
def test_with_workers_the_rest_is_what_it_would_have_been(name, before, after):
    """Where the order is known also with other ones."""
    later = None if after is None else functools.partial(loader_of, name, after, persistent_workers=after > 0)
    assert_resumes(functools.partial(loader_of, name, before), ((1, 3),), later)


@pytest.mark.parametrize("name", ALL)
def test_a_state_that_was_loaded_is_the_state_until_the_next_iteration_and_is_plain(name):
    state = stopped_at(loader_of(name), 1, 2)
    again = loader_of(name)
    again.load_state_dict(state)
    assert difference(again.state_dict(), state) is None
    if name in POSITION:
        assert state["kind"] == "position"
        assert len(pickle.dumps(state)) < 250
        assert json.loads(json.dumps(state)) == state
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    assert difference(torch.load(buffer, weights_only=True), state) is None


@pytest.mark.parametrize(("epoch", "step"), [(1, 3), (2, 0), (0, 0)])
def test_setting_the_resumed_epoch_keeps_the_place_and_another_epoch_begins_at_its_start(epoch, step):
    whole = [batches(loader) for loader in [loader_of("shuffled")] for _ in range(3)]
    loader = resumed(functools.partial(loader_of, "shuffled"), 1, 3)
    loader.set_epoch(epoch)
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (epoch, 8 * step)
    assert batches(loader) == whole[epoch][step:]


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


def test_the_end_of_a_padded_epoch_is_the_end_on_any_number_of_ranks():
    def rank_of(world_size: int, batch_size: int) -> DataLoader[Any]:
        return DataLoader(Drawing(9), batch_size, sampler=fastload.DistributedSampler(Drawing(9), world_size, 0))

    state = stopped_at(rank_of(2, 2), 0, 3)
    assert state["position"] == 10
    loader = rank_of(1, 4)
    loader.load_state_dict(state)
    assert batches(loader) == []


class Derived(DistributedBatchSampler):
    pass


def test_a_class_derived_from_our_sampler_resumes_on_any_number_of_ranks_as_ours_does():
    def make(kind: type[DistributedBatchSampler], world_size: int) -> DataLoader[Any]:
        return DataLoader(Drawing(), batch_sampler=kind(Drawing(), 8, rank=0, world_size=world_size))

    state = stopped_at(make(Derived, 2), 0, 2)
    assert state == stopped_at(make(DistributedBatchSampler, 1), 0, 2) | {"batch_size": 4}
    assert_resumes(functools.partial(make, Derived, 1), [(0, 2)])


def test_step_a_million_of_a_billion_samples_is_there_at_once():
    def make() -> DataLoader[Any]:
        return DataLoader(range(10**9), batch_sampler=DistributedBatchSampler(range(10**9), 256, seed=1))

    loader = make()
    begun = time.process_time()
    loader.load_state_dict({**make().state_dict(), "position": 256_000_000})
    batch = next(iter(loader))
    # The benchmark has the figure (below 10 ms); this only tells a list of a billion from none.
    assert time.process_time() - begun < 2
    order = loader.batch_sampler.sampler.epoch_order.order
    assert batch.tolist() == order.at(0, np.arange(256_000_000, 256_000_256)).tolist()


# --- Streams ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_workers", "terminal"), [(0, False), (0, True), (2, True)])
def test_an_iterable_dataset_without_a_state_is_read_again_with_a_warning(num_workers, terminal, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)

    def make() -> DataLoader[Any]:
        return DataLoader(Replicas(), 4, num_workers=num_workers)

    with pytest.warns(UserWarning, match="does not say where the dataset was, so its first 5 batches are loaded again"):
        assert_resumes(make, [(0, 5)], view=lambda loader: [batch.tolist() for batch in loader])
    shown = capsys.readouterr().err
    assert "reading again" in shown if terminal else shown == ""


def test_an_iterable_dataset_that_has_become_shorter_is_an_error():
    with (
        pytest.warns(UserWarning, match="loaded again"),
        pytest.raises(StateError, match="saved after 9 batches, but the dataset ends before them now"),
    ):
        list(resumed(lambda: DataLoader(Replicas(), 4), 0, 9, lambda: DataLoader(Replicas(10), 4)))


# --- States that are refused -----------------------------------------------------------------------------------------


LOADERS: dict[str, Callable[[], DataLoader[Any]]] = {
    "shuffled": lambda: loader_of("shuffled"),
    "padded steps": lambda: loader_of("padded steps"),
    "a generator": lambda: loader_of("a generator"),
    "a stream": lambda: DataLoader(PlacedReplicas(), 4, num_workers=3),
}
OF_REPLICAS = "workers must be \\(\\) or hold the state of each replica"
REFUSED: list[tuple[str, Any, str]] = [
    ("shuffled", lambda state: None, "must be the dict that state_dict\\(\\) returned, got NoneType"),
    ("shuffled", lambda state: [state], "got list"),
    ("shuffled", lambda state: {}, "no state of a fastload loader: it has no 'version', but nothing"),
    ("shuffled", lambda state: {"_num_yielded": 3}, "it has no 'version', but '_num_yielded'"),
    ("shuffled", lambda state: {key: state[key] for key in list(state)[:-1]}, "damaged: 'position' missing"),
    ("shuffled", {"version": 1}, "has version 1, and this fastload reads version 2"),
    ("shuffled", {"version": True}, "has version True"),
    ("shuffled", {"kind": "iterable"}, "of kind 'iterable', and this loader's is 'position'"),
    ("shuffled", {"model": 1}, "the state is damaged: 'model' unknown"),
    ("shuffled", {"seed": 6}, "the seed was 6 when it was saved and is 5 now"),
    ("shuffled", {"length": 54}, "the number of samples was 54 when it was saved and is 53 now"),
    ("shuffled", {"order": "block 4"}, "the order was 'block 4' when it was saved and is 'keyed' now"),
    ("shuffled", {"tail": "pad"}, "the tail was 'pad' when it was saved and is 'short' now"),
    (
        "shuffled",
        {"batch_size": 4, "global_batch_size": 4},
        "the batch size was 4 when it was saved and is 8 now; the global batch size was 4",
    ),
    ("shuffled", {"position": -1}, "position must be an integer of at least 0, got position=-1"),
    ("shuffled", {"position": 1.0}, "position must be an integer"),
    ("shuffled", {"position": 61}, "position must be at most 53"),
    ("shuffled", {"epoch": True}, "epoch must be an integer"),
    ("padded steps", {"position": 12}, "position must be a multiple of the global batch size 8, got position=12"),
    ("a generator", {"generator.loader": torch.zeros(3)}, "generator.loader must be the state of a"),
    ("a generator", {"generator.loader": "none"}, "generator.loader must be the state of a"),
    ("a generator", {"base_seed": None}, "base_seed must be an integer"),
    ("a generator", {"batches": -2}, "batches must be an integer of at least 0"),
    ("a generator", {"seeding": 7}, "seeding must be 'sample' or 'torch', got seeding=7"),
    ("a stream", {"num_workers": 2}, "num_workers was 2 when it was saved and is 3 now"),
    ("a stream", {"workers": [1]}, OF_REPLICAS),
    ("a stream", {"workers": [{"states": [None], "next": 0}]}, OF_REPLICAS),
    ("a stream", {"workers": ({"states": [None] * 3, "next": 3},)}, OF_REPLICAS),
    ("a stream", {"workers": ({"states": [7] * 3, "next": 0},)}, OF_REPLICAS),
]


@pytest.mark.parametrize(("name", "change", "words"), REFUSED)
def test_a_state_that_is_none_of_this_loaders_is_refused_and_nothing_changes(name, change, words):
    loader = LOADERS[name]()
    before = loader.state_dict()
    with pytest.raises(StateError, match=words):
        loader.load_state_dict(change(before) if callable(change) else {**before, **change})
    assert difference(loader.state_dict(), before) is None


# --- Interrupts and errors -------------------------------------------------------------------------------------------


def fails_at_nine(index: int) -> int:
    if index == 9:
        raise KeyError(index)
    return index


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_batch_that_ended_in_an_error_counts_as_delivered(num_workers):
    loader, again = (DataLoader(Made(24, fails_at_nine), 8, seed=0, num_workers=number) for number in (num_workers, 0))
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(KeyError):
        next(iterator)
    again.load_state_dict(loader.state_dict())
    assert [batch.tolist() for batch in again] == [list(range(16, 24))]
    loader.close()


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
