"""The draws of a mixture: draw ``n`` of the whole training -> (source, its epoch, index in it), for any ``n`` alone.

A :class:`Plan` says by which weights, a :class:`MixtureOrder` in which order. Pure, but for caches.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import itertools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..errors import ConfigError, StateError
from ..keys.philox import SampleWords
from ..keys.seeding import ORDER, Keys
from .order import BLOCKS, Indices, Permutation, order_key
from .permuting import by_numpy
from .quotas import END, Quotas, first_draw

DEFAULT_BLOCK = 256
_MOST_KEYS = 1 << 16


class Stage(NamedTuple):
    """Weights that hold from one draw on."""

    start: int
    names: tuple[str, ...]
    """Sorted."""
    weights: tuple[float, ...]
    """Shares of the draws."""
    lengths: tuple[int, ...]
    """Samples of each source."""


class _Source(NamedTuple):
    """Where a source is at a draw."""

    length: int
    drawn: int
    """How often before."""
    first_epoch: int = 0
    first_count: int = 0
    """Its draws from this count on are its epochs from ``first_epoch`` on, each of ``length``."""

    def counted_to(self, count: int, length: int) -> _Source:
        """Return the same after more draws. With another length it begins its next epoch."""
        if length == self.length:
            return self._replace(drawn=count)
        epochs = self.first_epoch - -(count - self.first_count) // self.length
        return _Source(length, count, epochs, count)


class _Part:
    """Draws ``start`` to ``end`` with one set of weights, none of which is 0."""

    def __init__(self, start: int, end: int, weights: Mapping[str, float], sources: Mapping[str, _Source]) -> None:
        self.start, self.end, self.sources = start, end, sources
        self.names = sorted(weights)
        self.quotas = Quotas([weights[name] for name in self.names])
        columns = np.array([sources[name] for name in self.names], dtype=np.int64).T
        self.lengths, self.counts, self.first_epochs, self.first_counts = columns

    def at_end(self, draw: int) -> dict[str, int]:
        """Return the draws of each source before this draw."""
        drawn = self.quotas.counts(np.array([draw - self.start]))[0] + self.counts
        counts = {name: source.drawn for name, source in self.sources.items()}
        return counts | dict(zip(self.names, drawn.tolist(), strict=True))

    def first_draw(self, counts: Indices, *, every: bool) -> int:
        """Return the draw before which one source, or every one, has come so often in this part; ``end``: none has."""
        both = np.all if every else np.any
        length = self.end - self.start
        return self.start + first_draw(lambda n: both(self.quotas.counts(n) >= counts, axis=1), length)


class Plan:
    """Which weights hold when, in the whole training.

    Args:
        stages: the first one from draw 0 on; not empty. A name that a stage lacks has no weight in it.
        limits: how many epochs a source may have; then the others share its weight.
        since: the draw from which on ``limits`` hold; what is before has happened.
        origin: (epoch, draw): the draw that an epoch of the loader begins with, and all after it one after the other.
        declared: the stages as the user gives them, without what has happened; None: ``stages``.
    """

    def __init__(
        self,
        stages: Iterable[Stage],
        limits: Mapping[str, int] | None = None,
        since: int = 0,
        origin: tuple[int, int] = (0, 0),
        declared: tuple[Stage, ...] | None = None,
    ) -> None:
        self.stages = tuple(stages)
        self.declared = self.stages if declared is None else declared
        self.limits = dict(limits or {})
        self.since = since
        self.origin = origin
        pairs = (zip(stage.names, stage.weights, strict=True) for stage in self.stages)
        self.drawn = {name for name, weight in itertools.chain.from_iterable(pairs) if weight}
        """Names with a weight in some stage."""
        self._parts: list[_Part] = []

    def part_at(self, draw: int) -> _Part | None:
        """Return the part that a draw is in; None: it comes after the last sample that may be drawn."""
        while not self._parts or self._parts[-1].end <= draw:
            part = self._next_part()
            if part is None:
                return None
            self._parts.append(part)
        return self._parts[bisect.bisect_right(self._parts, draw, key=lambda part: part.start) - 1]

    def counts(self, draws: int) -> dict[str, int]:
        """Return how many of the first so many draws each source has, or of all that there are."""
        part = self.part_at(max(draws - 1, 0)) or self._parts[-1]
        return part.at_end(min(draws, part.end))

    def happened(self, draw: int) -> list[Stage]:
        """Return what this plan was before a draw, as stages: without the sources that were at their limits."""
        stages = []
        start = 0
        while start < draw:
            part = self.part_at(start)
            assert part is not None, "it was drawn"
            stage = self.stages[bisect.bisect_right(self.stages, start, key=lambda stage: stage.start) - 1]
            pairs = zip(stage.names, stage.weights, strict=True)
            weights = tuple(weight if name in part.names else 0.0 for name, weight in pairs)
            stages.append(Stage(part.start, stage.names, weights, stage.lengths))
            start = part.end
        return stages

    def draws_until(self, *, every: bool) -> int | None:
        """Return after how many draws the next one would be a second time of a source, or ``every`` source has ended.

        Sources without weight do not count. If a limit ends all before: all draws, or None if a source has not ended.
        """
        part, draw = self.part_at(0), 0
        while part is not None:
            waits = any(part.sources[name].drawn < part.sources[name].length for name in self.drawn - {*part.names})
            bounds = part.lengths - part.counts + (not every)
            if not (every and waits):
                draw = part.first_draw(bounds, every=every)
                if draw < part.end:
                    return draw - (not every)
            draw = part.end
            part = self.part_at(draw)
        counts = self.counts(draw)
        lengths = self._parts[-1].sources
        return draw if not every or all(counts[name] >= lengths[name].length for name in self.drawn) else None

    def _next_part(self) -> _Part | None:
        last = self._parts[-1] if self._parts else None
        start = 0 if last is None else last.end
        if start >= END:
            return None
        place = bisect.bisect_right(self.stages, start, key=lambda stage: stage.start) - 1
        stage = self.stages[place]
        end = self.stages[place + 1].start if place + 1 < len(self.stages) else END
        counts = {} if last is None else last.at_end(start)
        before = {} if last is None else dict(last.sources)
        sources = {name: source.counted_to(counts[name], source.length) for name, source in before.items()}
        for name, length in zip(stage.names, stage.lengths, strict=True):
            sources[name] = sources.get(name, _Source(length, 0)).counted_to(counts.get(name, 0), length)
        weights = {name: weight for name, weight in zip(stage.names, stage.weights, strict=True) if weight > 0}
        limits = {} if start < self.since else self._counts_at_limits(sources)
        weights = {name: one for name, one in weights.items() if sources[name].drawn < limits.get(name, END)}
        if not weights:
            # No draw is left, so a later stage never begins.
            return None
        part = _Part(start, end, weights, sources)
        bounds = np.array([limits.get(name, END) for name in part.names]) - part.counts
        if limits:
            part.end = part.first_draw(bounds, every=False)
        return part

    def _counts_at_limits(self, sources: Mapping[str, _Source]) -> dict[str, int]:
        return {
            name: one.first_count + max(0, self.limits[name] - one.first_epoch) * one.length
            for name, one in sources.items()
            if name in self.limits
        }

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_parts": []}


class MixtureOrder:
    """The order of a :class:`fastload.Mixture`: each block has its quota of each source, in random order.

    Args:
        plan: which weights hold when.
        offsets: of each source's samples in the dataset.
        length: draws of an epoch.
        seed: of all orders.
        block: draws of a block.

    Cost: 0.3 to 0.6 µs a draw, in thousands at once.
    """

    once = False

    def __init__(self, plan: Plan, offsets: Mapping[str, int], length: int, seed: int, block: int) -> None:
        self.plan, self.offsets, self.length = plan, offsets, length
        self.seed, self.block = seed, block
        self.name = f"mixture {block}"

    @property
    def mixture(self) -> MixtureOrder:
        """The mixture's order itself; an order that is made from one has the same attribute."""
        return self

    def with_mixture(self, order: MixtureOrder) -> MixtureOrder:
        """Return the order that is made from this one instead of :attr:`mixture`: it itself."""
        return order

    def with_plan(self, plan: Plan, length: int) -> MixtureOrder:
        """Return the same order by another plan, with epochs of so many draws."""
        return MixtureOrder(plan, self.offsets, length, self.seed, self.block)

    def draw_at(self, epoch: int, position: int) -> int:
        """Return the number of a draw in the whole training; ``position``: 0 to ``length``.

        All that is at positions before is made from draws before it.

        Raises:
            ConfigError: the epoch ends before the mixture was continued with other sources, or there are none left.
        """
        known_epoch, draw = self.plan.origin
        first = draw + (epoch - known_epoch) * self.length
        if epoch < known_epoch or first + self.length > END:
            raise ConfigError(
                f"epoch must be at least {known_epoch}, which begins with draw {draw} of the mixture, and end before "
                f"draw 2**62, got {epoch=} of {self.length} draws"
            )
        return first + position

    def possible(self) -> Indices:
        """Return the indices that can be drawn: those of sources with a weight, now or later."""
        last = self.plan.stages[-1]
        lengths = dict(zip(last.names, last.lengths, strict=True))
        ranges = [
            np.arange(self.offsets[name], self.offsets[name] + lengths[name])
            for name in sorted(self.plan.drawn & self.offsets.keys())
        ]
        return np.concatenate(ranges)

    def at(self, epoch: int, positions: Indices) -> Indices:
        """Return the dataset indices at these positions."""
        first = self.draw_at(epoch, 0)
        draws = first + positions.ravel()
        indices = np.empty_like(draws)
        left = np.arange(len(draws))
        while left.size:
            part = self.plan.part_at(int(draws[left[0]]))
            if part is None:
                raise ConfigError(
                    f"epoch {epoch} needs draws {first} to {first + self.length - 1} of the mixture, and all sources "
                    f"have reached max_epochs before: {self.plan.counts(END)}; train for fewer epochs, or give a "
                    "smaller num_samples or a source without max_epochs"
                )
            inside = (draws[left] >= part.start) & (draws[left] < part.end)
            indices[left[inside]] = self._drawn(part, first, draws[left[inside]])
            left = left[~inside]
        return indices.reshape(positions.shape)

    def _drawn(self, part: _Part, first: int, draws: Indices) -> Indices:
        """Return the indices of draws of one part, of the epoch that begins with draw ``first``."""
        # Blocks are counted from the epoch's start, as its batches are.
        grid = first + (draws - first) // self.block * self.block
        grid, block_of = np.unique(grid, return_inverse=True)
        begins = np.maximum(grid, part.start)
        ends = np.minimum(grid + self.block, min(part.end, first + self.length))
        slots = self._shuffled(begins, ends - begins, block_of, draws - begins[block_of])
        bounds, places = np.unique(np.concatenate([begins, ends]), return_inverse=True)
        counts = part.quotas.counts(bounds - part.start)
        before, after = counts[places[: len(begins)]], counts[places[len(begins) :]]
        last = np.cumsum(after - before)  # of the slots of each block's sources, one block after the other
        slots += (np.cumsum(ends - begins) - (ends - begins))[block_of]
        which = np.searchsorted(last, slots, side="right")
        sources = which % part.quotas.size
        counts = part.counts[sources] + after.ravel()[which] - (last[which] - slots) - part.first_counts[sources]
        lengths = part.lengths[sources]
        return self._rows(part, sources, part.first_epochs[sources] + counts // lengths, counts % lengths)

    def _shuffled(self, begins: Indices, sizes: Indices, block_of: Indices, slots: Indices) -> Indices:
        """Return the slots in their blocks after each block is shuffled by the key of its first draw."""
        shuffled = np.empty_like(slots)
        key = order_key(self.seed, 0, BLOCKS)
        for size in np.unique(sizes).tolist():
            rows = np.flatnonzero(sizes[block_of] == size)
            blocks, network = block_of[rows], Permutation(size, b"")
            words = SampleWords(key, begins, 0).words(2 * len(network.round_keys)).astype(np.uint64)
            keys = np.ascontiguousarray((words[:, 0::2] | words[:, 1::2] << np.uint64(32)).T)
            shuffled[rows] = by_numpy(slots[rows], size, network.bits, keys[:, blocks])
        return shuffled

    def _rows(self, part: _Part, sources: Indices, epochs: Indices, rows: Indices) -> Indices:
        """Return the dataset's indices of rows of sources' own orders."""
        indices = np.empty_like(rows)
        least = int(epochs.min())
        span = int(epochs.max()) - least + 1
        if span * len(part.names) < _MOST_KEYS:
            together = np.argsort(((epochs - least) * len(part.names) + sources).astype(np.uint16), kind="stable")
        else:
            together = np.lexsort((epochs, sources))
        sources, epochs = sources[together], epochs[together]
        cuts = np.flatnonzero((np.diff(sources) != 0) | (np.diff(epochs) != 0)) + 1
        for some in np.split(np.arange(len(rows)), cuts):
            name, epoch = part.names[sources[some[0]]], int(epochs[some[0]])
            places = together[some]
            if name not in self.offsets:
                raise StateError(
                    f"the mixture goes on within what was planned with source {name!r}, which it no longer has: keep "
                    "it among the datasets, with weight 0"
                )
            order = _order_of_source(self.seed, epoch, name, int(part.lengths[sources[some[0]]]))
            indices[places] = order.at(rows[places]) + self.offsets[name]
        return indices


@functools.lru_cache(maxsize=4096)
def _order_of_source(seed: int, epoch: int, name: str, length: int) -> Permutation:
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16, person=b"fastload.v1").digest()
    return Permutation(length, Keys(seed, epoch, ORDER).key(int.from_bytes(digest, "little", signed=True)))
