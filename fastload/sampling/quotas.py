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
from collections.abc import Sequence
from typing import Any

import numpy as np

from .order import Indices

END = 1 << 62
"""Draws are numbered below this."""
_LIMB = 31
_LOW = (1 << _LIMB) - 1


class Quotas:
    """The quotas of sources, in the order of their weights: [sources], positive and finite.

    Cost: 1 to 3 µs a source to make; a count takes 10 ns, and a call 40 µs for each level of the tree.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        self.size = len(weights)
        ratios = [float(weight).as_integer_ratio() for weight in weights]  # exact, by powers of two
        common = max(below for _, below in ratios)
        total = sum(above * (common // below) for above, below in ratios)
        whole = [max(1, above * (common // below) * END // total) for above, below in ratios]
        by_weight = sorted(range(self.size), key=lambda place: (-whole[place], place))
        whole[by_weight[0]] += END - sum(whole)  # what rounding down has left
        ends = [0, *itertools.accumulate(whole[place] for place in by_weight)]
        self._leaves = np.zeros(self.size, dtype=np.int64)
        self._levels: list[tuple[Any, ...]] = []
        self._num_nodes = 1
        parts = [(0, self.size, 0)]  # first source, end, and the node
        while parts:
            level, halves = [], []
            for first, end, node in parts:
                if end - first == 1:
                    self._leaves[by_weight[first]] = node
                    continue
                both, weight = ends[first] + ends[end], ends[end] - ends[first]
                cut = bisect.bisect_left(ends, both // 2, first + 1, end - 1)
                cut = min((abs(2 * ends[place] - both), place) for place in (cut, max(cut - 1, first + 1)))[1]
                # Of 2**62, rounded.
                share = (2 * END * (ends[cut] - ends[first]) + weight) // (2 * weight)
                level.append((node, self._num_nodes, share >> _LIMB, share & _LOW))
                halves += [(first, cut, self._num_nodes), (cut, end, self._num_nodes + 1)]
                self._num_nodes += 2
            if level:
                parents, lefts, high, low = np.array(level, dtype=np.int64).T
                self._levels.append((parents, lefts, high[:, None], low[:, None]))
            parts = halves

    def counts(self, draws: Indices) -> Indices:
        """Return how many of the first ``draws`` ([N], int64, below 2**62) each source has: [N, sources], int64."""
        counts = np.empty((self._num_nodes, len(draws)), dtype=np.int64)
        counts[0] = draws
        for parents, lefts, high, low in self._levels:
            both = counts[parents]
            # both * share / 2**62, rounded: a product of 124 bits, so in halves of 31 bits.
            upper, lower = both >> _LIMB, both & _LOW
            middle = (upper * low).view(np.uint64) + (lower * high).view(np.uint64)
            middle += (lower * low + (END >> 1) >> _LIMB).view(np.uint64)
            left = upper * high + (middle >> np.uint64(_LIMB)).view(np.int64)
            counts[lefts], counts[lefts + 1] = left, both - left
        return np.ascontiguousarray(counts[self._leaves].T)
