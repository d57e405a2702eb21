"""Saves the states of the global generators, and restores them, where they are seeded in the user's own process.

For loaders without workers, and for code that loads samples beside a loader.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from ..native import generators
from .seeding import global_states, random_generator


class SavedStates:
    """The states of the three global CPU generators now.

    Cost: 3 µs, with :meth:`restore`; 60 µs if :func:`.seeding.slow_seeding_reason` returns a reason.
    """

    def __init__(self) -> None:
        self._states = global_states()
        if self._states is not None:
            self._memory, self._gauss_next = generators.read(self._states), random_generator.gauss_next
        else:
            self._for_random, self._for_numpy = random.getstate(), np.random.get_state()
            self._for_torch = torch.default_generator.get_state()

    def restore(self) -> None:
        """Set the generators to these states."""
        if self._states is not None:
            generators.write(self._states, self._memory)
            random_generator.gauss_next = self._gauss_next
        else:
            random.setstate(self._for_random)
            np.random.set_state(self._for_numpy)
            torch.default_generator.set_state(self._for_torch)


@contextmanager
def preserved_global_generators() -> Iterator[None]:
    """Restore the states of the three global CPU generators at the end."""
    saved = SavedStates()
    try:
        yield
    finally:
        saved.restore()
