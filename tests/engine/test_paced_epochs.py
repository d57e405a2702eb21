"""Batches that a stage takes ahead of the loop: index batches are drawn when torch draws them all the same."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from kit.datasets import Made
from kit.pinning import pin_by_copies
from torch.utils.data import RandomSampler, TensorDataset

import fastload

AHEAD: dict[str, dict[str, Any]] = {
    "nothing ahead": {},
    "device": {"device": "cpu"},
    "batch_transform": {"batch_transform": lambda batch: batch},
    "pin_memory": {"pin_memory": True},
}
pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true:UserWarning")


def draws(index: int) -> Any:
    return index, torch.rand(())


def large(num_samples: int = 30) -> TensorDataset:
    """Return samples without draws, whose batches of two are so large that slots are kept for several."""
    return TensorDataset(torch.arange(float(num_samples))[:, None].expand(num_samples, 300_000))


@pytest.fixture(params=AHEAD)
def ahead(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    pin_by_copies(monkeypatch)
    return AHEAD[request.param]


def both(arguments: dict[str, Any], **ahead: Any) -> Iterator[Any]:
    """Yield torch's loader and fastload's, each from the same state of the generators."""
    for kind in (torch.utils.data.DataLoader, fastload.DataLoader):
        torch.manual_seed(0)
        given = {**arguments, "generator": torch.Generator().manual_seed(3)}
        if "sampler" in arguments:
            del given["generator"]
        yield kind(**given, **(ahead if kind is fastload.DataLoader else {}))


def seen(loader: Any, stops: tuple[int | None, ...]) -> list[Any]:
    """Iterate, with draws between the batches, and time for fastload's stages to get ahead; leave after ``stops``.

    A stage that does not get ahead in that time hides a fault, and is none itself.
    """
    found = []
    for stop in stops:
        for number, batch in enumerate(loader, 1):
            found.append([one.flatten()[:: max(1, one[0].numel())].tolist() for one in batch])
            if isinstance(loader, fastload.DataLoader):
                time.sleep(0.01)
            torch.rand(1)
            if number == stop:
                break
        found.append(torch.default_generator.get_state().sum().item())
    return found


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("drawn_from", ["a generator", "the loop's generator"])
def test_after_a_loop_was_left_order_and_draws_are_torchs(ahead, num_workers, drawn_from):
    if "pin_memory" in ahead and not num_workers:
        pytest.skip("without workers torch's own function pins, in next()")

    arguments: dict[str, Any] = {"batch_size": 2, "num_workers": num_workers}
    if drawn_from == "a generator":
        arguments |= {"dataset": Made(30, draws), "shuffle": True, "persistent_workers": num_workers > 0}
    else:
        sampler = RandomSampler(range(30), replacement=True, num_samples=96, generator=torch.default_generator)
        arguments |= {"dataset": large(), "sampler": sampler}
    stops = (4, 12, 2) if drawn_from == "a generator" else (None, 3)
    one, other = (seen(loader, stops) for loader in both(arguments, **ahead))
    assert one == other
