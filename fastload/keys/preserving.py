"""Seeds the global generators in the user's own process, and restores their states.

For loaders without workers, and for code that loads samples beside a loader.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from ..native import generators
from .seeding import GlobalSeeder, Keys, global_states, random_generator


class VisitingSeeder(GlobalSeeder):
    """Seeds the global generators in the user's own process: saves their states first, and restores them."""

    _saved: _SavedStates | None = None

    def seed(self, key: bytes) -> None:
        self._saved = self._saved or _SavedStates()
        super().seed(key)

    def each(self, keys: Keys, ids: Sequence[int]) -> Callable[[], None]:
        """Return a function that seeds for the next sample: see :class:`GlobalSeeder`."""
        self._saved = self._saved or _SavedStates()
        return super().each(keys, ids)

    def give_back(self) -> None:
        """Restore the states that the generators had before they were seeded, if they were."""
        saved, self._saved = self._saved, None
        if saved is not None:
            saved.restore()


class _SavedStates:
    """The states of the three global CPU generators."""

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
    """Restore the states of the three global CPU generators at the end.

    For code that seeds them in the user's own process. Cost: 3 µs; 60 µs if
    :func:`.seeding.slow_seeding_reason` returns a reason.
    """
    saved = _SavedStates()
    try:
        yield
    finally:
        saved.restore()
