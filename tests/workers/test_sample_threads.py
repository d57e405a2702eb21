"""``worker_threads``: several samples at a time in each worker process, with the bits of one at a time."""

import functools
import os
import random
import signal
import threading
import time

import numpy as np
import pytest
import torch
from kit.resuming import assert_resumes
from torch.utils.data import default_collate, get_worker_info

from fastload import DataLoader
from fastload.errors import WorkerDied
from fastload.sampling.distributed import DistributedSampler

COUNT = 50


class Drawing:
    """Each sample draws from all generators, and says what ``get_worker_info`` says."""

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        if index % 7 == 3:
            time.sleep(0.003)  # so that later samples are ready sooner
        return index, torch.rand(3), random.random(), np.random.rand(2), torch.nn.functional.dropout(torch.ones(5))


class Failing(Drawing):
    """Some samples cannot be loaded; the later of two fails before the earlier one."""

    def __init__(self):
        self.later = threading.Event()

    def __getitem__(self, index):
        if index in (5, 6):
            if index == 5:
                self.later.wait(20)
            self.later.set()
            raise ValueError(f"damaged {index}")
        return super().__getitem__(index)


class Meeting:
    """Samples that return only when as many as ``parties`` are being loaded at once."""

    def __init__(self, parties, length):
        self.parties, self.length, self.barrier = parties, length, None

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.barrier.wait(20)
        return index


def make_barrier(worker_id):
    dataset = get_worker_info().dataset
    dataset.barrier = threading.Barrier(dataset.parties)


def as_list(samples):
    return [repr(sample) for sample in samples] + [repr(torch.rand(2))]


def collated(samples):
    return default_collate(samples)


def test_what_they_collate_has_the_dtype_of_one_thread():
    pairs = [torch.tensor([200], dtype=torch.uint8), torch.tensor([-1], dtype=torch.int8)] * 4
    loader = DataLoader(pairs, 2, collate_fn=collated, num_workers=1, worker_threads=2)
    assert [batch.flatten().tolist() for batch in loader] == [[200, -1]] * 4


class Batched(Drawing):
    def __getitems__(self, indices):
        return [(index, torch.rand(2)) for index in indices]


WAYS = {
    "rows": {"batch_size": 8},
    "a batch for each sample": {"batch_size": 1},
    "custom collate_fn": {"batch_size": 8, "collate_fn": as_list},
    "without batches": {"batch_size": None},
    "whole batches": {"batch_size": 16, "chunk_size": "batch"},
    "a batch sampler": {"batch_sampler": [[3, 1, 2], [9], list(range(20, 40)), (4, 5)]},
    "loaded at once": {"dataset": Batched(), "batch_size": 8},
    "a rank": {"batch_size": 4, "sampler": DistributedSampler(range(COUNT), num_replicas=2, rank=1, seed=5)},
    "kept": {"batch_size": 8, "shuffle": True},
    "pipes": {"batch_size": 16, "chunk_size": 3},
    "forkserver": {"batch_size": 8, "multiprocessing_context": "forkserver"},
    "spawn": {"batch_size": 8, "multiprocessing_context": "spawn"},
}


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=[pytest.mark.slow] * (way in ("forkserver", "spawn"))) for way in WAYS]
)
def test_batches_are_those_without_threads_in_processes_and_where_there_are_none(way, monkeypatch):
    monkeypatch.setenv("FASTLOAD_TRANSPORT", "pipes" if way == "pipes" else "")
    options = {"dataset": Drawing(), "seed": 4, **WAYS[way]}
    threads = {"num_workers": 1 + (way in ("rows", "kept")), "worker_threads": 5, "persistent_workers": way == "kept"}

    def view(loader):
        return [repr(batch) for batch in loader]

    context = options.pop("multiprocessing_context", None)
    make = functools.partial(DataLoader, **options)
    loader = make(multiprocessing_context=context, **threads)
    alone, inline = make(), make(worker_threads=5)
    for _ in range(2):
        expected = view(alone)
        assert view(loader) == expected
        assert view(inline) == expected
    loader.close()
    if way == "kept":
        assert_resumes(functools.partial(make, **threads), [(0, 3)], make, view)


def test_explain_and_statistics_name_the_threads():
    loader = DataLoader(Drawing(), 4, num_workers=2, worker_threads=16)
    assert "2 processes, 16 samples at a time in each" in loader.explain()
    assert loader.statistics().slots_in_flight == 16  # 2 workers x 16 threads x 2 / 4
    alone = DataLoader(Drawing(), 4, worker_threads=16)
    assert "16 threads (worker_threads, without processes)" in alone.explain()
    assert alone.statistics().slots_in_flight == 8


@pytest.mark.parametrize("batch_size", [1, 2, 12])
@pytest.mark.parametrize("collate_fn", [None, as_list])
def test_as_many_samples_are_loaded_at_once_as_there_are_threads(batch_size, collate_fn):
    dataset = Meeting(6, 24)
    loader = DataLoader(
        dataset, batch_size, num_workers=1, worker_threads=6, worker_init_fn=make_barrier, collate_fn=collate_fn
    )
    assert len(list(loader)) == 24 // batch_size


@pytest.mark.parametrize("collate_fn", [None, as_list])
def test_the_first_error_in_sample_order_takes_the_batchs_place(collate_fn):
    iterator = iter(DataLoader(Failing(), 10, num_workers=1, worker_threads=4, collate_fn=collate_fn))
    with pytest.raises(ValueError, match="damaged 5") as caught:
        next(iterator)
    assert "in DataLoader worker process 0" in str(caught.value)
    assert len(list(iterator)) == 4


class Deadly(Drawing):
    """Ends when three of its samples are being loaded."""

    def __init__(self, end):
        self.end, self.begun = end, threading.Semaphore(0)

    def __getitem__(self, index):
        if index == 3:
            for _ in range(2):
                self.begun.acquire()
            self.end()
        if index in (1, 2):
            self.begun.release()
            threading.Event().wait()
        return index


def exits():
    raise SystemExit(7)


@pytest.mark.parametrize(
    ("end", "words"), [(lambda: os.kill(os.getpid(), signal.SIGKILL), "killed by SIGKILL"), (exits, "code")]
)
def test_the_death_of_a_worker_names_what_its_threads_were_at(end, words):
    with pytest.raises(WorkerDied, match=words) as caught:
        list(DataLoader(Deadly(end), 4, num_workers=1, worker_threads=3))
    assert {1, 2, 3} <= set(caught.value.samples)
