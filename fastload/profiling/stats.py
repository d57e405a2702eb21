"""90 % intervals by resampling. Pure; the same input gives the same output."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate

_RESAMPLES = 400
_BLOCKS = 40


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
    found.sort()
    low, high = found[_RESAMPLES // 20], found[-1 - _RESAMPLES // 20]
    return value, min(low, value), max(high, value)
