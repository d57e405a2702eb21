"""The parameters of a chunk of samples, from their keys: drawn by one vectorised call a step.

In: the names of samples, and the sizes of their images. Out: what each step needs for each of them, the same in
every chunk, batch and worker, for every executor, on the host and on the device. Pure.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..keys.seeding import BATCH, Keys
from ..transforms.draws import Draws
from ..transforms.sample import Drawn, SampleTransform, Sizes
from .stages import names_of

_LOW = (1 << 64) - 1


def draws_of(seed: int, epoch: int, ids: Iterable[int]) -> Draws:
    """Return the draws of samples: those that a batch of them has in the loader.

    Args:
        seed: the loader's, or its base seed.
        epoch: 0, 1, ...
        ids: of the samples, as :func:`fastload.keys.seeding.sample_id` gives them.
    """
    names = list(ids)
    key = _key_of(seed, epoch)
    try:
        return Draws(key, np.array(names, dtype=np.int64))
    except OverflowError:  # some are repeats, which are told from the first by the bits above
        low = np.array([name & _LOW for name in names], dtype=np.uint64).astype(np.int64)
        return Draws(key, low, np.array([name >> 64 for name in names], dtype=np.int64))


@functools.lru_cache(maxsize=16)  # that of one epoch or two, for every chunk
def _key_of(seed: int, epoch: int) -> bytes:
    return Keys(seed, epoch, BATCH).key(0)


class Drawing:
    """Draws for all steps.

    Args:
        steps: of a pipeline, those included that are moved to a device, whose names come after theirs.
    """

    def __init__(self, steps: Sequence[SampleTransform]) -> None:
        self._steps = list(zip(steps, names_of(steps), strict=True))
        self._kinds = [(step.is_random, step.changes_size) for step in steps]

    def draw(self, draws: Draws, sizes: Sizes) -> list[Drawn]:
        """Return the parameters of N samples, for each step.

        Args:
            draws: of the samples.
            sizes: of the images that the first step gets.

        Raises:
            ValueError: an image is too small for a step.
        """
        drawn = []
        for (step, name), (is_random, changes_size) in zip(self._steps, self._kinds, strict=True):
            drawn.append(step.draw_samples(draws, name, sizes) if is_random else {})
            sizes = sizes.after(step) if changes_size else sizes
        return drawn

    def given(self, drawn: Sequence[Drawn], count: int) -> list[tuple[Any, ...]]:
        """Return what each of N samples is given, for each step."""
        if not self._steps:
            return [()] * count
        each = [step.params_of_each(values, count) for (step, _), values in zip(self._steps, drawn, strict=True)]
        return list(zip(*each, strict=True))


__all__ = ["Drawing", "draws_of"]
