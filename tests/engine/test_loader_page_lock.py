"""Loaders with page-locked slots: however they end, all is unlocked after the copies; none of it was the user's."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kit.ways
import numpy as np
import pytest
import torch
from kit.forks import is_true_in_a_child
from page_lock_simulation import CopyingStreams, SimulatedPages, WatchedLibc
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import Dataset, default_collate

from fastload import DataLoader, WorkerDied
from fastload.buffers import page_lock, slots
from fastload.buffers.private_memory import PrivateMemory
from fastload.device import prefetch as device_stage
from fastload.device.prefetch import DeviceAhead

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="only Linux's memory is page-locked")

LENGTH = 60
BATCHES = [list(range(start, start + 4)) for start in range(0, LENGTH, 4)]
WAYS = {name: kit.ways.WAYS[name] for name in ("processes", "threads", "kept", "forkserver")}
WAYS["pipes"] = WAYS["processes"]
FEW_WAYS = ["processes", "pipes", "threads"]


class Images(Dataset[Any]):
    """Each image is full of its index, and large enough for a mapping of its own."""

    def __init__(self, bad: int | None = None, deadly: int | None = None, gate: Any = None) -> None:
        self.bad = bad
        self.deadly = deadly
        self.gate = gate

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index == self.bad:
            raise ValueError(f"sample {index} is bad")
        if index == self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.gate is not None:
            self.gate.wait(30)
        return torch.full((3, 16, 16), float(index)), index


class Device:
    """A device that is not there."""

    def __init__(self) -> None:
        self.pages = SimulatedPages()
        self.streams = CopyingStreams(self.pages)
        self.seen: list[Any] = []

    def read_late(self, images: Tensor) -> None:
        """Queue a kernel that reads images."""
        self.streams.kernel(images, lambda block: self.seen.append(block[:, 0, 0, 0].int().tolist()))


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """Loaders with ``device="cpu"`` copy to a device that works late. Afterwards nothing may be locked or wrong."""
    made = Device()
    monkeypatch.setattr(device_stage, "streams_of", lambda _: made.streams)
    monkeypatch.setattr(page_lock, "pages_of", lambda _: made.pages)
    monkeypatch.setattr(slots, "LIBC", WatchedLibc(slots.LIBC, made.pages))
    yield made
    gc.collect()
    assert made.pages.wrong == []
    assert made.pages.reading == []
    assert made.pages.locked == {}


def loader_of(way: str, monkeypatch: pytest.MonkeyPatch, dataset: Any = None, **options: Any) -> DataLoader[Any]:
    if way == "pipes":
        monkeypatch.setenv("FASTLOAD_TRANSPORT", "pipes")
    return DataLoader(Images() if dataset is None else dataset, 4, device="cpu", **WAYS[way], **options)


def leave_at_the_end(found: DataLoader[Any], device: Device) -> None:
    for images, _ in found:
        device.read_late(images)


def leave_by_break(found: DataLoader[Any], device: Device) -> None:
    for place, (images, _) in enumerate(found):
        device.read_late(images)
        if place == 5:
            break


def leave_by_close(found: DataLoader[Any], device: Device) -> None:
    iterator = iter(found)
    for _ in range(3):
        device.read_late(next(iterator)[0])
    found.close()


def leave_in_a_cycle(found: DataLoader[Any], device: Device) -> None:
    iterator = iter(found)
    device.read_late(next(iterator)[0])
    cycle: list[Any] = [iterator]
    cycle.append(cycle)
    found._iterator = None
    del iterator, cycle
    gc.collect()


def leave_at_once(found: DataLoader[Any], device: Device) -> None:
    iter(found)


LEAVE = [leave_at_the_end, leave_by_break, leave_by_close, leave_in_a_cycle, leave_at_once]


@pytest.mark.parametrize(
    ("way", "leave"),
    [(way, leave) for way in WAYS for leave in (LEAVE if way in FEW_WAYS else [leave_by_break, leave_by_close])],
)
def test_however_an_iteration_is_left_its_slots_are_unlocked_after_the_copies(way, leave, device, monkeypatch):
    found = loader_of(way, monkeypatch)
    for _ in range(2):
        leave(found, device)
    found.close()
    device.streams.compute.run()
    assert all(seen in BATCHES for seen in device.seen)
    if leave is leave_at_the_end:
        assert device.seen[: len(BATCHES)] == BATCHES
        assert device.streams.num_staged == 0
        assert device.streams.num_direct == 2 * len(device.seen)
    if leave is not leave_at_once:
        assert device.pages.num_locked > 0
        assert device.pages.threads == {threading.main_thread()}
        assert found.statistics().page_locked is True
        assert "device      cpu, 2 batches ahead, from page-locked slots" in found.explain()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("way", FEW_WAYS)
def test_late_copies_read_their_own_batch_whenever_streams_run(way, seed, device, monkeypatch):
    rng = random.Random(seed)
    on_host = {"keep_on_host": (1,)} if seed == 2 else {}
    found = loader_of(way, monkeypatch, prefetch_to_device=1 + seed, fixed_buffers=seed == 3, **on_host)
    kept: list[Any] = []
    numbers: list[Tensor] = []
    for images, labels in found:
        device.read_late(images)
        if on_host:  # copied out
            assert not device.pages.holds(labels.data_ptr(), labels.nbytes)
            numbers.append(labels)
        kept = [images, labels] if rng.random() < 0.5 else []
        if rng.random() < 0.3:
            device.streams.copies.run()
        if rng.random() < 0.1:
            device.streams.compute.run()
    del kept, images, labels
    found.close()
    device.streams.compute.run()
    assert device.seen == BATCHES
    assert [labels.tolist() for labels in numbers] == (BATCHES if on_host else [])


@pytest.mark.parametrize("way", [*FEW_WAYS, "forkserver"])
def test_memory_is_locked_once_for_a_loaders_life_however_its_iterations_end(way, device, monkeypatch):
    found = loader_of(way, monkeypatch)
    for leave in (leave_at_the_end, leave_by_break, leave_at_the_end):
        leave(found, device)
        gc.collect()
        assert device.pages.locked
    device.streams.compute.run()
    assert device.seen == BATCHES + BATCHES[:6] + BATCHES
    most = found.statistics().slots
    assert device.pages.num_locked == len(device.pages.locked) <= most <= 2 * found.num_workers + 2 + 3
    found.close()
    assert not device.pages.locked


def test_two_iterations_at_once_have_slots_of_their_own_and_those_of_one_are_kept(device, monkeypatch):
    found = loader_of("processes", monkeypatch)
    for one, other in zip(iter(found), iter(found), strict=True):
        device.read_late(one[0])
        device.read_late(other[0])
    gc.collect()
    locked = len(device.pages.locked)
    leave_at_the_end(found, device)
    assert len(device.pages.locked) <= locked + 2
    device.streams.compute.run()
    assert device.seen == [batch for batch in BATCHES for _ in range(2)] + BATCHES


def test_a_child_of_the_users_has_slots_of_its_own(device, monkeypatch):
    found = loader_of("threads", monkeypatch)
    leave_at_the_end(found, device)
    kept = found._kept.idle
    assert kept is not None
    calls = device.pages.calls
    assert is_true_in_a_child(lambda: kept.taken(PrivateMemory, found.device) is None and device.pages.calls == calls)
    found.close()
    device.streams.compute.run()


def test_slots_are_locked_while_workers_are_waited_for(device, monkeypatch):
    """Nothing is loaded before a slot is locked, so none is lent yet."""
    gate = multiprocessing.Event()
    gate.set()
    found = loader_of("processes", monkeypatch, Images(gate=gate))
    leave_at_the_end(found, device)  # now the layout is known
    found.close()
    device.streams.compute.run()
    gate.clear()
    register = device.pages.register

    def registered(address: int, num_bytes: int) -> None:
        register(address, num_bytes)
        gate.set()

    device.pages.register = registered  # type: ignore[method-assign]
    begun = time.monotonic()
    leave_at_the_end(found, device)
    assert time.monotonic() - begun < 30
    found.close()
    device.streams.compute.run()


def collated_turned(samples: list[Any]) -> Any:
    images, labels = default_collate(samples)
    turned = images.contiguous(memory_format=torch.channels_last)
    return {
        "images": turned,
        "labels": [labels, images[:, 0].permute(2, 1, 0)],
        "own": Uncopied(images),
        "none": images[:0],
    }


@pytest.mark.parametrize("kept", [(), ("labels.0",)], ids=str)
def test_threads_lay_whole_batches_into_slots_and_what_stays_on_the_host_is_the_very_object(kept, device, monkeypatch):
    given = []

    def collate(samples: list[Any]) -> Any:
        given.append(collated_turned(samples))
        return given[-1]

    found = loader_of("threads", monkeypatch, collate_fn=collate, keep_on_host=kept)
    for place, batch in enumerate(found):
        device.read_late(batch["images"])
        first = next(one for one in given if one["labels"][0][0] == 4 * place)
        assert batch["own"] is first["own"]
        assert (batch["labels"][0] is first["labels"][0]) == bool(kept)
        assert batch["images"].shape == (4, 3, 16, 16)
        assert batch["labels"][1].shape == (16, 16, 4)
        assert not any(device.pages.holds(*spot) for spot in memory_in(batch["own"]))
    assert device.streams.num_direct == (2 if kept else 3) * LENGTH // 4
    assert device.streams.num_staged == LENGTH // 4  # what has no elements
    found.close()
    device.streams.compute.run()
    assert device.seen == BATCHES


@pytest.mark.parametrize("way", FEW_WAYS)
def test_after_errors_and_an_interrupt_the_copies_are_still_waited_for(way, device, monkeypatch):
    def transform(batch: Any) -> Any:
        given.append(None)
        if len(given) in raised:
            raise raised[len(given)]
        return batch

    given: list[None] = []
    raised = {5: ValueError("the transform is bad"), 9: KeyboardInterrupt("now")}
    found = loader_of(way, monkeypatch, Images(bad=22), batch_transform=transform)
    errors = []
    iterator = iter(found)
    while "now" not in errors:
        try:
            device.read_late(next(iterator)[0])
        except (ValueError, KeyboardInterrupt) as error:
            errors.append(str(error).splitlines()[-1])
    found.close()
    assert not device.pages.reading
    device.streams.compute.run()
    assert errors == ["the transform is bad", "ValueError: sample 22 is bad", "now"]
    assert [seen[0] for seen in device.seen] == [start for start in range(0, 36, 4) if start not in (16, 20)]


def test_when_a_worker_dies_its_slots_are_unlocked_after_the_copies(device, monkeypatch):
    found = loader_of("processes", monkeypatch, Images(deadly=30))
    with pytest.raises(WorkerDied):
        leave_at_the_end(found, device)
    device.streams.compute.run()
    assert device.seen == [list(range(4 * place, 4 * place + 4)) for place in range(len(device.seen))]


@pytest.mark.parametrize("refuse_from", [0, 2])
@pytest.mark.parametrize("way", FEW_WAYS)
def test_where_the_system_refuses_batches_are_staged_and_it_is_said(way, refuse_from, device, monkeypatch):
    device.pages.refuse_from = refuse_from
    found = loader_of(way, monkeypatch)
    assert found.statistics().page_locked is None
    leave_at_the_end(found, device)
    assert found.statistics().page_locked is False
    assert (
        "device      cpu, 2 batches ahead, through a staging copy: cudaHostRegister failed: out of memory (2)"
        in found.explain()
    )
    device.streams.compute.run()
    assert device.seen == BATCHES
    assert device.streams.num_staged > 0
    assert (device.streams.num_direct > 0) == (refuse_from > 0)
    found.close()


def test_without_workers_nothing_is_locked_and_it_is_said(device):
    found = DataLoader(Images(), 4, device="cpu")
    leave_at_the_end(found, device)
    device.streams.compute.run()
    assert device.seen == BATCHES
    assert device.pages.calls == 0
    assert found.statistics().page_locked is None
    assert "through a staging copy: they do not lie in slots" in found.explain()
    found.close()


def test_without_a_device_nothing_is_locked_or_said(device):
    for options in ({}, {"batch_transform": lambda batch: batch}):
        found = DataLoader(Images(), 4, num_workers=1, **options)
        device.streams.compute.run()
        for _ in found:
            device.streams.compute.run()
        assert found.statistics().page_locked is None
        assert "slots" not in found.explain().replace("slots of up to", "")
        found.close()
    assert device.pages.calls == 0


@pytest.mark.parametrize("dont_fork", [False, True])
def test_workers_never_lock_or_unlock(dont_fork, device, monkeypatch):
    device.pages.dont_fork = dont_fork
    found = loader_of("processes", monkeypatch)
    leave_at_the_end(found, device)  # what is locked now is inherited by the next workers
    held = iter(found)
    device.read_late(next(held)[0])
    other = iter(found)
    device.read_late(next(other)[0])
    workers = [*held._workers, *other._workers]
    found.close()
    assert [worker.exitcode for worker in workers] == [0] * 4


@pytest.mark.parametrize("way", FEW_WAYS)
def test_a_child_of_the_users_unlocks_nothing_and_waits_for_no_device(way, device, monkeypatch):
    found = loader_of(way, monkeypatch)
    iterator: Any = iter(found)
    for _ in range(3):
        device.read_late(next(iterator)[0])
    assert device.pages.reading
    before = device.pages.calls, device.streams.copies.done

    def leave() -> bool:
        nonlocal iterator
        found.close()
        iterator = None
        gc.collect()
        return (device.pages.calls, device.streams.copies.done) == before

    assert is_true_in_a_child(leave)
    for images, _ in iterator:
        device.read_late(images)
    found.close()
    device.streams.compute.run()
    assert device.seen == BATCHES


AT_EXIT = """
import os, sys
import torch
from page_lock_simulation import CopyingStreams, SimulatedPages
from fastload import DataLoader
from fastload.buffers import page_lock
from fastload.device import prefetch

pages = SimulatedPages()
simulated = CopyingStreams(pages)
prefetch.streams_of, page_lock.pages_of = lambda _: simulated, lambda _: pages
unlock = pages.unregister

def unregister(address, unlock=unlock, pages=pages, is_read=pages.is_read, leave=os._exit):
    if is_read(address, pages.locked[address]):
        leave(3)
    unlock(address)

pages.unregister = unregister
images = torch.arange(60.0)[:, None].repeat(1, 1000)
dataset = torch.utils.data.TensorDataset(images)
iterator = iter(DataLoader(dataset, 4, num_workers=1, device="cpu", worker_method=METHOD))
next(iterator), next(iterator)
assert len(pages.reading) >= 2
torch.kept = iterator, simulated  # a module that goes after this one
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["multiprocessing", "thread"])
def test_an_interpreter_that_ends_under_a_copy_does_so_without_a_word(method):
    here = Path(__file__).parents[1]  # where page_lock_simulation.py is
    done = subprocess.run(
        [sys.executable, "-c", AT_EXIT.replace("METHOD", repr(method))],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(slots.__file__).parents[2]), str(here)])},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("way", FEW_WAYS)
def test_a_stage_that_lets_go_of_slots_under_their_copies_is_caught(way, device, monkeypatch):
    monkeypatch.setattr(DeviceAhead, "_hold", lambda *_: None)
    found = loader_of(way, monkeypatch, prefetch_to_device=LENGTH)
    leave_at_the_end(found, device)
    device.streams.compute.run()
    assert "rewritten under a copy" in device.pages.wrong
    device.pages.wrong.clear()
    found.close()


class Attributed(dict):  # type: ignore[type-arg]
    """A dict with something of its own."""

    shown: Tensor
    more: Tensor


class Holder:
    """Not a batch's container, and it does not move."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def collated_oddly(samples: list[Any]) -> Any:
    images, labels = default_collate(samples)
    made = Attributed(
        images=images,
        kept=[labels.repeat(2000), {"again": images}],
        array=images.double().numpy(),
        holder=Holder(images + 1),
        packed=pack_sequence(list(images.flatten(1)), enforce_sorted=False),
        text=["a", "b"],
    )
    made.shown = made["images"]
    made.more = images + 2
    return made


def memory_in(value: Any) -> list[tuple[int, int]]:
    """Return the places of all tensors and arrays in a batch made by ``collated_oddly``."""
    if isinstance(value, Tensor):
        return [(value.untyped_storage().data_ptr(), value.untyped_storage().nbytes())]
    if isinstance(value, np.ndarray):
        return [(value.__array_interface__["data"][0], value.nbytes)]
    if isinstance(value, Attributed):
        return [place for part in [*value.values(), *vars(value).values()] for place in memory_in(part)]
    if isinstance(value, Holder):
        return memory_in(value.tensor)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [place for part in parts if not isinstance(part, str) for place in memory_in(part)]


def test_whatever_a_batch_is_made_of_no_page_locked_memory_reaches_the_user(device, monkeypatch):
    found = loader_of("processes", monkeypatch, collate_fn=collated_oddly, keep_on_host=("kept",))
    given = []
    for batch in found:
        given.append(batch)
        places = memory_in(batch)
        assert len(places) >= 10
        assert not any(device.pages.holds(*place) for place in places)
        assert type(batch) is Attributed
        device.read_late(batch["images"])
    assert device.streams.num_direct == len(given)
    assert device.pages.num_locked > 0
    found.close()
    device.streams.compute.run()
    for place, batch in enumerate(given):
        labels = torch.arange(4 * place, 4 * place + 4)
        images = labels.float()[:, None, None, None].expand(4, 3, 16, 16)
        assert torch.equal(batch["images"], images)
        assert torch.equal(batch["kept"][0], labels.repeat(2000))
        assert torch.equal(batch["kept"][1]["again"], images)
        assert np.array_equal(batch["array"], images.double().numpy())
        assert torch.equal(batch["holder"].tensor, images + 1)
        assert torch.equal(batch.shown, images)
        assert torch.equal(batch.more, images + 2)
        assert isinstance(batch["packed"], PackedSequence)
        assert batch["packed"].sorted_indices.tolist() == [0, 1, 2, 3]
        assert batch["text"] == ["a", "b"]


class Uncopied(Holder):
    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("I am the only one")


def collated_uncopied(samples: list[Any]) -> Any:
    images, _ = default_collate(samples)
    return images, Uncopied(images + 1)


def test_what_cannot_be_copied_out_is_an_error_that_says_what_to_do(device, monkeypatch):
    found = loader_of("processes", monkeypatch, collate_fn=collated_uncopied)
    with pytest.raises(TypeError, match="I am the only one") as caught:
        next(iter(found))
    assert "return tensors, or objects that copy.deepcopy can copy" in caught.value.__notes__[0]
    found.close()
    del caught
