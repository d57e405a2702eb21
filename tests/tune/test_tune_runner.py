"""Slices of real loaders: what they compare, what they leave alone, and what they count."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from kit.datasets import Sized, Stream
from kit.generators import generator_states
from kit.photos import Photos

import fastload
from fastload.cache import shared, store
from fastload.errors import ConfigError
from fastload.late import opener
from fastload.tune import runner as runner_module
from fastload.tune.report import Compared
from fastload.tune.runner import Runner, left_out, setting_of
from fastload.tune.survival import how_it_died


class Noisy(Sized):
    """Adds what it draws from the global generators, and remembers what it was asked for."""

    def __init__(self, length: int = 200) -> None:
        super().__init__(length)
        self.asked: list[int] = []

    def __getitem__(self, index: int) -> torch.Tensor:
        self.asked.append(index)
        return torch.full((4,), index + random.random()) + torch.rand(4)


class BrokenByThreads(Sized):
    """Keeps the sample that it makes where all threads see it."""

    def __getitem__(self, index: int) -> torch.Tensor:
        self.current = index
        time.sleep(0.001)
        return torch.tensor([self.current])


def runner_of(loader: Any, **arguments: float) -> Runner:
    return Runner(loader, **{"slice_s": 0.05, "check_s": 0.2, "read_s": 10.0, **arguments})


NOTHING = Compared()
OTHERS = "the values differ: epoch 0, batch "


def test_with_a_seed_other_workers_give_the_same_batches():
    loader = fastload.DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=1, seed=1)
    runner, present = runner_of(loader), setting_of(loader)
    runner.measure(present)
    for same in (present, present.having(worker_method="thread", num_workers=2), present.having(num_workers=0)):
        found = runner.measure(same)
        assert found.found == NOTHING
        assert found.rate > 0
        assert found.first_s > 0
    assert runner.check(present.having(chunk_size="batch")) == NOTHING


@pytest.mark.slow
def test_without_a_seed_another_number_of_workers_gives_torchs_batches_and_keys_give_other_augmentation():
    loader = fastload.DataLoader(Noisy(), batch_size=8, num_workers=1)
    runner, present = runner_of(loader), setting_of(loader)
    for same in (present, present, present.having(prefetch_factor=4)):
        assert runner.measure(same).found == NOTHING
    for number in (0, 2):
        for found in (lambda one: runner.measure(one).found, runner.check):
            said = found(present.having(num_workers=number))
            assert (said.differs, said.as_torch) == ("", True)
            assert said.augmentation.startswith(OTHERS)
            assert said.because == "each worker has a random stream of its own, as in torch"
    for keyed, asks in (
        (present.having(worker_method="thread"), "worker_method='thread'"),
        (present.having(seed=1),) * 2,
    ):
        for found in (lambda one: runner.measure(one).found, runner.check):
            said = found(keyed)
            assert (said.differs, said.as_torch) == ("", False)
            assert said.augmentation.startswith(OTHERS)
            assert said.because.startswith("seed=1" if asks is keyed else asks)


def test_more_batches_are_compared_than_each_workers_first_however_long_they_take(monkeypatch):
    monkeypatch.setattr(runner_module, "_COMPARED", 1)
    monkeypatch.setattr(runner_module, "_COMPARING", 0)
    loader = fastload.DataLoader(Noisy(), batch_size=8, num_workers=2)
    runner, present = runner_of(loader), setting_of(loader)
    runner.measure(present)
    assert runner.measure(present.having(num_workers=3)).found.augmentation.startswith(OTHERS)


def test_a_seed_has_an_order_of_its_own_for_a_loader_that_shuffles():
    loader = fastload.DataLoader(Sized(200), batch_size=8, shuffle=True, num_workers=1)
    runner, present = runner_of(loader), setting_of(loader)
    runner.measure(present)
    assert runner.measure(present.having(seed=1)).found.augmentation == "the order, which the seed shuffles too"
    threads = runner.measure(present.having(worker_method="thread")).found
    assert threads.because
    assert not threads.augmentation


@pytest.mark.parametrize(
    ("arguments", "seed", "chunks"),
    [
        ({}, True, False),
        ({"seed": 1}, False, True),
        ({"worker_method": "thread", "num_workers": 2}, False, True),
        ({"seeding": "torch"}, False, False),
        ({"sampler": fastload.DistributedSampler(range(200), 1, 0)}, False, True),
    ],
)
def test_a_seed_is_tried_only_where_samples_have_torchs_streams(arguments, seed, chunks):
    loader = fastload.DataLoader(Noisy(), batch_size=8, **arguments)
    names = left_out(loader)
    assert (("seed", 1) not in names) == seed
    assert ("fuse", True) in names, "it can fuse nothing"
    assert (("chunk_size", "batch") not in names) == chunks


def test_a_dataset_that_threads_break_is_seen():
    loader = fastload.DataLoader(BrokenByThreads(200), batch_size=8)
    runner, present = runner_of(loader), setting_of(loader)
    assert runner.measure(present).found.differs == ""
    threads = present.having(num_workers=4, worker_method="thread", chunk_size=1)
    assert runner.measure(threads).found.differs or runner.check(threads).differs


class DiesInThreads(Sized):
    """Ends the process where it is used by another thread than the main one, as code in C may."""

    def __init__(self, end: Callable[[], None]) -> None:
        super().__init__(200)
        self.end = end

    def __getitem__(self, index: int) -> int:
        if threading.current_thread() is not threading.main_thread():
            self.end()
        return index


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a child is a fork")
@pytest.mark.parametrize(
    ("end", "why"),
    [(lambda: os.kill(os.getpid(), signal.SIGSEGV), "by SIGSEGV"), (lambda: os._exit(3), "with status 3")],
    ids=["SIGSEGV", "exits"],
)
def test_threads_that_would_end_the_process_are_a_setting_that_fails(end, why):
    loader = fastload.DataLoader(DiesInThreads(end), batch_size=8)
    runner, present = runner_of(loader), setting_of(loader)
    assert runner.measure(present).rate > 0
    with pytest.raises(ConfigError, match=f"its process was ended {why}"):
        runner.measure(present.having(worker_method="thread", num_workers=2))
    assert runner.measure(present).rate > 0


def test_a_child_that_hangs_is_ended_in_time():
    assert how_it_died(lambda: time.sleep(60), 0.05) == "it gave no batch within 0 s"
    assert how_it_died(lambda: [][0], 5.0) == ""


def test_the_loader_its_dataset_its_samplers_and_the_global_generators_stay_as_they_are():
    data = Noisy()
    generator = torch.Generator().manual_seed(3)
    loader = fastload.DataLoader(data, batch_size=8, shuffle=True, generator=generator)
    before = generator.get_state().tolist(), generator_states()
    runner = runner_of(loader)
    runner.measure(setting_of(loader))
    assert data.asked == []
    assert (generator.get_state().tolist(), generator_states()) == before
    assert loader.statistics().batches == 0
    assert runner.notes == []


def test_a_dataset_that_cannot_be_copied_is_shared_and_a_note_says_so():
    class Kept(Noisy):
        def __reduce_ex__(self, protocol: Any) -> Any:
            raise TypeError("not to be pickled")

    data = Kept()
    loader = fastload.DataLoader(data, batch_size=8)
    runner = runner_of(loader)
    runner.measure(setting_of(loader))
    assert data.asked
    assert "cannot be copied (TypeError: not to be pickled), so all runs share it" in runner.notes[0]


class Endless:
    """A sampler without a length."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(100))


@pytest.mark.parametrize(
    "arguments",
    [
        {"dataset": Stream(lambda: range(50))},
        {"dataset": Noisy(), "sampler": Endless()},
        {"dataset": Noisy(8), "num_workers": 1},
    ],
    ids=["a stream", "a sampler without a length", "epochs of two batches"],
)
def test_odd_epochs_are_measured_too(arguments):
    loader = fastload.DataLoader(batch_size=4, **arguments)
    found = runner_of(loader).measure(setting_of(loader))
    assert found.rate > 0
    assert found.rate < 8 / 0.001 or not loader.num_workers, "a worker is started for each epoch"
    assert found.found.differs == ""


def test_resident_data_are_read_once_and_give_the_same_batches_in_each_slice():
    loader = fastload.DataLoader(torch.arange(400.0).reshape(100, 4), batch_size=8, shuffle=True, seed=1)
    runner, present = runner_of(loader), setting_of(loader)
    runner.measure(present)
    resident = present.having(resident="host")
    assert [runner.measure(resident).found.differs for _ in range(2)] == ["", ""]
    assert len(runner._kept) == 1
    runner.close()
    assert not runner._kept


def test_a_dataset_that_takes_long_to_read_is_not_read_for_resident():
    loader = fastload.DataLoader(Noisy(100_000), batch_size=8)
    runner, present = runner_of(loader, read_s=0.001), setting_of(loader)
    runner.measure(present)
    with pytest.raises(ConfigError, match="reading the whole dataset once would take about"):
        runner.measure(present.having(resident="host"))


def test_a_cache_is_filled_before_it_is_measured_and_is_gone_afterwards(tmp_path: Path, monkeypatch):
    reason = opener.unavailable_reason() or (None if hasattr(os, "memfd_create") else "the system has no memory files")
    if reason is not None:
        pytest.skip(f"nothing is kept here: {reason}")
    monkeypatch.setattr(store, "SETTLED_NS", 0)
    rng = np.random.default_rng(0)
    for place in range(6):
        PIL.Image.fromarray(rng.integers(0, 256, (60, 60, 3), dtype=np.uint8)).save(tmp_path / f"{place:02d}.jpg")
    loader = fastload.DataLoader(Photos(tmp_path), batch_size=2)
    runner, present = runner_of(loader), setting_of(loader)
    runner.measure(present)
    assert runner.measure(present.having(cache="auto")).found.differs == ""
    contents = shared.contents()
    assert contents is not None
    assert contents.entries == 6
    assert "for its 6 samples" in runner.notes[-1]
    runner.close()
    assert shared.contents() is None
    assert not shared.is_asked_for()


def test_without_a_file_that_is_kept_a_cache_is_not_measured():
    loader = fastload.DataLoader(Noisy(), batch_size=8)
    runner, present = runner_of(loader), setting_of(loader)
    for _ in range(2):
        with pytest.raises(ConfigError, match="no JPEG file of its samples can be kept"):
            runner.measure(present.having(cache="auto"))
    runner.close()


@pytest.mark.parametrize(
    ("dataset", "changes", "message"), [(Noisy(), {"seed": "one"}, "seed must be"), ([], {}, "returns no batch")]
)
def test_what_the_loader_refuses_is_raised_as_it_says_it(dataset, changes, message):
    loader = fastload.DataLoader(dataset, batch_size=8, seed=1)
    with pytest.raises(ConfigError, match=message):
        runner_of(loader).measure(setting_of(loader).having(**changes))
