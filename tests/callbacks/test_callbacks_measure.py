"""``Stall`` over torch's loader and fastload's, on one rank."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
import pickle
import subprocess
import sys
import weakref
from typing import Any

import pytest
import torch
import torch.utils.data
from kit.datasets import Made, Stream
from torch.utils.data import TensorDataset

import fastload
from fastload.callbacks import Stall, device, watching
from fastload.callbacks.processes import WorkerClocks
from fastload.errors import ConfigError

LOADERS = [fastload.DataLoader, torch.utils.data.DataLoader]
ALWAYS = {"data/share", "data/samples_per_s", "data/startup", "data/here"}
forked = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")
FORKED = {"num_workers": 2, "multiprocessing_context": "fork"}


def dataset(length: int = 40) -> TensorDataset:
    return TensorDataset(torch.arange(length))


def is_whole(found: dict[str, float]) -> bool:
    """Return whether the parts make up a share between 0 and 1."""
    names = ("startup", "read", "cpu", "cores", "workers", "here")
    parts = sum(found.get(f"data/{name}", 0.0) for name in names)
    return 0.0 < found["data/share"] <= 1.0 and found["data/share"] == pytest.approx(parts)


@pytest.mark.parametrize("loader_class", LOADERS)
def test_without_workers_all_is_lost_in_the_loops_thread(loader_class):
    loader = loader_class(dataset(), batch_size=4)
    stall = Stall(loader)
    assert stall.numbers() == {}
    list(loader)
    found = stall.numbers()
    assert set(found) == ALWAYS
    assert is_whole(found)
    assert stall.numbers() == {}, "a window ends with each call"
    assert "by the host's clock" in stall.last_line()
    stall.close()


@forked
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("loader_class", LOADERS)
def test_with_workers_the_wait_for_them_is_divided_where_the_system_counts(loader_class, persistent):
    loader = loader_class(dataset(), batch_size=4, persistent_workers=persistent, **FORKED)
    stall = Stall(loader)
    for _ in range(2):
        found = []
        for step, _ in enumerate(loader):  # new workers, unless they persist, are known from the second reading on
            if step in (3, 7):
                found.append(stall.numbers())
    assert ("data/workers" in found[0]) == (not persistent or not os.path.exists("/proc/self/schedstat"))
    assert "data/batches_ready" in found[1]
    if os.path.exists("/proc/self/schedstat"):
        assert set(found[1]) - {"data/batches_ready"} == ALWAYS | {"data/read", "data/cpu", "data/cores"}
    assert is_whole(found[1])
    stall.close()
    if loader_class is fastload.DataLoader:
        loader.close()


@forked
def test_the_loaders_own_statistics_have_the_same_numbers():
    loader = fastload.DataLoader(dataset(), batch_size=4, **FORKED)
    assert loader.statistics().stall == {}
    list(loader)
    found = loader.statistics().stall
    assert set(found) == ALWAYS | {"data/workers", "data/batches_ready"}
    assert is_whole(found)
    assert loader.statistics().stall == found


def test_samples_of_a_stream_are_counted_by_its_batch_size():
    loader = fastload.DataLoader(Stream(lambda: iter(range(40))), batch_size=4)
    list(loader)
    per_step = loader.statistics().stall["data/samples_per_s"] * loader._kept.steps.sums[1] / 1e9
    assert per_step == pytest.approx(4 * loader._kept.steps.sums[0])


def test_samples_are_left_out_where_no_batch_size_is_known():
    loader: Any = torch.utils.data.DataLoader(dataset(), batch_sampler=[[1, 2], [3]])
    stall = Stall(loader)
    list(loader)
    assert "data/samples_per_s" not in stall.numbers()
    stall.close()


@pytest.mark.parametrize("loader_class", LOADERS)
def test_batches_are_the_same_and_in_order(loader_class):
    loader = loader_class(dataset(), batch_size=4)
    plain = [batch.tolist() for (batch,) in loader]
    stall = Stall(loader)
    assert [batch.tolist() for (batch,) in loader] == plain
    stall.close()
    assert [batch.tolist() for (batch,) in loader] == plain


def test_torchs_loader_is_its_own_again_after_the_end():
    loader = torch.utils.data.DataLoader(dataset(), batch_size=4)
    before = set(vars(loader))
    stall = Stall(loader)
    list(loader)
    stall.close()
    assert set(vars(loader)) == before


def test_a_measured_loader_can_be_pickled():
    loader = torch.utils.data.DataLoader(dataset(), batch_size=4)
    stall = Stall(loader)
    list(loader)
    again = pickle.loads(pickle.dumps(loader))
    assert [batch.tolist() for (batch,) in again] == [batch.tolist() for (batch,) in loader]
    stall.close()


@forked
def test_a_measured_iterator_of_torchs_ends_as_soon_as_it_is_dropped():
    loader = torch.utils.data.DataLoader(dataset(), batch_size=4, **FORKED)
    stall = Stall(loader)
    gc.collect()
    gc.disable()
    try:
        iterator = iter(loader)
        next(iterator)
        reference = weakref.ref(iterator)
        del iterator
        assert reference() is None
        assert multiprocessing.active_children() == []
    finally:
        gc.enable()
    stall.close()


def test_an_iterator_that_has_begun_is_measured_too():
    loader = torch.utils.data.DataLoader(dataset(), batch_size=4)
    iterator = iter(loader)
    stall = Stall(loader, iterator)
    list(iterator)
    assert is_whole(stall.numbers())
    stall.close()


def test_an_error_of_the_dataset_is_raised_in_its_place():
    def make(index: int) -> int:
        if index == 5:
            raise ValueError("five")
        return index

    loader = torch.utils.data.DataLoader(Made(10, make), batch_size=2)
    stall = Stall(loader)
    iterator = iter(loader)
    assert [batch.tolist() for _, batch in zip(range(2), iterator, strict=False)] == [[0, 1], [2, 3]]
    with pytest.raises(ValueError, match="five"):
        next(iterator)
    assert [batch.tolist() for batch in iterator] == [[6, 7], [8, 9]]
    stall.close()


def test_another_loader_is_followed_and_what_was_measured_stays():
    first, second = (torch.utils.data.DataLoader(dataset(), batch_size=4) for _ in range(2))
    stall = Stall(first)
    list(first)
    stall.follow(second)
    assert watching._STEPS not in vars(first)
    list(second)
    stall.numbers()
    assert stall._sum.steps == 20
    stall.close()


@pytest.mark.parametrize("loader_class", LOADERS)
def test_two_may_measure_one_loader_and_each_may_end_first(monkeypatch, loader_class):
    monkeypatch.setattr(torch, "Event", _Event)
    monkeypatch.setattr(_Event, "come", True)
    monkeypatch.setattr(device, "used_accelerator", lambda torch: "cuda")
    loader = loader_class(dataset(), batch_size=4)
    one, other = Stall(loader), Stall(loader)
    for end in (lambda: None, one.close, one.close):
        for _ in loader:
            _Event.now_ms += 3.0
        end()
        assert other.numbers()["data/share"] == 0.0, "the device's clock counts on"
    assert (one._sum.steps, other._sum.steps) == (20, 30)
    other.close()


@pytest.mark.parametrize("loader_class", LOADERS)
def test_numbers_and_words_are_still_there_after_the_end(loader_class):
    loader = loader_class(dataset(), batch_size=4)
    stall = Stall(loader)
    list(loader)
    stall.close()
    stall.skip()
    list(loader)
    assert is_whole(stall.numbers())
    assert stall.numbers() == {}
    assert "of the step was lost to data" in stall.last_line()
    assert stall._sum.steps == 10


@forked
@pytest.mark.parametrize("loader_class", LOADERS)
def test_epochs_of_persistent_workers_that_are_left_early_are_told_apart(loader_class):
    loader = loader_class(dataset(), batch_size=4, persistent_workers=True, **FORKED)
    stall = Stall(loader)
    for _ in range(3):
        for step, _ in enumerate(loader):
            if step == 4:
                break
    stall.numbers()
    assert stall._sum.steps == 12, "four complete ones each; what follows the fifth is not its step"
    stall.close()
    again = Stall(loader)
    list(loader)
    again.numbers()
    assert again._sum.steps == 10, "its workers are there already"
    again.close()
    if loader_class is fastload.DataLoader:
        loader.close()


def test_a_shallow_copy_of_a_measured_loader_iterates_itself_and_is_measured_on_its_own():
    loader = torch.utils.data.DataLoader(dataset(), batch_size=4)
    stall = Stall(loader)
    twin = copy.copy(loader)
    twin.collate_fn = len
    assert list(twin) == [4] * 10
    assert stall.numbers() == {}
    its_own = Stall(twin)
    assert list(twin) == [4] * 10
    assert (stall.numbers(), is_whole(its_own.numbers())) == ({}, True)
    its_own.close()
    assert len(next(iter(loader))) == 1
    stall.close()


def test_what_is_no_data_loader_is_an_error_that_says_so():
    with pytest.raises(ConfigError, match=r"torch\.utils\.data\.DataLoader .* type list; leave the callback out"):
        Stall([1, 2, 3])


def test_worker_times_need_two_readings_of_the_same_process(monkeypatch):
    clocks = WorkerClocks()
    readings = iter([{7: (100, 10, 1000)}, {7: (400, 20, 2000), 8: (5, 5, 5)}, {9: (1, 1, 1)}])
    current: dict[int, Any] = {}
    monkeypatch.setattr("fastload.callbacks.processes._read", lambda pid: current.get(pid))
    found = []
    for reading in readings:
        current.clear()
        current.update(reading)
        found.append(clocks.read([7, 8, 9]))
    assert found == [None, (300, 10, 1000), None]


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="the kernel does not count")
def test_the_time_of_a_process_on_a_core_is_read():
    clocks = WorkerClocks()
    assert clocks.read([os.getpid()]) is None
    before = os.times().user
    while os.times().user < before + 0.05:
        pass
    times = clocks.read([os.getpid()])
    assert times is not None
    assert 0 < times.cpu_ns < 2 * times.total_ns  # it is as old as the last tick


class _Event:
    """An event of a device whose time the test sets; complete once the test says so."""

    now_ms = 0.0
    come = False

    def __init__(self, device: str, enable_timing: bool) -> None:
        assert (device, enable_timing) == ("cuda", True)

    def record(self) -> None:
        self.at = _Event.now_ms

    def query(self) -> bool:
        return _Event.come

    def elapsed_time(self, other: _Event) -> float:
        return other.at - self.at


def test_the_devices_clock_is_read_once_its_events_have_come(monkeypatch):
    monkeypatch.setattr(torch, "Event", _Event)
    monkeypatch.setattr(device, "used_accelerator", lambda torch: "cuda")
    sums = device.DeviceSums()
    for idle, busy in ((5.0, 10.0), (2.0, 20.0), (1.0, 30.0)):
        sums.wait_begins()
        _Event.now_ms += idle
        sums.wait_ends()
        _Event.now_ms += busy
    assert (sums.idle_ns, sums.busy_ns) == (0, 0)
    _Event.come = True
    sums.wait_begins()
    sums.wait_ends()
    assert (sums.idle_ns, sums.busy_ns) == (8_000_000, 60_000_000)
    sums.skip()
    _Event.now_ms += 1000.0
    sums.wait_begins()
    _Event.now_ms += 4.0
    sums.wait_ends()
    assert (sums.idle_ns, sums.busy_ns) == (12_000_000, 60_000_000)


def test_with_a_device_its_clock_counts(monkeypatch):
    monkeypatch.setattr(torch, "Event", _Event)
    monkeypatch.setattr(_Event, "come", True)
    monkeypatch.setattr(device, "used_accelerator", lambda torch: "cuda")
    loader = torch.utils.data.DataLoader(dataset(), batch_size=4)
    stall = Stall(loader)
    for _ in loader:
        _Event.now_ms += 3.0
    found = stall.numbers()
    assert found["data/share"] == 0.0  # the device always had something to do
    assert "4 % of" not in stall.last_line()
    assert "0 % of the step was lost to data (by the device's clock)" in stall.last_line()
    stall.close()


@pytest.mark.interpreter
def test_the_callbacks_import_no_library_before_they_are_asked_for():
    code = (
        "import sys, fastload.callbacks, fastload.callbacks.measure\n"
        "libraries = {'lightning', 'pytorch_lightning', 'transformers', 'accelerate', 'tensorboard', 'wandb'}\n"
        "print(sorted(libraries & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")
