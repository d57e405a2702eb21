"""Medians with confidence intervals.

Pure.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Interval:
    """A median, and bounds for the true median with a probability of 95 %, or less with few values."""

    value: float
    low: float
    high: float


def median_interval(values: Sequence[float]) -> Interval:
    """Return the median and its interval, by the order of the values alone: no distribution is assumed.

    Each value lies below the true median as often as above. So the k-th smallest lies above it as rarely as k - 1 or
    fewer of n coins show heads; k is the largest for which that is at most 2.5 %. With fewer than six values there is
    none, and the interval is from the least to the greatest: 94 % for five, 88 % for four, 75 % for three.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("there are no values to take the median of")
    ordered = sorted(values)
    number = len(ordered)
    place, probability = 0, 0.5**number
    while place < (number - 1) // 2:
        probability += math.comb(number, place + 1) * 0.5**number
        if probability > 0.025:
            break
        place += 1
    return Interval(statistics.median(ordered), ordered[place], ordered[-1 - place])


__all__ = ["Interval", "median_interval"]
