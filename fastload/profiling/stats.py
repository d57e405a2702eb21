"""90 % intervals by resampling. Pure; the same input gives the same output."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate
from typing import TypeVar

_RESAMPLES = 400
_BLOCKS = 40

_T = TypeVar("_T")


def middle_90(values: list[float]) -> tuple[float, float]:
    """Return the limits between which 90 % of resampled values lie."""
    values.sort()
    return values[len(values) // 20], values[-1 - len(values) // 20]


def resamples(values: Sequence[_T]) -> list[list[_T]]:
    """Return resamples of independent values."""
    draw = random.Random(0)
    return [draw.choices(values, k=len(values)) for _ in range(_RESAMPLES // 2)]


def ratio_interval(above: Sequence[float], below: Sequence[float]) -> tuple[float, float, float]:
    """Return sum(above) / sum(below) with the limits of its 90 % interval, by resampling blocks of neighbours.

    Neighbouring steps depend on each other: a slow batch delays the following ones. Resampling single steps would give
    intervals that are too narrow.
    """
    upper, lower = [0, *accumulate(above)], [0, *accumulate(below)]
    number = len(above)
    value = upper[-1] / lower[-1] if lower[-1] else 0.0
    length = max(1, number // _BLOCKS, round(number ** (1 / 3)))
    if number < 2 * length:
        return value, value, value
    draw = random.Random(0)
    found = []
    for _ in range(_RESAMPLES):
        starts = [draw.randrange(number - length + 1) for _ in range(-(-number // length))]
        total = sum(lower[at + length] - lower[at] for at in starts)
        found.append(sum(upper[at + length] - upper[at] for at in starts) / total if total else 0.0)
    low, high = middle_90(found)
    return value, min(low, value), max(high, value)
