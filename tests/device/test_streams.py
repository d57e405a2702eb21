"""The streams of a device, with a device module that counts; for what streams do see test_prefetch.py."""

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torchvision import tv_tensors

from fastload.device.moving import Mover
from fastload.device.prefetch import prefetch
from fastload.device.streams import Streams, copies_async, streams_of
from fastload.work import Batch

META = torch.device("meta")


class Stream:
    made = 0

    def __init__(self, device: Any = None) -> None:
        type(self).made += 1

    def wait_event(self, event: Any) -> None:
        pass


@pytest.fixture
def device(monkeypatch) -> Iterator[torch.device]:
    """A device whose copies have no values, with streams that are counted."""
    monkeypatch.setattr(Stream, "made", 0)
    streams_of.cache_clear()
    compute = Stream()
    module = SimpleNamespace(
        Stream=Stream,
        Event=mock.Mock,
        stream=lambda stream: contextlib.nullcontext(),
        current_stream=lambda device: compute,
        device_count=lambda: 1,
    )
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    monkeypatch.setattr(Tensor, "record_stream", lambda leaf, stream: None)
    monkeypatch.setattr(Tensor, "is_pinned", lambda leaf: bool(getattr(leaf, "is_locked", False)))

    def pin_memory(leaf: Tensor) -> Tensor:
        locked = leaf.as_subclass(Tensor).clone()
        locked.is_locked = True  # type: ignore[attr-defined]
        return locked

    monkeypatch.setattr(Tensor, "pin_memory", pin_memory)
    yield META
    streams_of.cache_clear()


def test_all_iterations_over_a_device_share_two_streams(device):
    before = Stream.made
    for _ in range(5):
        assert len(list(prefetch([torch.ones(2)] * 3, "meta:0"))) == 3
    assert Stream.made == before + 2
    both = [iter(prefetch([torch.ones(2)] * 3, "meta:0")) for _ in range(2)]
    for iterator in both:
        next(iterator)
    assert Stream.made == before + 2


@pytest.mark.parametrize("lies", ["at once", "turned round"])
@pytest.mark.parametrize("locked", [False, True])
def test_a_tensor_keeps_its_class_and_what_belongs_to_it(device, lies, locked):
    values = torch.arange(8.0).reshape(2, 4)
    boxes = tv_tensors.BoundingBoxes(
        values if lies == "at once" else values.t().contiguous().t(), format="XYWH", canvas_size=(5, 6)
    )  # type: ignore[call-overload]
    boxes.is_locked = locked
    copy = Streams(device).to_device(boxes)
    assert copy.stride() == boxes.stride()
    assert type(copy) is tv_tensors.BoundingBoxes
    assert copy.device.type == "meta"
    assert copy.canvas_size == (5, 6)
    assert copy.format == boxes.format


class Graph:
    """As PyG's Data."""

    def __init__(self, x: Tensor, calls: list[str]) -> None:
        self.x = x
        self.calls = calls

    def pin_memory(self) -> "Graph":
        self.calls.append("pinned")
        return self

    def to(self, device: Any, non_blocking: bool = False) -> "Graph":
        self.calls.append(f"copied, non_blocking={non_blocking}")
        return Graph(self.x.to(device), self.calls)

    def record_stream(self, stream: Any) -> None:
        self.calls.append("recorded")


def moved(device: torch.device, batch: Any, **options: Any) -> Any:
    mover = Mover(device, Streams(device), **options)
    moved = Batch(data=batch)
    mover.move(moved)
    mover.lend(moved.data, moved.event)
    return moved.data


def test_objects_that_can_be_page_locked_and_recorded_are_copied_like_tensors(device):
    calls: list[str] = []
    made = moved(device, {"graph": Graph(torch.ones(3), calls)}, transform=lambda batch, _: batch)
    assert made["graph"].x.device.type == "meta"
    assert calls == ["pinned", "copied, non_blocking=True", "recorded", "recorded"]


def test_other_objects_are_copied_by_their_own_call_alone(device):
    plain = mock.Mock(spec=["to"])
    moved(device, [plain], transform=lambda batch, _: batch)
    assert plain.mock_calls == [mock.call.to(device)]
    assert not copies_async(plain)
    assert not copies_async(torch.ones(2))


def test_the_tensors_of_a_packed_sequence_are_page_locked_and_recorded(device, monkeypatch):
    recorded = []
    monkeypatch.setattr(Tensor, "record_stream", lambda leaf, stream: recorded.append(leaf.shape))
    monkeypatch.setattr(Streams, "holds", lambda self, leaf: leaf.device.type == "meta")
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    made = moved(device, packed, transform=lambda batch, _: batch)
    assert isinstance(made, PackedSequence)
    assert made.data.device.type == "meta"
    assert recorded == [torch.Size([5])] * 2
