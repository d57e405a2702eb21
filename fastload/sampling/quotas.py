"""How many of the first ``n`` draws each of several sources has, by weight: exact integers, for any ``n`` alone. Pure.

A binary tree over the sources divides ``n``: its left part gets ``n`` times its share of the weight, rounded, and the
right part the rest. So the counts sum to ``n``, and none is less for a larger ``n``. The sources are sorted by weight,
and each part is cut where its halves weigh most alike: then a part of several sources has at most three quarters of
the weight above it, so a count is off by at most 0.5 + 0.75 * 0.5 + 0.75**2 * 0.5 + ... = 2 in the middle of the tree,
and by 2.5 at its leaves.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .order import Indices

BITS = 62
END = 1 << BITS
"""Draws are numbered below this."""
_LIMB = 31
_LOW = (1 << _LIMB) - 1
_SECTIONS = 64


class Quotas:
    """The quotas of sources, in the order of their weights as they are given.

    Cost: 1 to 3 µs a source to make; a count takes 10 ns and a call 40 µs for each level of the tree.

    Args:
        weights: [sources], positive and finite. Ties in weight are ordered by place.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        self.size = len(weights)
        ratios = [float(weight).as_integer_ratio() for weight in weights]  # exact, by powers of two
        common = max(below for _, below in ratios)
        exact = [above * (common // below) for above, below in ratios]
        total = sum(exact)
        whole = [max(1, weight * END // total) for weight in exact]
        by_weight = sorted(range(self.size), key=lambda place: (-whole[place], place))
        whole[by_weight[0]] += END - sum(whole)  # what rounding down has left, to the heaviest
        ends = [0, *itertools.accumulate(whole[place] for place in by_weight)]
        self._leaves = np.zeros(self.size, dtype=np.int64)
        self._levels: list[tuple[Any, ...]] = []
        self._num_nodes = 1
        parts = [(0, self.size, 0)]
        while parts:
            parts, level = self._cut(parts, ends, by_weight)
            if level:
                parents, lefts, shares = (np.array(column, dtype=np.int64) for column in zip(*level, strict=True))
                self._levels.append((parents, lefts, (shares >> _LIMB)[:, None], (shares & _LOW)[:, None]))

    def _cut(
        self, parts: list[tuple[int, int, int]], ends: list[int], by_weight: list[int]
    ) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]:
        """Cut parts (first source, end, node) in two; return the halves, and (node, its left one, share in 2**62)."""
        halves, level = [], []
        for first, end, node in parts:
            if end - first == 1:
                self._leaves[by_weight[first]] = node
                continue
            both = ends[first] + ends[end]
            cut = bisect.bisect_left(ends, both // 2, first + 1, end - 1)
            cut = min((cut, max(cut - 1, first + 1)), key=lambda place: abs(2 * ends[place] - both))
            weight, left = ends[end] - ends[first], ends[cut] - ends[first]
            child = self._num_nodes
            self._num_nodes += 2
            level.append((node, child, (2 * END * left + weight) // (2 * weight)))
            halves += [(first, cut, child), (cut, end, child + 1)]
        return halves, level

    def counts(self, draws: Indices) -> Indices:
        """Return how many of the first ``draws`` each source has: [N, sources], int64.

        Args:
            draws: [N], int64, 0 to 2**62 - 1.
        """
        counts = np.empty((self._num_nodes, len(draws)), dtype=np.int64)
        counts[0] = draws
        for parents, lefts, high, low in self._levels:
            both = counts[parents]
            # both * share / 2**62, rounded: of 124 bits, so in halves of 31 bits.
            upper, lower = both >> _LIMB, both & _LOW
            middle = (upper * low).view(np.uint64) + (lower * high).view(np.uint64)
            middle += (lower * low + (END >> 1) >> _LIMB).view(np.uint64)
            left = upper * high + (middle >> np.uint64(_LIMB)).view(np.int64)
            counts[lefts], counts[lefts + 1] = left, both - left
        return np.ascontiguousarray(counts[self._leaves].T)


def first_draw(holds: Callable[[Indices], Any], end: int) -> int:
    """Return the least number from 0 to ``end`` where a condition holds, which holds from there on; ``end``: nowhere.

    ``holds`` takes an array of numbers, and returns one of bools.
    """
    begin = -1  # it does not hold there
    while end - begin > 1:
        step = max(1, (end - begin) // _SECTIONS)
        points = np.arange(begin + step, end, step)
        first = int(np.argmax(np.append(holds(points), True)))
        begin, end = begin + first * step, min(end, begin + (first + 1) * step) if first < len(points) else end
    return end
