"""What ``statistics()`` and ``explain()`` tell of what was decided and done."""

from __future__ import annotations

import dataclasses
import os
import pickle
import socket
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from fakes import Counting, Ragged, Squares, SquaresInBatches
from torch.utils.data import TensorDataset

import fastload
from fastload import DataLoader, Statistics

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")

PACKETS = "shared memory" if hasattr(socket, "SOCK_SEQPACKET") and hasattr(os, "memfd_create") else "pipes"
FORKED = {"num_workers": 2, "multiprocessing_context": "fork"}


@pytest.fixture(autouse=True)
def no_wish_for_a_transport(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("FASTLOAD_TRANSPORT", raising=False)
    return


def padded(samples: list[torch.Tensor]) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)


class Changing(Squares):
    """Its samples' shape changes from one batch of four to the next."""

    def __getitem__(self, index: int) -> Any:
        return torch.full((1 + index // 4 % 3,), index)


TORCHS = "torch's: a stream for each worker, so every batch is torch's, bit for bit"
OF_A_REPLICA = ["an IterableDataset's replicas stay with their workers", "has no sample ids", "slower      4 batches"]

# dataset, arguments, what statistics() says after one epoch, what explain() says then
CASES: dict[str, tuple[Any, dict[str, Any], dict[str, Any], list[str]]] = {
    "without workers": (
        Squares(10),
        {},
        {"worker_method": "inline", "start_method": None, "slots": 0, "samples": 10},
        ["workers     none", "torch's: the generators of this process", "3 batches, 10 samples"],
    ),
    "processes": (
        Squares(10),
        FORKED,
        {"worker_method": "multiprocessing", "start_method": "fork", "transport": PACKETS, "samples": 10}
        | {"dataset_pickled": "inherited", "batches_without_layout": 0},
        [
            "2 processes, started by fork; batches come ",
            "; the dataset is inherited",
            "batch i to worker i % num_workers",
            "the whole batch: each worker has one random stream",
            "at most 4 batches (num_workers x prefetch_factor), in order",
            TORCHS,
        ],
    ),
    "a seed": (
        Squares(10),
        {"shuffle": True, "seed": 1, **FORKED},
        {"samples": 10},
        ["chunks of ", "taken by whichever worker is free", "each sample, by its index, since seed=1 asks for it"],
    ),
    "more ahead, out of order": (
        Squares(30),
        {"prefetch_factor": 3, "in_order": False, "persistent_workers": True, "chunk_size": 2, **FORKED},
        {"samples": 30, "chunk_size": 2},
        ["at most 6 batches", "as they are completed", "2 processes, kept between epochs", "chunks of 2 samples"],
    ),
    "threads": (
        Squares(10),
        {"num_workers": 2, "worker_method": "thread"},
        {"worker_method": "thread", "transport": "memory", "batches_without_layout": 0},
        ["2 threads", "by its position in the epoch, since worker_method='thread' asks", "torch draws its seed"],
    ),
    "no draws": (TensorDataset(torch.arange(10)), FORKED, {}, ["the dataset is known to draw nothing"]),
    "whole batches asked for": (
        Squares(10),
        {"chunk_size": "batch", "seed": 1, **FORKED},
        {"batches_without_layout": 0},
        ["the whole batch: chunk_size='batch'"],
    ),
    "a custom collate_fn": (
        Ragged(10),
        {"collate_fn": padded, **FORKED},
        {"samples": 10, "chunk_size": 0, "batches_without_layout": 3},
        ["the whole batch: custom collate_fn", "slower      3 batches: custom collate_fn"],
    ),
    "a dataset that loads batches": (
        SquaresInBatches(10),
        FORKED,
        {"samples": 10, "batches_without_layout": 0},
        ["the whole batch: the dataset loads batches itself (__getitems__)"],
    ),
    "an iterable dataset": (Counting(8), FORKED, {"batches_without_layout": 4}, OF_A_REPLICA),
    "no batching": (
        Squares(5),
        {"batch_size": None, **FORKED},
        {"samples": 5, "chunk_size": 0, "batches_without_layout": 5},
        ["batch_size=None leaves batching to the dataset"],
    ),
    "shapes that change all the time": (
        Changing(80),
        FORKED,
        {"samples": 80},
        ["change their shape, type or keys too often"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_was_decided_and_done_is_told(name):
    dataset, arguments, expected, phrases = CASES[name]
    loader = DataLoader(dataset, **{"batch_size": 4, **arguments})
    before, begun = loader.explain(), loader.statistics()
    assert (begun.batches, begun.samples, begun.slots, begun.max_in_flight, begun.stages_s) == (0, 0, 0, 0, {})
    assert (begun.start_method, begun.transport, begun.dataset_pickled, begun.sample_ms) == (None,) * 4
    assert "seeding" in before
    assert "so far" not in before
    batches = list(loader)
    statistics, explained = loader.statistics(), loader.explain()
    assert {field: getattr(statistics, field) for field in expected} == expected
    assert statistics.batches == len(batches)
    assert [phrase for phrase in phrases if phrase not in explained] == []
    # What holds for every loader.
    assert statistics.num_workers == loader.num_workers
    assert statistics.slots_in_flight == loader.num_workers * (loader.prefetch_factor or 0)
    assert statistics.max_in_flight <= statistics.slots_in_flight
    assert sum(statistics.without_layout_reason.values()) == statistics.batches_without_layout <= statistics.batches
    assert min(statistics.stages_s.values()) >= 0
    assert statistics.chunk_size >= 0
    if loader.num_workers and statistics.batches_without_layout == 0:
        assert statistics.slots >= 1
        # The layout is learnt from the batches that were in flight first.
        assert statistics.slot_bytes >= (statistics.batches > statistics.slots_in_flight)
        assert statistics.sample_ms is not None
        assert statistics.sample_ms > 0
        assert statistics.chunk_size >= 1
    loader.close()


def test_the_transport_that_was_asked_for_is_told(monkeypatch):
    monkeypatch.setenv("FASTLOAD_TRANSPORT", "pipes")
    loader = DataLoader(Squares(4), **FORKED)
    list(loader)
    assert loader.statistics().transport == "pipes"
    assert "2 processes, started by fork; batches come by pipes" in loader.explain()


def test_statistics_cannot_be_changed_and_have_no_positional_order():
    statistics = DataLoader([1]).statistics()
    assert type(statistics) is fastload.Statistics
    with pytest.raises(dataclasses.FrozenInstanceError):
        statistics.batches = 7  # type: ignore[misc]
    with pytest.raises(TypeError):
        Statistics(1, 2)  # type: ignore[call-arg,misc]
    loader = DataLoader(Ragged(4), batch_size=2, collate_fn=padded, **FORKED)
    list(loader)
    loader.statistics().without_layout_reason.clear()
    assert loader.statistics().without_layout_reason == {"custom collate_fn": 2}


@pytest.mark.parametrize("workers", [{}, {**FORKED, "persistent_workers": True}])
def test_batches_are_counted_when_they_are_handed_out_over_epochs_and_breaks(workers):
    loader = DataLoader(Squares(10), batch_size=4, **workers)
    for given_before in (0, 3):
        iterator = iter(loader)
        for count in range(1, 4):
            assert loader.statistics().batches == given_before + count - 1
            next(iterator)
        with pytest.raises(StopIteration):
            next(iterator)
    next(iter(loader))
    loader.close()
    assert (loader.statistics().batches, loader.statistics().samples) == (7, 24)
    other = pickle.loads(pickle.dumps(loader))
    assert other.statistics().batches == 0
