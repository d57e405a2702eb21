"""The epochs of a loader: how they are counted, who sets them, and what is prepared of the next one."""

from __future__ import annotations

import copy
import functools
import itertools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from determinism_fakes import Drawing, batches, stopped_at
from kit.datasets import Made
from kit.outcomes import outcomes
from kit.pinning import pin_by_copies
from kit.resuming import assert_resumes
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler
from torch.utils.data import DataLoader as TorchDataLoader

import fastload
from fastload import DataLoader, DistributedBatchSampler

KEPT = {"num_workers": 2, "persistent_workers": True}


def indices(loader: Any) -> list[int]:
    return [row[0] for batch in batches(loader) for row in batch]


SAMPLERS: dict[str, Callable[[], dict[str, Any]]] = {
    "torch's": lambda: {"batch_size": 4, "sampler": DistributedSampler(Drawing(), 2, 0), "seed": 1},
    "torch's in a batch sampler": lambda: {
        "batch_sampler": BatchSampler(DistributedSampler(Drawing(), 2, 0), 4, False),
        "seed": 1,
    },
    "ours": lambda: {"batch_size": 4, "sampler": fastload.DistributedSampler(Drawing(), 2, 0, seed=3)},
    "ours, seeded twice": lambda: SAMPLERS["ours"]() | {"seed": 1},
    "our batches": lambda: {"batch_sampler": DistributedBatchSampler(Drawing(), 8, seed=3), "num_workers": 2},
    "shuffled": lambda: {"batch_size": 4, "shuffle": True, "seed": 1},
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_epochs_advance_by_themselves_from_the_one_that_was_set_at_the_loader_or_its_sampler(name):
    loader = DataLoader(Drawing(), **SAMPLERS[name]())
    held = loader.sampler, loader.batch_sampler, loader.batch_sampler.sampler
    sampler: Any = next(one for one in held if hasattr(one, "set_epoch"))
    epochs = [batches(loader) for _ in range(3)]
    assert len({str([row[0] for batch in epoch for row in batch]) for epoch in epochs}) == 3
    for setter in (loader.set_epoch, sampler.set_epoch):
        setter(0)
        assert [batches(loader), batches(loader)] == epochs[:2]
    for epoch in (2, 0) if "torch" in name else (2, 0, 0):  # torch's does not say that it was set to what it was
        sampler.set_epoch(epoch)
        assert batches(loader) == epochs[epoch]
    if "torch" in name:
        assert [row[0] for batch in epochs[0] for row in batch] == list(sampler)


WORKERS: list[dict[str, Any]] = [
    {},
    {"num_workers": 2, "prefetch_factor": 8},
    {"num_workers": 1, "worker_method": "thread", "prefetch_factor": 2},
]


def _second_epoch(kind: Any, *, left_at: int | None, replacement: bool = False, **options: Any) -> list[Any]:
    samples = list(range(53))
    sampler = RandomSampler(samples, replacement, generator=torch.Generator().manual_seed(0))
    loader = kind(samples, **{"batch_size": 4, "sampler": sampler, **options})
    for _ in itertools.islice(loader, left_at):
        pass
    return [torch.as_tensor(batch).tolist() for batch in loader]


@pytest.mark.parametrize("workers", WORKERS, ids=["inline", "processes", "thread"])
@pytest.mark.parametrize("options", [{}, {"replacement": True}, {"batch_size": None}], ids=str)
def test_with_a_seed_the_epoch_after_a_break_is_that_after_a_whole_one(workers, options):
    expected = _second_epoch(TorchDataLoader, left_at=None, **options)
    assert _second_epoch(DataLoader, left_at=1, seed=1, **options, **workers) == expected


def test_without_a_seed_torchs_sampler_keeps_its_order_and_the_second_epoch_warns():
    loader = DataLoader(Drawing(), 4, sampler=DistributedSampler(Drawing(), 2, 0))
    first = indices(loader)
    with pytest.warns(UserWarning, match="epoch 0 of DistributedSampler begins for the second time.*set_epoch"):
        assert indices(loader) == first
    loader.sampler.set_epoch(1)
    assert indices(loader) != first


def test_a_look_at_the_first_batch_and_an_evaluation_in_order_do_not_warn():
    loader = DataLoader(Drawing(), 4, sampler=DistributedSampler(Drawing(), 2, 0))
    next(iter(loader))
    list(loader)
    evaluation = DataLoader(Drawing(), 4, sampler=DistributedSampler(Drawing(), 2, 0, shuffle=False))
    assert indices(evaluation) == indices(evaluation)


def test_a_batch_sampler_that_names_itself_as_the_one_inside_is_no_endless_chain():
    class Itself(BatchSampler):
        @property
        def batch_sampler(self) -> BatchSampler:
            return self

    sampler = Itself(SequentialSampler(range(5)), 2, False)
    assert [batch.tolist() for batch in DataLoader(torch.arange(5), batch_sampler=sampler)] == [[0, 1], [2, 3], [4]]


def test_a_batch_sampler_that_makes_another_inside_in_each_epoch_resumes():
    class Remaking(DistributedSampler[Any]):
        """A batch sampler whose order is that of a sampler which ``set_epoch`` makes."""

        def __init__(self) -> None:
            super().__init__(Drawing(), 1, 0)
            self.set_epoch(0)

        def set_epoch(self, epoch: int) -> None:
            super().set_epoch(epoch)
            self.sampler = RandomSampler(range(23), generator=torch.Generator().manual_seed(100 + epoch))

        def __iter__(self) -> Any:
            return iter(BatchSampler(self.sampler, 4, False))

        def __len__(self) -> int:
            return 6

    assert_resumes(lambda: DataLoader(Drawing(), batch_sampler=Remaking(), seed=3), [(1, 2)])


def test_index_batches_of_a_derived_class_are_those_that_it_gives():
    class Reversed:
        def __init__(self, index_batches: Any) -> None:
            self.index_batches = index_batches

        def __iter__(self) -> Any:
            return (batch[::-1] for batch in self.index_batches)

    class Reversing(DataLoader[Any]):
        @property
        def _index_sampler(self) -> Any:
            return Reversed(super()._index_sampler)

    def make(kind: Any) -> Any:
        sampler = RandomSampler(range(6), generator=torch.Generator().manual_seed(4))
        return kind(torch.arange(6), 3, sampler=sampler, seed=3)

    assert [batch.tolist() for batch in make(Reversing)] == [batch.tolist()[::-1] for batch in make(DataLoader)]


def test_the_samplers_seed_is_the_samples_seed_where_the_loader_has_none():
    def make(seed: int | None) -> DataLoader[Any]:
        return DataLoader(Drawing(), batch_sampler=DistributedBatchSampler(Drawing(), 8, seed=3), seed=seed)

    assert batches(make(None)) == batches(make(3)) != batches(make(4))
    assert [row[0] for batch in batches(make(3)) for row in batch] == [
        row[0] for batch in batches(make(4)) for row in batch
    ]


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("worker_method", ["multiprocessing", "thread"])
def test_overlapping_epochs_give_what_separate_ones_give(in_order, worker_method):
    def make(overlap: bool) -> DataLoader[Any]:
        dataset = [torch.tensor(index) for index in range(53)]
        return DataLoader(
            dataset, 4, shuffle=True, seed=2, in_order=in_order, overlap_epochs=overlap,
            worker_method=worker_method, **KEPT,
        )  # fmt: skip

    results = []
    for overlap in (True, False):
        loader = make(overlap)
        epochs = [[batch.tolist() for batch in loader] for _ in range(4)]
        loader.set_epoch(1)  # what was prepared is dropped
        epochs.append([batch.tolist() for batch in loader])
        iterator = iter(loader)  # left in the middle
        next(iterator)
        epochs.append([batch.tolist() for batch in loader])
        results.append(epochs if in_order else [sorted(epoch) for epoch in epochs])
        loader.close()
    assert results[0] == results[1]
    assert results[0][4] == results[0][1]
    assert all(sorted(index for batch in epoch for index in batch) == list(range(53)) for epoch in results[0])


@pytest.mark.parametrize("overlap", [True, False])
def test_the_next_epoch_is_loaded_before_it_is_asked_for_only_if_that_is_wanted(overlap, tmp_path):
    def note(index: int) -> int:
        with (tmp_path / "loaded").open("a") as file:
            file.write(f"{index}\n")
        return index

    loader = DataLoader(Made(24, note), 4, seed=0, shuffle=True, overlap_epochs=overlap, prefetch_factor=2, **KEPT)
    list(loader)
    loader.close()  # what was being loaded is finished, or not begun any more
    ahead = len((tmp_path / "loaded").read_text().split()) - 24
    assert 0 < ahead <= 16 if overlap else ahead == 0


def test_two_loaders_around_one_sampler_both_begin_the_epoch_that_was_set():
    sampler = fastload.DistributedSampler(Drawing(), 2, 0)
    first, second = (DataLoader(Drawing(), 4, sampler=sampler) for _ in range(2))
    for epoch in (3, 1):
        sampler.set_epoch(epoch)
        assert indices(first) == indices(second)
        assert sampler.epoch == epoch


def test_what_is_prepared_counts_against_the_same_bound():
    loader = DataLoader(range(40), 4, seed=0, shuffle=True, prefetch_factor=2, **KEPT)
    for _ in range(3):
        list(loader)
    assert loader.statistics().max_in_flight == 4
    loader.close()


def test_a_dataset_that_has_grown_is_not_served_from_what_was_prepared():
    data = [torch.tensor(index) for index in range(20)]
    loader = DataLoader(data, 4, seed=0, shuffle=True, worker_method="thread", **KEPT)
    assert sorted(index for batch in loader for index in batch.tolist()) == list(range(20))
    data.append(torch.tensor(20))
    assert sorted(index for batch in loader for index in batch.tolist()) == list(range(21))
    loader.close()


def test_states_taken_while_the_next_epoch_is_prepared_are_those_of_the_epoch_under_way():
    make = functools.partial(DataLoader, Drawing(24), 4, seed=0, shuffle=True, **KEPT)
    state = stopped_at(make(), 0, 5)
    assert (state["epoch"], state["position"]) == (0, 20)
    assert_resumes(make, [(0, 5)])


def test_an_error_in_the_next_epochs_first_batch_is_raised_there():
    class Failing(Drawing):
        def __getitem__(self, index: int) -> Any:
            if torch.initial_seed() == -1 or index == 3:
                raise KeyError(index)
            return index

    loader = DataLoader(Failing(8), 4, seed=0, **KEPT)
    for _ in range(3):
        error, batch = outcomes(iter(loader))
        assert isinstance(error, KeyError)
        assert batch.tolist() == [4, 5, 6, 7]
    loader.close()


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true:UserWarning")
@pytest.mark.parametrize("named", ["cpu", None])  # torch 2.6 names no device, and means CUDA
def test_batches_pinned_ahead_cross_no_border_between_epochs(monkeypatch, named):
    pinned = pin_by_copies(monkeypatch, named)
    results = []
    for overlap in (True, False):
        dataset = [torch.tensor(index) for index in range(53)]
        loader = DataLoader(dataset, 4, shuffle=True, seed=2, overlap_epochs=overlap, pin_memory=True, **KEPT)
        epochs = [[batch.tolist() for batch in loader] for _ in range(3)]
        iterator = iter(loader)
        epochs.append([next(iterator).tolist() for _ in range(2)])
        state = loader.state_dict()
        assert state["position"] == 8
        rest = [batch.tolist() for batch in iterator]
        loader.load_state_dict(state)
        assert [batch.tolist() for batch in loader] == rest
        results.append([*epochs, rest])
        loader.close()
    assert results[0] == results[1]
    assert set(pinned) == {named or "cuda"}


@pytest.mark.parametrize("epoch", [-1, 2**63, 1.5, "1", True])
def test_an_epoch_that_is_none_is_refused_where_it_is_set(epoch):
    loader = DataLoader(Drawing(), 4, shuffle=True, seed=1)
    for setter in (loader.set_epoch, loader.sampler.set_epoch, DistributedBatchSampler(Drawing(), 8).set_epoch):
        with pytest.raises(fastload.ConfigError, match="epoch must be an integer from 0 to"):
            setter(epoch)


def test_numbers_of_numpy_are_numbers():
    def make(kind: Any) -> DataLoader[Any]:
        options = {"seed": kind(3), "rank": kind(0), "world_size": kind(2), "tail": "pad"}
        sampler = DistributedBatchSampler(Drawing(), kind(8), **options)
        made = DataLoader(Drawing(), batch_sampler=sampler, seed=kind(4))
        made.set_epoch(kind(2))
        return made

    loader, expected = make(np.int64), make(int)
    assert batches(loader) == batches(expected)
    assert json.loads(json.dumps(loader.state_dict())) == expected.state_dict()
    index = next(iter(loader))[0][3]
    assert fastload.replay(loader, np.int64(3), index)[0] == int(index)
    padded = fastload.DistributedSampler(Drawing(), np.int64(2), np.int64(0))
    assert len(indices(DataLoader(Drawing(), 4, sampler=padded))) == 27


@pytest.mark.parametrize(
    ("copied", "options"),
    [(copy.copy, KEPT), (copy.copy, {}), (copy.deepcopy, {"num_workers": 2}), (copy.deepcopy, {})],
)
def test_a_copy_of_a_loader_counts_its_own_epochs(copied, options):
    loader = DataLoader(Drawing(), 4, shuffle=True, seed=1, **options)
    list(loader)
    twin = copied(loader)
    second = batches(loader)
    assert batches(loader) != second
    assert batches(twin) == second
    for each in (loader, twin):
        each.close()


def test_a_batch_sampler_given_as_sampler_lets_the_epoch_advance_too():
    class InBatches(Drawing):
        def __getitem__(self, where: Any) -> Any:
            return torch.tensor(where) + torch.rand(len(where))

    def make() -> DataLoader[Any]:
        return DataLoader(InBatches(), None, sampler=DistributedBatchSampler(Drawing(), 8))

    loader, again = make(), make()
    first, second = ([batch.tolist() for batch in loader] for _ in range(2))
    assert first != second
    assert [batch.tolist() for batch in again] == first
