"""Whatever torch's settings are where the user asks for a batch, it is the batch that it would be without them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from device_simulation import SimulatedStreams
from kit.comparison import difference
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset, default_collate
from torch_settings import default_device, default_dtype, deterministic

from fastload import DataLoader, prefetch
from fastload.device import prefetch as device
from fastload.engine import iteration
from fastload.sampling.distributed_orders import AsTorch

LENGTH = 24


def default_collate_on_host(samples: list[Any]) -> Any:
    with torch.device("cpu"):
        return default_collate(samples)


class Images(Dataset[Any]):
    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> tuple[Tensor, Any, str]:
        return torch.full((3, 8, 8), index, dtype=torch.uint8, device="cpu"), index, str(index)


class Tensors(Images):
    """torch's collation, which makes tensors of numbers, would make them on the default device."""

    def __getitem__(self, index: int) -> tuple[Tensor, Any, str]:
        image, label, text = super().__getitem__(index)
        return image, torch.tensor(label, device="cpu"), text


SETTINGS: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "default device": lambda: default_device("meta"),
    "default dtype": lambda: default_dtype(torch.float64),
    "deterministic": deterministic,
    "inference": torch.inference_mode,
    "no grad": torch.no_grad,
}
WAYS: dict[str, dict[str, Any]] = {
    "inline": {"collate_fn": default_collate_on_host},
    "threads": {"num_workers": 1, "worker_method": "thread"},
    "processes": {"num_workers": 1},
    "whole batches": {"num_workers": 1, "collate_fn": default_collate_on_host},
    "fixed": {"fixed_buffers": True, "num_workers": 1, "worker_method": "thread"},
    "resident": {"resident": "device"},
    "resident on the host": {"resident": "host"},
}


@pytest.fixture(autouse=True)
def base_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch draws its base seed on the default device, which has to have numbers."""
    drawn = iteration.compat.BaseIterator.__init__

    def on_host(*args: Any) -> None:
        with torch.device("cpu"):
            drawn(*args)

    monkeypatch.setattr(iteration.compat.BaseIterator, "__init__", on_host)


def batches_of(**options: Any) -> list[tuple[Tensor, Tensor]]:
    dataset = Tensors() if "resident" in options else Images()
    found = DataLoader(dataset, 4, shuffle=True, seed=1, device="cpu", **options)
    given = [(batch[0].clone(), batch[1].clone()) for batch in found]
    found.close()
    return given


@functools.cache
def batches_without_settings(way: str) -> list[tuple[Tensor, Tensor]]:
    return batches_of(**WAYS[way])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_batches_are_the_same_whatever_is_set(setting, way):
    expected = batches_without_settings(way)
    with SETTINGS[setting]():
        given = batches_of(**WAYS[way])
    assert difference(given, expected) is None


@pytest.mark.parametrize("way", ["inline", "threads", "whole batches"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_so_are_those_of_a_device_that_works_late(setting, way, monkeypatch):
    streams = SimulatedStreams()
    monkeypatch.setattr(device, "streams_of", lambda _: streams)
    seen: list[float] = []
    with SETTINGS[setting]():
        found = DataLoader(Images(), 4, device="cpu", **WAYS[way])
        for images, _, _ in found:
            assert not images.is_inference()
            streams.kernel(images, lambda block: seen.append(block[0, 0, 0, 0].item()))
        found.close()
        streams.compute.run()
    assert seen == list(range(0, LENGTH, 4))


def test_torchs_order_is_drawn_on_the_host():
    expected = AsTorch(10, 3).at(1, np.arange(10)).tolist()
    with default_device("meta"):
        assert AsTorch(10, 3).at(1, np.arange(10)).tolist() == expected


def test_a_batch_that_was_made_ahead_in_inference_mode_can_be_trained_on(monkeypatch):
    streams = SimulatedStreams()
    monkeypatch.setattr(device, "streams_of", lambda _: streams)
    batches = [torch.full((3,), float(number)) for number in range(6)]
    ahead = iter(prefetch(batches, "cpu", 2, transform=lambda batch: streams.work(torch.neg, batch)))
    with torch.inference_mode():
        next(ahead)
        assert not next(ahead).is_inference()
    batch = next(ahead)
    streams.compute.run()
    weight = torch.ones(3, requires_grad=True)
    (batch * weight).sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [-2.0] * 3


@pytest.mark.parametrize("options", [{}, {"num_workers": 1, "worker_method": "thread"}], ids=str)
def test_a_transform_may_work_in_place_in_inference_mode(options):
    def doubled(batch: Any) -> Any:
        return batch[0].mul_(2)

    found = DataLoader(Images(), 4, batch_transform=doubled, **options)
    with torch.inference_mode():
        assert [images[0, 0, 0, 0].item() for images in found] == list(range(0, 2 * LENGTH, 8))
    found.close()


def test_resident_data_that_were_read_in_inference_mode_can_be_trained_on():
    images = torch.arange(float(LENGTH))[:, None]
    found = DataLoader(TensorDataset(images), 4, device="cpu", resident="device")
    with torch.inference_mode():
        list(found)
    weight = torch.ones(1, requires_grad=True)
    for (batch,) in found:
        (batch * weight).sum().backward()
    assert weight.grad is not None
    assert weight.grad.item() == images.sum().item()
    found.close()
