"""Rows and draws that the device makes, in Triton's interpreter: the batches and parameters of the host's."""

from __future__ import annotations

import itertools
import sys
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset
from transforms.triton_kernels import allow

from fastload import DataLoader, DistributedSampler
from fastload import transforms as T
from fastload.device.moving import Mover
from fastload.engine import resident_source
from fastload.transforms import device_draws, fused

LENGTH = 70
SAMPLE = 8 * 8 + 8  # bytes


@pytest.fixture
def launches(monkeypatch):
    """Have the kernels take what lies on the CPU; return their names as they are launched."""
    return allowed(monkeypatch)


def allowed(monkeypatch: Any) -> list[str]:
    monkeypatch.setattr(device_draws, "_BLOCK", 1024)
    monkeypatch.setattr(resident_source, "_bytes_at_once", lambda arguments, device: 4 * 8 * SAMPLE)
    return allow(monkeypatch)


def dataset() -> TensorDataset:
    images = torch.randint(0, 256, (LENGTH, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return TensorDataset(images, torch.arange(LENGTH))


def loader(**options: Any) -> DataLoader[Any]:
    options = {"shuffle": None, **options} if "sampler" in options else options
    chain = T.Compose([T.RandomCrop(8, padding=2), T.RandomHorizontalFlip()])
    return DataLoader(dataset(), **{"batch_size": 8, "shuffle": True, "seed": 3, "batch_transform": chain, **options})


def epochs(loader: DataLoader[Any], num: int = 2) -> list[Any]:
    """Return the batches of some epochs, and the parameters of each."""
    return [([*map(torch.clone, batch)], loader.batch_params) for _ in range(num) for batch in loader]


def check_same(found: Any, expected: Any) -> None:
    if isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            check_same(found[name], value)
    else:
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            check_same(one, other)


@pytest.mark.slow  # the interpreter takes its time
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"drop_last": True},
        {"batch_transform": T.Compose([T.ColorJitter(0.4, 0.4), T.RandomInvert()])},
        {"sampler": DistributedSampler(range(LENGTH), 3, 1, seed=5, tail="drop")},
    ],
    ids=["all", "drop_last", "colours", "rank"],
)
def test_batches_and_their_parameters_are_the_hosts(monkeypatch, options):
    expected = epochs(loader(**options))
    made = allowed(monkeypatch)
    found = epochs(loader(resident="host", **options))
    check_same(found, expected)
    assert made[:2] == ["order", "drawn"]


def test_several_batches_are_three_launches(launches):
    batches = loader(resident="host")
    for _ in batches:
        pass
    # The first batch tells how large one is: then 4 of the 8 others are made at once.
    assert launches == ["order", "drawn", "transformed"] * 3


def test_the_second_epoch_begins_with_as_many_batches_as_the_first_one_found_room_for(launches):
    expected = epochs(loader())
    launches.clear()
    found = epochs(loader(resident="host", device="cpu", batch_size=8))
    check_same(found, expected)
    # 1 + 4 + 4 batches, then 4 + 4 + 1.
    assert launches == ["order", "drawn", "transformed"] * 6


@pytest.mark.parametrize(("memory", "share"), [(8 << 30, 1 << 26), (80 << 30, 1 << 28)])
def test_what_is_made_at_once_on_a_device_is_a_share_of_its_memory(monkeypatch, memory, share):
    monkeypatch.setattr(resident_source, "_memory_of", lambda device: memory)
    arguments = SimpleNamespace(batch_transform=T.RandomHorizontalFlip(), fixed_buffers=False)
    assert resident_source._bytes_at_once(arguments, torch.device("cuda", 0)) == share


def test_a_resumed_epoch_goes_on_where_it_was(launches):
    first = loader(resident="host")
    batches = iter(first)
    for _ in range(3):
        next(batches)
    state, rest = first.state_dict(), [[*map(torch.clone, batch)] for batch in batches]
    second = loader(resident="host")
    second.load_state_dict(state)
    check_same([list(batch) for batch in second], rest)


def test_an_error_takes_its_batch_alone(launches, monkeypatch):
    expected = [batch[1].clone() for batch in loader()]
    made, rows_of = [], device_draws.EpochState.rows

    def rows(self, start, count):
        made.append((start, count))
        if start <= 16 < start + count:
            raise RuntimeError("no luck")
        return rows_of(self, start, count)

    monkeypatch.setattr(device_draws.EpochState, "rows", rows)
    batches, found = iter(loader(resident="host")), []
    for number in range(9):
        if number == 2:
            with pytest.raises(RuntimeError, match="no luck"):
                next(batches)
        else:
            found.append(next(batches)[1].clone())
    check_same(found, expected[:2] + expected[3:])
    assert next(batches, None) is None


def test_a_key_that_did_not_arrive_is_sent_for_the_next_batch(launches, monkeypatch):
    expected = [batch[1].clone() for batch in loader()]
    begin = device_draws.EpochState.begin

    def refused(self, *given):
        monkeypatch.setattr(device_draws.EpochState, "begin", begin)
        raise RuntimeError("no memory can be page-locked")

    monkeypatch.setattr(device_draws.EpochState, "begin", refused)
    batches = iter(loader(resident="host"))
    with pytest.raises(RuntimeError, match="page-locked"):
        next(batches)
    check_same([batch[1].clone() for batch in batches], expected[1:])


@pytest.mark.parametrize(
    "options",
    [
        {"batch_transform": T.RandomErasing()},
        {"batch_transform": lambda batch: batch},
        {"shuffle": False},
        {"seed": None},
        {"sampler": DistributedSampler(range(LENGTH), 4, 1, seed=5, tail="pad")},
    ],
    ids=["erasing", "function", "sequential", "no seed", "padded"],
)
def test_what_the_device_does_not_make_the_host_does(launches, options):
    torch.manual_seed(0)
    batches = list(itertools.islice(loader(resident="host", **options), 2))
    assert batches
    assert "order" not in launches


def test_rows_to_be_made_are_no_tensors_that_a_stream_would_wait_for(launches, monkeypatch):
    seen, move_of = [], Mover.move

    def move(self, batch, *given, **more):
        seen.append(batch)
        return move_of(self, batch, *given, **more)

    monkeypatch.setattr(Mover, "move", move)
    next(iter(loader(resident="host")))
    assert seen
    assert Mover(torch.device("cpu"), None)._tensors(seen[0]) == []
    assert not isinstance(seen[0], torch.Tensor)


def test_an_epoch_costs_the_host_few_calls_a_batch(monkeypatch):
    """98 batches, as CIFAR-10 has of 512 images; the second epoch makes all of them at once."""
    monkeypatch.setattr(resident_source, "_bytes_at_once", lambda arguments, device: 1 << 28)
    stands = dict.fromkeys(("order", "drawn", "transformed"), _Nothing())
    monkeypatch.setattr(fused, "available", lambda device: True)
    monkeypatch.setattr(device_draws, "_kernels", lambda: SimpleNamespace(**stands))
    monkeypatch.setattr(fused, "_kernels", lambda: SimpleNamespace(TYPES=defaultdict(int), **stands))
    labels = torch.zeros(98 * 8, dtype=torch.int64)
    data = TensorDataset(torch.zeros(len(labels), 1, 8, 8, dtype=torch.uint8), labels)
    chain = T.Compose([T.RandomCrop(8, padding=2), T.RandomHorizontalFlip(), T.ToNormalized([0.5], [0.5])])
    batches = DataLoader(data, 8, shuffle=True, seed=3, batch_transform=chain, resident="host")
    assert len(list(batches)) == 98
    num_calls = 0

    def count(frame: Any, event: str, function: Any) -> None:
        nonlocal num_calls
        num_calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        for _ in batches:
            pass
    finally:
        sys.setprofile(None)
    # 38 of each when this was written; 60 with what torch adds for profilers.
    assert num_calls < 45 * 98


class _Nothing:
    """A kernel that writes no more than indices that there are."""

    def __getitem__(self, grid: Any) -> Any:
        return lambda out, *args, **kwargs: out.zero_()
