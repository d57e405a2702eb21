"""What adapters of trainers do with a loader, without the trainers: tests/libraries and tests/callbacks have those."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from kit.datasets import Stream
from resumed_loaders import Count

import fastload
from fastload.errors import ConfigError, StateError
from fastload.run.adapters import _check_device, _restore, _without_one_ahead

CASES = [
    ("cuda", "cuda", True),
    ("cuda", "cuda:1", True),  # "cuda": the current device of each process
    ("cuda:1", "cuda:1", True),
    ("cuda:0", "cuda:1", False),
    ("cuda", "cpu", False),
    ("cuda", "mps", False),
    ("cpu", "cuda", True),  # batches that are on the host are there to be moved
    (None, "cuda", True),
    ("cuda", None, True),  # the library moves none
]


@pytest.mark.parametrize(("device", "moved_to", "fits"), CASES)
def test_only_another_device_than_the_loaders_is_an_error(device, moved_to, fits):
    loader = SimpleNamespace(device=device, fixed_buffers=False, keep_on_host=())
    raises = pytest.raises(ConfigError, match=f"device='{device}', and Library would move every batch from there")
    with contextlib.nullcontext() if fits else raises:
        _check_device(loader, moved_to, "Library", "a remedy", ahead=False)


def values(loader: Any) -> list[Any]:
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize(
    "make",
    [
        lambda: fastload.DataLoader(range(9), 2, shuffle=True, seed=1),
        lambda: fastload.DataLoader(range(9), 2, shuffle=True, generator=torch.Generator().manual_seed(3)),
        lambda: fastload.DataLoader(Stream(lambda: range(9)), 2, seed=1),
        lambda: fastload.DataLoader(Count(), 2, seed=1),
        lambda: fastload.DataLoader(Count(), 2, seed=1, num_workers=2),
    ],
)
@pytest.mark.filterwarnings("ignore:the state does not say where")
def test_a_batch_that_a_trainer_has_only_fetched_is_not_in_the_state(make: Any) -> None:
    loader = make()
    states, given = [], []
    for batch in loader:
        with _without_one_ahead(True):
            states.append(loader.state_dict())
        given.append(batch.tolist())
    with _without_one_ahead(True):  # nothing is fetched ahead at the end
        assert loader.state_dict()["epoch"] == 1
    for number in (0, 1, 2, len(given) - 1):
        resumed = make()
        resumed.load_state_dict(states[number])
        assert values(resumed) == given[number:]


def test_a_state_that_does_not_fit_a_trainers_loader_is_a_warning_and_its_epoch_begins_anew() -> None:
    state = fastload.DataLoader(range(9), 2, seed=1).state_dict() | {"epoch": 3}
    loader = fastload.DataLoader(range(8), 2, shuffle=True, seed=1)
    with pytest.raises(StateError):
        loader.load_state_dict(state)
    with pytest.warns(
        UserWarning, match=r"begins anew: .* samples was 9 when .* is 8 now.*To begin.*: do so"
    ) as warned:
        _restore(loader, state, "do so")
    assert len(warned) == 1
    given = values(loader)
    loader.set_epoch(3)
    assert values(loader) == given


@pytest.mark.parametrize(
    "make",
    [
        lambda: fastload.DataLoader(Stream(lambda: range(3)), 2, seed=1),
        lambda: fastload.DataLoader(Stream(lambda: range(3)), 2, seed=1, num_workers=1),
        lambda: fastload.DataLoader(range(9), 2, seed=1, sampler=[0, 1, 2]),
    ],
)
@pytest.mark.filterwarnings("ignore:the state does not say where")
def test_an_epoch_that_ends_before_its_place_begins_anew_in_a_trainer(make: Any) -> None:
    loader = make()
    state = loader.state_dict() | {"batches": 3}
    loader.load_state_dict(state)
    with pytest.raises(StateError):
        values(loader)
    loader = make()
    _restore(loader, state, "do so")
    with pytest.warns(UserWarning, match="begins anew: the state was saved after 3 batches"):
        assert values(loader) == [[0, 1], [2]]
    assert values(loader) == [[0, 1], [2]]
