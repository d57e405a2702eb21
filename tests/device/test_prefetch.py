"""The device stage: order and errors as the source's, memory never written too early, on any device."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import gc
import math
import os
import weakref
from collections import UserDict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from device_simulation import Race, SimulatedStreams, Stream
from hypothesis import given
from hypothesis import strategies as st
from kit.comparison import difference
from kit.forks import is_true_in_a_child
from kit.recycled import Recycled

from fastload import ConfigError
from fastload.device import prefetch as device_module
from fastload.device.moving import Mover
from fastload.device.pinning import PinnedAhead
from fastload.device.prefetch import prefetch
from fastload.errors import LoadTimeout
from fastload.work import Batch

CPU = torch.device("cpu")


class DeviceAhead(device_module.DeviceAhead):
    """Gives the data of batches, or raises the errors in their place."""

    def next(self, wait: bool = True) -> Any:
        return super().next(wait).result()


def moved_with(streams: Any, **options: Any) -> Mover:
    return Mover(CPU, streams, **options)


def negated(streams: SimulatedStreams) -> dict[str, Any]:
    """Return the option of a transform that is a kernel."""
    return {"transform": lambda batch, _: {"x": streams.work(torch.neg, batch["x"])}}


@given(
    number=st.integers(0, 12),
    depth=st.integers(1, 4),
    blocking=st.booleans(),
    fixed=st.booleans(),
    transforms=st.booleans(),
    plan=st.lists(st.sampled_from(["copies", "transforms", "compute", "ready", "keep", "drop"]), max_size=60),
)
def test_a_kernel_reads_its_own_batch_whenever_streams_run_and_memory_is_dropped(
    number, depth, blocking, fixed, transforms, plan
):
    streams = SimulatedStreams()
    source = Recycled(number, ready=math.inf if blocking else 0)
    options = negated(streams) if transforms else {}
    mover = moved_with(streams, num_buffers=(depth + 2) * fixed, **options)
    ahead = DeviceAhead(source, mover, depth)
    seen: list[float] = []
    kept: list[Any] = []
    steps = iter(plan)
    for expected in range(number):
        for step in iter(lambda: next(steps, "go"), "go"):
            if step in ("copies", "transforms", "compute"):
                getattr(streams, step).run()
            elif step == "ready":
                source.ready += 1
            elif step == "drop":
                kept.clear()
            else:
                break
        batch = ahead.next()
        streams.kernel(batch["x"], lambda block: seen.append(block.mean().item()))
        if expected % 3 == 0:
            kept.append(batch)
        del batch
        assert len(ahead._ready) <= depth
    with pytest.raises(StopIteration):
        ahead.next()
    streams.compute.run()
    assert seen == [-expected if transforms else expected for expected in range(number)]
    ahead.close()


def lagging(source: Recycled, depth: int, streams: SimulatedStreams, part: Any = None, **options: Any) -> list[float]:
    """Let the copies and transforms be done at once, and the kernels of a loop when the host waits for them."""
    ahead = DeviceAhead(source, moved_with(streams, **options), depth)
    seen: list[float] = []
    for _ in range(source.number):
        batch = ahead.next()
        streams.kernel(part(batch) if part else batch["x"], lambda block: seen.append(block.mean().item()))
        del batch
        streams.copies.run()
        streams.transforms.run()
    streams.compute.run()
    ahead.close()
    return seen


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_however_far_the_device_is_behind_so_much_memory_is_used_and_no_more(depth):
    number = 100
    streams = SimulatedStreams()
    assert lagging(Recycled(number), depth, streams) == list(range(number))
    assert streams.num_blocks <= depth + 3
    streams = SimulatedStreams()
    lagging(Recycled(number), depth, streams, **negated(streams))
    assert streams.num_blocks <= 2 * (depth + 3)  # what is copied, and what is made of it


def test_the_host_does_not_wait_while_a_batch_is_ready():
    streams = SimulatedStreams()
    ahead = DeviceAhead(Recycled(20), moved_with(streams), 3)
    for expected in range(5):  # depth + 2
        batch = ahead.next()
        streams.kernel(batch["x"])
        assert streams.compute.done == 0, expected
    ahead.next()
    assert streams.compute.done > 0
    ahead.close()


def test_epochs_one_after_the_other_have_the_bound_together_and_two_at_once_give_what_each_gives_alone():
    streams = SimulatedStreams()
    mover = moved_with(streams)
    for _ in range(30):  # of two batches
        ahead = DeviceAhead(Recycled(2), mover, 2)
        for _ in range(2):
            streams.kernel(ahead.next()["x"])
        ahead.close()
    assert streams.num_blocks <= 5
    both = [DeviceAhead(Recycled(20), mover, 3) for _ in range(2)]
    seen: list[float] = []
    for _ in range(20):
        for ahead in both:
            streams.kernel(ahead.next()["x"], lambda block: seen.append(block.mean().item()))
    streams.compute.run()
    assert seen == [number for number in range(20) for _ in both]
    assert streams.num_blocks <= 2 * (3 + 3)


def test_views_are_lent_to_whatever_stream_the_user_has_by_then_and_to_each_once():
    streams = SimulatedStreams()
    mover = moved_with(streams)
    batch = Batch(data={"x": torch.ones(4)})
    mover.move(batch)
    first = mover.lend(batch.data, batch.event)
    queued = first.queued
    assert mover.lend(batch.data, batch.event, first) is first
    assert first.queued == queued
    streams.compute = Stream("second", streams.host)
    with pytest.raises(Race):
        streams.kernel(batch.data["x"])
    assert mover.lend(batch.data, batch.event, first) is streams.compute
    streams.kernel(batch.data["x"])


def test_a_copy_does_not_wait_for_the_transform_of_the_batch_before():
    streams = SimulatedStreams()
    ahead = DeviceAhead(Recycled(9), moved_with(streams, **negated(streams)), 2)
    for _ in range(2):
        ahead.next()
    streams.copies.run()
    assert streams.copies.done == streams.copies.queued == 4
    assert streams.transforms.done == 0
    ahead.close()


def into_fixed_places_while_the_last_batch_is_in_use(streams: SimulatedStreams) -> None:
    """It may be, until the new iteration is asked for its first batch."""
    ahead = DeviceAhead(Recycled(99), moved_with(streams, num_buffers=3), 1)
    for end in (ahead.drop, ahead.close):
        for _ in range(2):
            batch = ahead.next()
            streams.compute.run()  # so that more is copied ahead, and dropped
            streams.kernel(batch["x"])
        end()
        if end == ahead.close:
            ahead = DeviceAhead(Recycled(99), ahead._mover, 1)
        streams.kernel(batch["x"])
    for _ in range(2):
        ahead.next()
    ahead.close()


def into_fixed_places_with_another_stream_of_the_users(streams: SimulatedStreams) -> None:
    mover = moved_with(streams, num_buffers=3)
    for name in ("first", "second"):
        streams.compute = Stream(name, streams.host)
        ahead = DeviceAhead(Recycled(9), mover, 1)
        for _ in range(2):
            streams.kernel(ahead.next()["x"])
        ahead.close()


def from_the_device(streams: SimulatedStreams) -> None:
    batches = ({"x": streams.made(torch.full((4,), float(number)))} for number in range(6))
    ahead = DeviceAhead(Failing(batches), moved_with(streams, **negated(streams)), 3)
    kept = []
    for _ in range(6):
        streams.kernel(ahead.next()["x"])
        kept += [streams.made(torch.zeros(4)) for _ in range(3)]  # the user takes memory that was given back
    ahead.close()


def with_a_weight_of_the_users(streams: SimulatedStreams) -> None:
    weight = streams.made(torch.ones(4))

    def transform(batch: Any, _: Any) -> Any:
        return {"x": streams.work(torch.neg, weight)}

    ahead = DeviceAhead(Recycled(3), moved_with(streams, transform=transform), 1)
    streams.kernel(ahead.next()["x"])
    ahead.close()


def there_already_and_read_by_another_stream_of_the_users(streams: SimulatedStreams) -> None:
    batch = Batch(data={"x": streams.made(torch.ones(4)), "y": torch.ones(2)})
    moved_with(streams).move(batch)
    streams.compute = streams._current = Stream("second", streams.host)
    moved_with(streams).lend(batch.data, batch.event)
    streams.kernel(batch.data["x"])
    streams.kernel(batch.data["y"])


SCENES = [
    there_already_and_read_by_another_stream_of_the_users,
    into_fixed_places_while_the_last_batch_is_in_use,
    into_fixed_places_with_another_stream_of_the_users,
    from_the_device,
    with_a_weight_of_the_users,
]


@pytest.mark.parametrize("scene", SCENES)
def test_the_stage_does_nothing_that_a_device_would_punish(scene):
    scene(SimulatedStreams())


@pytest.mark.parametrize("raised", [None, ValueError])
def test_the_memory_of_the_host_is_free_as_soon_as_a_batch_is_moved_or_its_transform_failed(raised):
    def transform(batch: Any, _: Any) -> Any:
        if raised is not None:
            raise raised("bad")
        return batch

    streams = SimulatedStreams()
    source = Recycled(10)
    ahead = DeviceAhead(source, moved_with(streams, transform=transform), 2)
    with contextlib.nullcontext() if raised is None else pytest.raises(raised, match="bad"):
        ahead.next()
    assert source.made == 1
    gc.collect()
    assert len(source.free) == source.buffers == 1
    assert streams.copies.done == 0
    ahead.close()


@pytest.mark.parametrize("ready", [math.inf, 9])
def test_the_first_batch_does_not_wait_for_others_and_then_depth_batches_are_ahead(ready):
    source = Recycled(10, ready=ready)
    ahead = DeviceAhead(source, moved_with(None), 3)
    made = [source.made for _ in iter(lambda: ahead.next()["x"][0].item(), 5.0)]
    assert made == [1, 5, 6, 7, 8]
    source = Recycled(10, ready=0)  # which is not waited for
    ahead = DeviceAhead(source, moved_with(None), 3)
    assert [ahead.next()["x"][0].item() for _ in range(4)] == [0, 1, 2, 3]
    assert source.made == 4


class Failing:
    """A source that raises at some places."""

    def __init__(self, entries: Iterable[Any]) -> None:
        self._entries = iter(entries)

    def next(self, wait: bool = True) -> Any:
        entry = next(self._entries)
        if isinstance(entry, BaseException):
            raise entry
        return Batch(data=entry)


def test_a_timeout_is_raised_only_when_nothing_is_there_and_can_be_retried():
    entries = [torch.tensor(0), torch.tensor(1), LoadTimeout("late"), torch.tensor(2)]
    ahead = DeviceAhead(Failing(entries), moved_with(None), 2)
    assert [ahead.next().item() for _ in range(3)] == [0, 1, 2]
    ahead = DeviceAhead(Failing([LoadTimeout("late"), torch.tensor(2)]), moved_with(None), 2)
    with pytest.raises(LoadTimeout):
        ahead.next()
    assert ahead.next().item() == 2


def test_an_exit_while_a_batch_is_pinned_is_an_error_in_its_place():
    def leave(data: Any) -> Any:
        raise SystemExit(f"cannot pin {data}")

    with contextlib.closing(PinnedAhead(Recycled(9), leave, "in a test")) as stage:
        for _ in range(3):
            assert isinstance(stage.next().error, SystemExit)


class Pair(NamedTuple):
    image: torch.Tensor
    label: Any


class Attributed(dict):  # type: ignore[type-arg]
    """A dict with something of its own."""


def test_containers_keep_their_types_and_parts_that_are_no_tensors_stay():
    own = Attributed(x=torch.ones(1))
    own.name = "mine"  # type: ignore[attr-defined]
    batch = {
        "pair": Pair(torch.ones(2), "text"),
        "list": [torch.zeros(1), (torch.ones(1), 3, None)],
        "own": own,
        "user": UserDict(x=torch.ones(3)),
        "ordered": collections.OrderedDict(b=torch.ones(1), a=1),
        "marker": object(),
        "others": [b"raw", range(3)],
    }
    streams = SimulatedStreams()
    for mover in (moved_with(None), moved_with(streams)):
        found = DeviceAhead(Failing([batch]), mover, 1).next()
        streams.compute.run()
        assert difference(found, batch) is None
        assert found["marker"] is batch["marker"]
    assert batch["user"]["x"] is not found["user"]["x"]


@dataclasses.dataclass
class Held:
    x: torch.Tensor


def test_tensors_inside_of_whatever_a_transform_returns_are_protected():
    streams, source = SimulatedStreams(), Recycled(8)
    seen = lagging(source, 1, streams, lambda held: held.x, transform=lambda batch, _: Held(batch["x"]))
    assert seen == list(range(8))
    streams, source = SimulatedStreams(), Recycled(8)
    taken = source.next
    source.next = lambda wait: Batch(data={**taken(wait).data, "y": 1})  # type: ignore[method-assign]
    kept = {"transform": lambda batch, _: {"y": batch["x"]}, "keep_on_host": ("y",)}
    assert lagging(source, 1, streams, lambda batch: batch["y"], **kept) == list(range(8))


def test_fixed_places_belong_to_no_graph_and_no_inference():
    weight = torch.ones(1, requires_grad=True)
    ahead = prefetch([torch.ones(3)] * 4, "cpu", transform=lambda batch: batch * weight, fixed_buffers=True)
    with torch.inference_mode():
        assert len(list(ahead)) == 4
    for batch in ahead:
        assert not batch.requires_grad
        assert not batch.is_inference()


def test_what_is_to_stay_on_the_host_is_the_very_object():
    batch = {"x": torch.ones(2), "meta": {"lengths": torch.ones(2), "other": torch.ones(1)}, "y": [torch.ones(1)] * 2}
    streams = SimulatedStreams()
    ahead = DeviceAhead(Failing([batch]), moved_with(streams, keep_on_host=("meta.lengths", "y.1")), 1)
    found = ahead.next()
    assert found["meta"]["lengths"] is batch["meta"]["lengths"]
    assert found["y"][1] is batch["y"][1]
    assert found["x"] is not batch["x"]
    assert found["y"][0] is not batch["y"][0]
    by_place = DeviceAhead(Failing([(torch.ones(1), batch["x"])]), moved_with(streams, keep_on_host=(1,)), 1)
    assert by_place.next()[1] is batch["x"]


def test_an_iterable_is_given_whole_each_time_with_its_length_and_its_images_in_channels_last():
    batches = [(torch.full((2, 3, 4, 5), float(i)), torch.ones(2)) for i in range(7)]
    ahead = prefetch(batches, "cpu", 5, channels_last=True)
    assert len(ahead) == 7
    for _ in range(2):
        given = list(ahead)
        assert [images[0, 0, 0, 0].item() for images, _ in given] == list(range(7))
        assert all(images.is_contiguous(memory_format=torch.channels_last) for images, _ in given)
        assert all(labels.is_contiguous() for _, labels in given)


def test_an_iteration_that_is_left_lets_go_of_all_it_held():
    source = Recycled(10)

    def batches() -> Iterator[Any]:
        while True:
            yield source.next().data

    iterator = iter(prefetch(batches(), "cpu", 3))
    next(iterator)
    next(iterator)
    del iterator
    gc.collect()
    assert len(source.free) == source.buffers


def test_with_fixed_places_two_iterations_at_once_are_an_error():
    ahead = prefetch([torch.ones(1)] * 5, "cpu", fixed_buffers=True)
    first = iter(ahead)
    assert len([next(first) for _ in range(4)]) == 4
    with pytest.raises(RuntimeError, match="one iteration at a time"):
        iter(ahead)  # though all was moved ahead
    assert len(list(first)) == 1
    second = iter(ahead)
    next(second)
    first.close()  # which does not let two others run at once
    with pytest.raises(RuntimeError, match="one iteration at a time"):
        iter(ahead)


SHAPES = [torch.ones(3)] * 4 + [torch.ones(2)]


@pytest.mark.parametrize(
    ("batches", "arguments", "message"),
    [
        ([], {"device": "cuda:99"}, r"is not there: torch .* sees \d+ devices of the type cuda"),
        ([], {"device": "meta"}, "is not there"),
        ([], {"device": "gpu"}, "device must name a device of torch's"),
        ([], {"depth": 0}, "depth must be an integer of at least 1, got depth=0"),
        ([], {"transform": 3}, "transform must be callable"),
        ([], {"keep_on_host": "lengths"}, "keep_on_host must be a collection of keys or places"),
        ([], {"channels_last": "yes"}, "channels_last"),
        ([{"x": CPU, "y": 1}], {"keep_on_host": ("z",)}, "names 'z', which the batch does not have; it has 'x', 'y'"),
        (SHAPES, {"fixed_buffers": True}, r"same shapes and dtypes, got .*\(2,\) of .*\(3,\) of .*; drop_last=True"),
    ],
)
def test_what_cannot_be_is_an_error_that_says_what_to_do(batches, arguments, message):
    with pytest.raises(ConfigError, match=message):
        list(prefetch(batches, **{"device": "cpu", **arguments}))


def test_parts_of_a_dict_keep_their_places_in_all_epochs_in_whatever_order_they_come():
    batches = [{"a": torch.zeros(2), "b": torch.ones(2)}, {"b": torch.ones(2), "a": torch.zeros(2)}] * 4
    places: dict[str, set[int]] = {"a": set(), "b": set()}
    ahead = prefetch(batches, "cpu", fixed_buffers=True)
    for batch in (*ahead, *ahead):
        assert (batch["a"].sum(), batch["b"].sum()) == (0, 2)
        for name, part in batch.items():
            places[name].add(part.data_ptr())
    assert [len(places[name]) for name in "ab"] == [4, 4]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked")
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("leave", ["drop", "close", "del", "begin"])
def test_a_forked_process_frees_nothing_of_the_device_and_asks_it_nothing(leave, fixed):
    streams = SimulatedStreams()
    mover: Any = moved_with(streams, num_buffers=5 * fixed)
    ahead: Any = DeviceAhead(Recycled(20), mover, 3)
    for _ in range(3):
        streams.kernel(ahead.next()["x"])
    held = [weakref.ref(ready.data["x"]) for ready in ahead._ready]
    held += [weakref.ref(event) for event in mover._unconsumed]
    held += [weakref.ref(place) for places in mover._buffers for place in places.values()]
    assert len(held) >= 4
    clocks = [streams.copies.queued, streams.transforms.queued, streams.compute.queued]

    def frees_and_asks_nothing() -> bool:
        nonlocal ahead, mover
        if leave == "begin":
            with pytest.raises(RuntimeError, match="cannot be used in the forked process"):
                ahead.next()
            with pytest.raises(RuntimeError, match="cannot be used in the forked process"):
                DeviceAhead(Recycled(20), mover, 3)
        elif leave == "drop":
            with pytest.raises(RuntimeError, match="start that one with the 'spawn' method"):
                ahead.drop()
        elif leave == "close":
            ahead.close()
        del ahead, mover
        gc.collect()
        now = [streams.copies.queued, streams.transforms.queued, streams.compute.queued]
        return now == clocks and all(one() is not None for one in held)

    assert is_true_in_a_child(frees_and_asks_nothing)
    for _ in range(17):
        streams.kernel(ahead.next()["x"])
    ahead.close()
