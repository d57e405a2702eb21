"""What adapters of trainers do with a loader, without the trainers: tests/libraries and tests/callbacks have those."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
from kit.datasets import Stream

import fastload
from fastload.errors import ConfigError, StateError
from fastload.run.adapters import _check_device, _restore

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
