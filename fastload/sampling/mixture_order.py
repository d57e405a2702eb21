"""The draws of a mixture: draw ``n`` of the whole training -> (source, its epoch, index in it), for any ``n`` alone.

A :class:`Plan` says by which weights, a :class:`MixtureOrder` in which order. Pure, but for caches.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..errors import ConfigError, StateError
from ..keys.philox import SampleWords
from ..keys.seeding import ORDER, Keys
from .order import BLOCKS, Cached, Indices, Permutation, order_key
from .quotas import END, Quotas

MOST_IN_BLOCK = 1 << 24
_SLOTS_AT_ONCE = 1 << 16


class Share(NamedTuple):
    """A source in a stage."""

    weight: float
    """Its share of the draws."""
    length: int
    """Number of its samples."""
    limit: int = 0
    """How many epochs it may have in the whole training; then the others share its weight. 0: any number."""


class Stage(NamedTuple):
    """Weights that hold from one draw on."""

    start: int
    sources: Mapping[str, Share]
    """By name, sorted."""


class _Source(NamedTuple):
    """A source at a draw: how far it has come."""

    length: int
    drawn: int = 0
    """How often before."""
    epochs: int = 0
    since: int = 0
    """From its draw ``since`` on it has had these epochs, and each one more has ``length`` draws."""

    def after(self, drawn: int, length: int) -> _Source:
        """Return the same after more draws. With another length it begins its next epoch."""
        if length == self.length:
            return self._replace(drawn=drawn)
        return _Source(length, drawn, self.epochs - -(drawn - self.since) // self.length, drawn)


class _Part:
    """Draws ``start`` to ``end``, with one set of sources that are drawn."""

    def __init__(self, start: int, end: int, shares: Mapping[str, Share], sources: Mapping[str, _Source]) -> None:
        self.start, self.end, self.sources = start, end, sources
        self.names = list(shares)
        self.lengths, self.drawn, self.epochs, self.since = np.array([sources[name] for name in shares]).T
        self.quotas = Quotas([share.weight for share in shares.values()])
        total = sum(share.weight for share in shares.values())
        for place, (name, share) in enumerate(shares.items()):
            if share.limit:
                left = left_of(sources[name], share.limit)
                off = 4 + left * 1e-12  # a count is off by 2.5, and this by rounding
                low, high = (int((left + more) * total / share.weight) for more in (-off, off))
                draws = range(min(self.end - start, max(0, high)) + 1)
                reached = bisect.bisect_left(draws, left, max(0, min(low, len(draws))), key=self._count_of(place))
                self.end = min(self.end, start + reached)

    def _count_of(self, place: int) -> Any:
        return lambda draws: self.quotas.counts(np.array([draws]))[0, place]

    def counts(self, draw: int) -> dict[str, int]:
        """Return how often each source is drawn before a draw."""
        drawn = (self.drawn + self.quotas.counts(np.array([draw - self.start]))[0]).tolist()
        return {name: one.drawn for name, one in self.sources.items()} | dict(zip(self.names, drawn, strict=True))


def left_of(source: _Source, limit: int) -> int:
    """Return how many draws a source has left."""
    return source.since + max(0, limit - source.epochs) * source.length - source.drawn


class Plan:
    """Which weights hold when, in the whole training.

    Args:
        stages: the first one from draw 0 on. A source that one lacks has no weight in it.
        since: the draw from which on the stages are as ``declared``; what is before has happened.
        origin: (epoch, draw): the draw that an epoch of the loader begins with, and all after it one after the other.
        declared: the stages as the user has given them; None: ``stages``.
    """

    def __init__(
        self,
        stages: Iterable[Stage],
        since: int = 0,
        origin: tuple[int, int] = (0, 0),
        declared: tuple[Stage, ...] | None = None,
    ) -> None:
        self.stages, self.since, self.origin = tuple(stages), since, origin
        self.declared = declared or self.stages
        self._parts: list[_Part] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_parts": []}

    def declared_from(self, draw: int) -> list[Stage]:
        """Return what is declared from a draw on."""
        later = [stage for stage in self.declared if stage.start > draw]
        return [self.declared[-len(later) - 1]._replace(start=draw), *later]

    def part_at(self, draw: int) -> _Part | None:
        """Return the part that a draw is in; None: it comes after the last one that there is."""
        while not self._parts or self._parts[-1].end <= draw:
            part = self._next_part()
            if part is None:
                return None
            self._parts.append(part)
        return self._parts[bisect.bisect_right(self._parts, draw, key=lambda part: part.start) - 1]

    def counts(self, draws: int) -> dict[str, int]:
        """Return how often each source is drawn in the first so many draws, or in all that there are."""
        part = self.part_at(max(draws - 1, 0)) or self._parts[-1]
        return part.counts(min(draws, part.end))

    def draws_until(self, *, every: bool) -> int | None:
        """Return how many draws there are until a source would come a second time, or ``every`` one has come once.

        Sources without weight do not count. If limits end all before: all draws; None: some are never drawn once.
        """
        shares = {name: one for stage in self.stages for name, one in stage.sources.items() if one.weight}

        def holds(draws: int) -> bool:
            counts = self.counts(draws)
            return (all if every else any)(counts[name] >= one.length + (not every) for name, one in shares.items())

        end = 1
        while not holds(end):
            if self.part_at(end) is None:
                return None if every else sum(self.counts(end).values())
            end = min(2 * end, END - 1)
        return bisect.bisect_left(range(end), True, key=holds) - (not every)

    def _next_part(self) -> _Part | None:
        last = self._parts[-1] if self._parts else None
        start = last.end if last else 0
        number = bisect.bisect_right(self.stages, start, key=lambda stage: stage.start)
        stage, end = self.stages[number - 1], self.stages[number].start if number < len(self.stages) else END - 1
        sources = dict(last.sources) if last else {}
        drawn = last.counts(start) if last else {}
        sources = {name: one.after(drawn[name], one.length) for name, one in sources.items()}
        for name, share in stage.sources.items():
            sources[name] = sources.get(name, _Source(share.length)).after(drawn.get(name, 0), share.length)
        shares = {
            name: share
            for name, share in stage.sources.items()
            if share.weight and (not share.limit or left_of(sources[name], share.limit) > 0)
        }
        # Where no source is left, a later stage never begins.
        return _Part(start, end, shares, sources) if shares and start < end else None


class MixtureOrder(Cached[tuple[Indices, Indices]]):
    """The order of a :class:`fastload.Mixture`: each block has its quota of each source, in random order.

    Args:
        plan: which weights hold when.
        places: of each source's samples in the dataset.
        length: draws of an epoch.
        seed: of all orders.
        block: draws of a block.

    Cost, in thousands at once: 0.16 µs a draw with 5 sources, 0.8 µs with 1,000. A block is worked out as a whole:
    50 ns for each of its draws, whatever a rank's share of them.
    """

    once = False

    def __init__(self, plan: Plan, places: Mapping[str, range], length: int, seed: int, block: int) -> None:
        self.plan, self.places, self.length = plan, places, length
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
        return MixtureOrder(plan, self.places, length, self.seed, self.block)

    def draw_at(self, epoch: int, position: int) -> int:
        """Return the number of a draw in the whole training; ``position``: 0 to ``length``.

        Raises:
            ConfigError: the epoch ends before the mixture was continued with other sources, or too late.
        """
        begin, draw = self.plan.origin
        first = draw + (epoch - begin) * self.length
        if epoch < begin or first + self.length >= END:
            raise ConfigError(
                f"epoch must be at least {begin}, which begins with draw {draw} of the mixture as it is now, and end "
                f"before draw 2**62, got {epoch=} of {self.length} draws"
            )
        return first + position

    def block_end(self, epoch: int, position: int) -> int:
        """Return the draw that the block under way ends before; at the beginning of a block, or the end, that place."""
        return self.draw_at(epoch, min(-(-position // self.block) * self.block, self.length))

    def possible(self) -> Indices:
        """Return the indices that can be drawn: those of sources with a weight, now or later."""
        names = {name for stage in self.plan.declared for name, one in stage.sources.items() if one.weight}
        return np.concatenate([np.array(place) for name, place in self.places.items() if name in names])

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
        grid, block_of = np.unique((draws - first) // self.block, return_inverse=True)
        begins = np.maximum(first + grid * self.block, part.start)
        sizes = np.minimum(first + (grid + 1) * self.block, min(part.end, first + self.length)) - begins
        sources, counts = np.empty_like(draws), np.empty_like(draws)
        for size in np.unique(sizes).tolist():
            of_size, at_once = np.flatnonzero(sizes == size), max(1, _SLOTS_AT_ONCE // size)
            chunk_of = np.full(len(sizes), -1)
            chunk_of[of_size] = np.arange(len(of_size)) // at_once
            for chunk in range(-(-len(of_size) // at_once)):
                blocks, rows = of_size[chunk * at_once :][:at_once], np.flatnonzero(chunk_of[block_of] == chunk)
                found = np.searchsorted(blocks, block_of[rows]), draws[rows] - begins[block_of[rows]]
                their_sources, their_counts = self.of((size, begins[blocks].tobytes()))
                sources[rows], counts[rows] = their_sources[found], their_counts[found]
        epochs, rows = np.divmod(counts - part.since[sources], part.lengths[sources])
        return self._indices(part, sources, part.epochs[sources] + epochs, rows)

    def _compute(self, key: tuple[int, bytes]) -> tuple[Indices, Indices]:
        """Return the sources of the draws of blocks, as places in their part, and how often each was drawn before.

        ``key``: draws of a block, and the first draws of the blocks; both results are [blocks, draws].
        """
        size, begins = key[0], np.frombuffer(key[1], dtype=np.int64)
        part = self.plan.part_at(int(begins[0]))
        assert part is not None
        before, after = np.split(part.quotas.counts(np.concatenate([begins, begins + size]) - part.start), 2)
        quotas = (after - before).ravel()
        # Slots: the sources' draws, one source after the other. A random number for each, and the slot, sort them.
        draws = (begins[:, None] + np.arange(size)).ravel()
        numbers = SampleWords(order_key(self.seed, 0, BLOCKS), draws, 0).words(2).astype("<u4").view("<u8")
        bits = np.uint64(size.bit_length())
        numbers = (numbers >> bits << bits).reshape(-1, size) | np.arange(size, dtype=np.uint64)
        numbers.sort(axis=1)
        numbers &= (np.uint64(1) << bits) - np.uint64(1)
        places = np.arange(part.quotas.size, dtype=np.min_scalar_type(part.quotas.size))
        of_slot = np.repeat(np.tile(places, len(begins)), quotas).reshape(-1, size)
        sources = np.take_along_axis(of_slot, numbers.view(np.int64), axis=1)
        starts = np.cumsum(quotas) - quotas
        counts_of_slot = np.repeat((before + part.drawn).ravel() - starts, quotas) + np.arange(of_slot.size)
        # Of each source the draws come in their order.
        counts = np.empty(sources.shape, dtype=np.int64)
        np.put_along_axis(counts, sources.argsort(axis=1, kind="stable"), counts_of_slot.reshape(-1, size), axis=1)
        return sources, counts

    def _indices(self, part: _Part, sources: Indices, epochs: Indices, rows: Indices) -> Indices:
        """Return the dataset's indices of rows of the sources' own orders."""
        indices = np.empty_like(rows)
        together = np.lexsort((epochs, sources))
        cuts = np.flatnonzero((np.diff(sources[together]) != 0) | (np.diff(epochs[together]) != 0)) + 1
        for some in np.split(together, cuts):
            place, epoch = sources[some[0]], int(epochs[some[0]])
            name = part.names[place]
            own, length = self.places.get(name, range(0)), int(part.lengths[place])
            if length > len(own):
                raise StateError(
                    f"the mixture goes on within a block or a window that has samples of {name!r}, of which {length} "
                    f"were there and {len(own)} are: keep them, with weight 0, or save states between blocks"
                )
            indices[some] = _order_of_source(self.seed, epoch, name, length).at(rows[some]) + own.start
        return indices


@functools.lru_cache(maxsize=4096)
def _order_of_source(seed: int, epoch: int, name: str, length: int) -> Permutation:
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16, person=b"fastload.v1").digest()
    return Permutation(length, Keys(seed, epoch, ORDER).key(int.from_bytes(digest, "little", signed=True)))
