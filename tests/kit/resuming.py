"""Loaders that go on from the state of another one."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from determinism_fakes import batches, stopped_at


def resumed(make: Callable[[], Any], epoch: int, step: int, other: Callable[[], Any] | None = None) -> Any:
    """Return a loader with the state that one had after a step of an epoch; ``other`` makes it, if given.

    The global generators are elsewhere by then.
    """
    loader = (other or make)()
    state = stopped_at(make(), epoch, step)
    random.seed(99)
    np.random.seed(99)
    torch.manual_seed(99)
    loader.load_state_dict(state)
    return loader


def assert_resumes(
    make: Callable[[], Any],
    places: Iterable[tuple[int, int]] = ((0, 3), (1, 2)),
    later: Callable[[], Any] | None = None,
    view: Callable[[Any], Any] = batches,
) -> None:
    """Assert that from a state of any of these (epoch, step) the rest of that epoch follows, and the next one whole.

    ``later`` makes the loader that goes on, if it is another; ``view`` makes of a loader its next epoch.
    """
    places, loader = list(places), make()
    whole = [view(loader) for _ in range(max(epoch for epoch, _ in places) + 2)]
    loader.close()
    for epoch, step in places:
        loader = resumed(make, epoch, step, later)
        assert [view(loader), view(loader)] == [whole[epoch][step:], whole[epoch + 1]], (epoch, step)
        loader.close()
