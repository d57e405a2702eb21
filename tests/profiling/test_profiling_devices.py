"""The device's idle time and copies to it, with simulated events: nothing waits, nothing is lost, nothing is set up."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from profiled import Notes
from torchvision.tv_tensors import Image

from fastload.profiling.hooks.devices import CopyHooks, DeviceClock, used_accelerator
from fastload.profiling.hooks.patching import Patches
from fastload.profiling.recorder import Recorder
from fastload.profiling.ring import RecordKind, RingFile


class Device:
    """A stream: work is done in order, each piece from when it may begin; events come when what is before them is."""

    def __init__(self) -> None:
        self.now = 0
        self.busy_until = 0
        self.made = 0

    def work(self, ns: int) -> None:
        self.busy_until = max(self.now, self.busy_until) + ns

    def make(self) -> Event:
        self.made += 1
        return Event(self)


class Event:
    def __init__(self, device: Device) -> None:
        self.device = device
        self.at: int | None = None

    def record(self) -> None:
        self.at = max(self.device.now, self.device.busy_until)

    def query(self) -> bool:
        assert self.at is not None
        return self.at <= self.device.now

    def elapsed_time(self, later: Event) -> float:
        assert self.query()
        assert later.query()
        assert self.at is not None
        assert later.at is not None
        return (later.at - self.at) / 1e6


def clock_of(device: Device, make: Callable[[], Any] | None = None) -> tuple[DeviceClock, Notes]:
    notes = Notes()
    return DeviceClock(notes, make or device.make), notes  # type: ignore[arg-type]


times = st.integers(0, 50_000_000)


@given(st.lists(st.tuples(times, times, times), min_size=1, max_size=40))
def test_idle_time_is_the_devices_own(steps: list[tuple[int, int, int]]) -> None:
    device = Device()
    clock, notes = clock_of(device)
    expected = []
    for batch, (wait, launch, compute) in enumerate(steps):
        before = max(device.now, device.busy_until)
        clock.wait_begins()
        begun = device.now
        device.now += wait
        after = max(device.now, device.busy_until)
        clock.wait_ends(7, batch, begun, device.now)
        expected.append((7, batch, after - before))
        device.work(compute)  # launched at once, done later
        device.now += launch
    device.now = device.busy_until + device.now
    clock.read()
    found = [(record.a, record.b, record.c) for record in notes.records]
    assert found == [pytest.approx(one, abs=1) for one in expected]
    assert all(record.kind == RecordKind.DEVICE for record in notes.records)
    assert notes.signals == []


def test_a_device_that_is_far_behind_is_told_of_and_bounds_what_is_kept() -> None:
    device = Device()
    clock, notes = clock_of(device)
    device.work(10**12)
    for batch in range(2000):
        clock.wait_begins()
        clock.wait_ends(0, batch, 0, 0)
    assert device.made < 1200
    assert notes.records == []
    assert set(notes.signals) == {"idle time of the device in some steps"}
    device.now = 10**13
    clock.read()
    assert len(notes.records) == 512
    made = device.made
    for batch in range(2000):
        clock.wait_begins()
        clock.wait_ends(0, batch, 0, 0)
    assert device.made == made, "events are used again"


def test_events_that_cannot_be_made_are_told_of_and_no_error_of_the_scripts() -> None:
    def make() -> Event:
        raise RuntimeError("no timing")

    clock, notes = clock_of(Device(), make)
    for batch in range(2):
        clock.wait_begins()
        clock.wait_ends(0, batch, 0, 0)
    clock.read()
    assert notes.records == []
    assert set(notes.signals) == {"idle time of the device in some steps"}


def test_an_accelerator_that_the_script_has_not_set_up_is_left_alone() -> None:
    state = SimpleNamespace(initialized=False)
    fake = SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: state.initialized))
    assert used_accelerator(SimpleNamespace()) is None
    assert used_accelerator(fake) is None  # and nothing else of it was asked: it has nothing else
    state.initialized = True
    assert used_accelerator(fake) == "cuda"


# -- copies -----------------------------------------------------------------------------------------------------------


class Elsewhere(torch.Tensor):
    """Says that it lies on a device."""

    device = torch.device("cuda", 0)  # type: ignore[assignment]


class Kept(torch.Tensor):
    """A class whose method can be replaced without changing torch's own."""

    def to(self, *arguments: Any, **named: Any) -> Any:  # type: ignore[override]
        if arguments == ("cuda",):
            return torch.zeros(2).as_subclass(Elsewhere)
        return torch.Tensor.to(self.as_subclass(torch.Tensor), *arguments, **named)


def test_copies_to_a_device_are_told_and_others_are_not(tmp_path: Path) -> None:
    recorder = Recorder(str(tmp_path))
    original = Kept.to
    copies = CopyHooks(recorder, Patches(recorder))
    copies.patch_tensor(Kept)
    tensor = torch.zeros(100).as_subclass(Kept)
    assert type(tensor.to("cuda", non_blocking=True)) is Elsewhere
    assert tensor.to(torch.float64).dtype == torch.float64
    assert tensor.to("cpu") is not None
    copies.close()
    assert Kept.to is original
    (path,) = tmp_path.glob("*.ring")
    (record,) = RingFile(str(path)).records
    assert (record.kind, record.small) == (RecordKind.COPY, 2)
    assert record.begun <= record.ended


@pytest.fixture
def heard(tmp_path: Path) -> Any:
    recorder = Recorder(str(tmp_path))
    places = Patches(recorder)
    methods = torch.Tensor.to, torch.Tensor.cuda
    copies = CopyHooks(recorder, places)
    copies.patch_torch(torch)
    copies.patch_tensor(torch.Tensor)
    assert torch.Tensor.to is not methods[0]
    yield methods
    copies.close()
    places.restore()
    assert (torch.Tensor.to, torch.Tensor.cuda) == methods
    assert type(torch.Tensor.to) is type(methods[0])


def test_torchs_method_works_as_before_while_it_is_heard(heard: Any) -> None:
    tensor = torch.arange(6.0, requires_grad=True)
    assert torch.equal(torch.Tensor.to(tensor, torch.float64), tensor.double())
    tensor.to(torch.float64).sum().backward()
    assert torch.equal(tensor.grad, torch.ones(6))  # type: ignore[arg-type]
    assert {heard[0]: 1}[torch.Tensor.to] == 1, "libraries look methods up in tables"
    model = torch.nn.Linear(2, 2).to(torch.float64)
    assert model.weight.dtype == torch.float64
    assert torch.nn.Parameter(torch.ones(1)).to("cpu").requires_grad
    assert type(Image(torch.zeros(3, 4, 4)).to(torch.float64)) is Image, "torchvision's tensors keep their class"
    assert torch.Tensor.to.__name__ == "to"


def test_once_the_script_compiles_the_methods_are_torchs_own_and_copies_are_missing(heard: Any, tmp_path: Path) -> None:
    function = torch.compile(lambda x: x.to(torch.float64) * 2, backend="eager", fullgraph=True)
    assert (torch.Tensor.to, torch.Tensor.cuda) == heard
    assert type(torch.Tensor.to) is type(heard[0])
    values = torch.tensor([random.random()])
    assert torch.equal(function(values), values.double() * 2)
    (notes,) = tmp_path.glob("*.jsonl")
    assert '"signal": "copies to the device", "why": "the script calls torch.compile' in notes.read_text()
