"""Loaders that go on from the state of another one."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from determinism_fakes import stopped_at


def resumed(make: Callable[[], Any], epoch: int, step: int, other: Callable[[], Any] | None = None) -> Any:
    """Return a loader with the state that one had after a step of an epoch; ``other`` makes it, if given.

    Python's global generator is elsewhere by then.
    """
    loader = (other or make)()
    state = stopped_at(make(), epoch, step)
    random.seed(99)
    loader.load_state_dict(state)
    return loader
