"""Resident data on a real GPU: the CPU's batches, on whatever stream they are read, and a host that never waits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from fastload import DataLoader
from fastload import transforms as T

LENGTH = 500  # no power of two, and no multiple of a batch
PLACES = ("device", "host", "auto")


def dataset() -> TensorDataset:
    noise = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (LENGTH, 3, 32, 32), dtype=torch.uint8, generator=noise)
    return TensorDataset(images, torch.arange(LENGTH))


def chain() -> T.Compose:
    return T.Compose([T.RandomCrop(32, padding=4), T.RandomHorizontalFlip()])


def epochs(loader: DataLoader[Any]) -> list[list[Tensor]]:
    return [[part.cpu() for part in batch] for _ in range(2) for batch in loader]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("place", PLACES)
def test_batches_are_those_of_the_cpu(place, channels_last, drop_last):
    options = {"shuffle": True, "seed": 3, "drop_last": drop_last, "batch_transform": chain()}
    plain = epochs(DataLoader(dataset(), 48, **options))
    loader = DataLoader(dataset(), 48, device="cuda", channels_last=channels_last, resident=place, **options)
    found = epochs(loader)
    for one, other in zip(plain, found, strict=True):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])
    assert loader.statistics().resident == ("cpu" if place == "host" else "cuda:0")
    images, _ = next(iter(loader))
    assert images.device.type == "cuda"
    assert images.is_contiguous(memory_format=torch.channels_last) or not channels_last


@pytest.mark.parametrize("shuffle", [False, True])
def test_each_part_of_what_was_made_at_once_may_be_read_by_another_stream(shuffle):
    options = {"seed": 3, "shuffle": shuffle, "batch_transform": chain()}
    loader = DataLoader(dataset(), 16, device="cuda", resident="device", **options)
    plain = epochs(DataLoader(dataset(), 16, **options))
    streams = [torch.cuda.Stream(), torch.cuda.current_stream()]
    seen: list[Tensor] = []
    for _ in range(2):
        iterator = iter(loader)
        for number in range(len(loader)):
            with torch.cuda.stream(streams[number % 2]):  # the one that waits is the one that asks
                images, _ = next(iterator)
                torch.cuda._sleep(2_000_000)
                seen.append(images.double().sum((1, 2, 3)))
            del images
    torch.cuda.synchronize()
    for found, (images, _) in zip(seen, plain, strict=True):
        assert torch.equal(found.cpu(), images.double().sum((1, 2, 3)))


@pytest.mark.parametrize("place", PLACES)
def test_nothing_waits_for_the_device(without_waiting, place):
    loader = DataLoader(dataset(), 32, shuffle=True, seed=1, device="cuda", batch_transform=chain(), resident=place)
    list(loader)
    with without_waiting():
        seen = list(loader)
    assert sorted(label for _, labels in seen for label in labels.tolist()) == list(range(LENGTH))
