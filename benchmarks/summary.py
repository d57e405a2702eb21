"""From measurements to numbers: medians, quartiles, and the ratio of two sides with its interval."""

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_NUM_RESAMPLINGS = 2000


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A median and what lies around it."""

    median: float
    """Middle of the values."""
    first_quartile: float
    """A quarter of the values lie below it."""
    third_quartile: float
    """A quarter of the values lie above it."""


def spread_of(values: Sequence[float]) -> Spread:
    """Return median and quartiles (interpolated, ends included); a single value is all three."""
    if len(values) == 1:
        return Spread(median=values[0], first_quartile=values[0], third_quartile=values[0])
    first, middle, third = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median=middle, first_quartile=first, third_quartile=third)


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """How many times better a side is than torch: above 1 is in its favour."""

    value: float
    """Ratio of the two medians."""
    low: float
    """Lower end of the 95 % interval."""
    high: float
    """Upper end of the 95 % interval."""


def ratio_of(torch_values: Sequence[float], values: Sequence[float], *, more_is_better: bool) -> Ratio:
    """Divide the medians of two sides, whose values at the same place were measured one after the other.

    The interval is a percentile bootstrap over the pairs, with a fixed seed. It says how much the run itself scatters;
    with five pairs it is rough, and it knows nothing of what differs from run to run.
    """
    pairs = list(zip(torch_values, values, strict=True))

    def divide(drawn: Sequence[tuple[float, float]]) -> float:
        theirs = statistics.median(pair[0] for pair in drawn)
        ours = statistics.median(pair[1] for pair in drawn)
        return ours / theirs if more_is_better else theirs / ours

    generator = random.Random(0)
    resampled = sorted(divide(generator.choices(pairs, k=len(pairs))) for _ in range(_NUM_RESAMPLINGS))
    return Ratio(
        value=divide(pairs),
        low=resampled[int(0.025 * _NUM_RESAMPLINGS)],
        high=resampled[int(0.975 * _NUM_RESAMPLINGS) - 1],
    )
