"""The stages of a pipeline: which steps are done together.

::

    files    [ row: decode, crop, resize, flip ]   [ alone, one by one ] [ values ] [ erasing ]
    arrays   [ block: crops and flips of a chunk ] [ alone, one by one ] [ values ] [ erasing ]

In: what a dataset's images are, and the steps. Out: where one stage ends and the next begins. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..transforms.base import DTYPES, BatchShape
from ..transforms.draws import Draws
from ..transforms.gather import MovingTransform
from ..transforms.resize import RandomResizedCrop
from ..transforms.sample import SampleTransform, State
from .rows import num_cut
from .sources import Source


class Stages(NamedTuple):
    """Places in the list of steps where each stage ends; the next one begins there."""

    head: int
    """The end of the row or block."""
    cropped: bool
    """Whether the next step is a RandomResizedCrop of a tensor, of which the row does the crop."""
    alone: int
    """The end of the steps that torchvision's functions do, sample by sample."""
    values: int
    """The end of the steps that are one function of a value."""
    direct: bool
    """Whether the result is written into the batch: all steps are known, and all results have one size."""


def stages_of(source: Source, steps: Sequence[SampleTransform], states: Sequence[State], *, whole: bool) -> Stages:
    """Return the stages of some steps.

    Args:
        source: where the images come from.
        steps: those of the workers.
        states: before each of them, and after the last.
        whole: no unknown transform follows, and the result is a tensor.
    """
    count = len(steps)
    if not whole or size_after(source, steps) is None:
        head = num_cut(steps, states, through=False) if source.size is None else 0
        return Stages(head, False, count, count, direct=False)
    values = count
    while values and steps[values - 1].role == "erase":
        values -= 1
    alone = values
    while alone and steps[alone - 1].role == "value":
        alone -= 1
    if states[alone].dtype.is_floating_point:  # values are a function of 256 levels
        alone = values = count
    if source.size is None:
        head = num_cut(steps, states, through=True)
    else:
        head = _num_gathered(source, steps, states)
    head = min(head, values)
    cropped = (
        source.size is None
        and head < alone
        and isinstance(steps[head], RandomResizedCrop)
        and states[head].kind != "PIL"
        and not any(step.role == "resize" for step in steps[:head])
    )
    return Stages(head, cropped, max(alone, head), values, direct=True)


def size_after(source: Source, steps: Sequence[SampleTransform]) -> tuple[int, int] | None:
    """Return the size of all images after these steps; None if they may differ."""
    size = source.size
    for step in steps:
        if size is not None:
            size = step.size_after(*size)
        elif isinstance(own := getattr(step, "size", None), tuple):
            size = own
    return size


def _num_gathered(source: Source, steps: Sequence[SampleTransform], states: Sequence[State]) -> int:
    """Return how many of the first steps only move pixels of the whole array."""
    size = source.size
    for place, (step, state) in enumerate(zip(steps, states, strict=False)):
        if state.dtype.is_floating_point or size is None or not moves(step, state, size):
            return place
        size = step.size_after(*size)
    return len(steps)


def moves(step: SampleTransform, state: State, size: tuple[int, int]) -> bool:
    """Return whether a step only moves pixels, of images of this size, and can be batched."""
    if step.role == "erase" or not fits(step, state, size):
        return False
    batched = step.batched(state) or []
    same = step.state_after(state)[1:] == state[1:]
    return same and all(isinstance(transform, MovingTransform) and transform.only_moves for transform in batched)


def fits(step: SampleTransform, state: State, size: tuple[int, int] | None) -> bool:
    """Return whether a step can be batched, for images of this size."""
    batched = step.batched(state)
    if batched is None or size is None or state.dtype not in DTYPES:
        return False
    try:
        for transform in batched:
            # Says what it cannot do to images of this shape; what it draws is thrown away.
            draws = Draws(bytes(8), np.zeros(1, dtype=np.int64))
            transform.draw(draws.stream(""), BatchShape(1, state.channels, *size))
    except ValueError:
        return False
    return True


def names_of(steps: Sequence[SampleTransform]) -> list[str]:
    """Return the names of the steps' streams, of which no two are the same, nor one of any other transform's."""
    count: Counter[str] = Counter()
    names = []
    for step in steps:
        name = f"fused {type(step).__name__}"
        count[name] += 1
        names.append(name if count[name] == 1 else f"{name} {count[name]}")
    return names


__all__ = ["Stages", "fits", "moves", "names_of", "size_after", "stages_of"]
