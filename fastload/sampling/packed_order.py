"""The order of an epoch in packs, batches of as many samples as fit, and one rank's share of these.

An epoch's order is cut into windows, and each window into packs, which are shuffled within it. In the packed order a
pack's samples follow each other, so a pack is a range of positions. What a window is depends on seed, epoch and its
number alone; how many packs are before it is known only once they were counted. Pure, but for caches.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..errors import ConfigError, StateError
from .distributed_orders import argsort_of_words
from .order import PACKS, Cached, Indices, Order, order_key
from .packs import Numbers, best_fit
from .samplers import EpochOrder, Pack

if TYPE_CHECKING:
    from .mixture_order import MixtureOrder

LengthsOf: TypeAlias = Callable[[Indices], Numbers]


class PackOrder(Cached[tuple[Indices, Indices]]):
    """An order in packs: at a window's end are its samples that are dropped.

    Args:
        base: the order that windows are cut from.
        name: names all that makes the packs.
        lengths_of: returns lengths, int32, at least 1, of dataset indices.
        seed: shuffles the packs of a window; None: they are in the order in which they were opened.
        max_tokens: of a pack; a sample above is dropped if ``drops``, and else an error.
        max_samples: of a pack.
        window: samples that are packed together.
        align: a length is rounded up to a multiple of this; ``max_tokens`` is one.
        balance: the packs of a window are sorted by the sum of their squared lengths, in every other one backwards.
    """

    def __init__(
        self,
        base: Order,
        name: str,
        lengths_of: LengthsOf,
        seed: int | None,
        *,
        max_tokens: int,
        max_samples: int,
        window: int,
        align: int,
        drops: bool,
        balance: bool,
    ) -> None:
        self.length, self.once, self.name = base.length, base.once, name
        self.mixture: MixtureOrder | None = getattr(base, "mixture", None)
        self.window_size = window
        self._base, self._lengths_of, self._seed = base, lengths_of, seed
        self._max_tokens, self._max_samples, self._align = max_tokens, max_samples, align
        self._drops, self._balance = drops, balance
        self._counts: dict[int, dict[int, tuple[int, int]]] = {}  # of the last two epochs, by window: packs and tokens

    def with_mixture(self, order: MixtureOrder) -> PackOrder:
        """Return the same packs of another order of the mixture."""
        twin = copy.copy(self)
        twin.length, twin.mixture, twin._base, twin._counts = order.length, order, order, {}
        return twin

    def at(self, epoch: int, positions: Indices) -> Indices:
        """Return the dataset indices at these positions."""
        found = np.empty(len(positions), dtype=np.int64)
        windows = positions // self.window_size
        for window in np.unique(windows).tolist():
            inside = windows == window
            found[inside] = self.of((epoch, window))[0][positions[inside] - window * self.window_size]
        return found

    def packs(self, epoch: int, first: int) -> Iterator[list[Pack]]:
        """Yield the packs of each window, from the one that begins at position ``first`` on."""
        for window in range(first // self.window_size, -(-self.length // self.window_size)):
            indices, edges = self.of((epoch, window))
            start = window * self.window_size
            values, ends = indices.tolist(), edges[edges >= first - start].tolist()
            yield [Pack(values[low:high], start + low) for low, high in itertools.pairwise(ends)]

    def begins_pack(self, epoch: int, position: int) -> bool:
        """Return whether a pack begins or ends at a position, or the epoch ends there."""
        if position >= self.length:
            return position == self.length
        window, place = divmod(position, self.window_size)
        return place in self.of((epoch, window))[1]

    def start_of(self, epoch: int, first: int, number: int) -> int:
        """Return where the pack begins that has this number, counted from the one at position ``first``."""
        if first >= self.length:
            return self.length
        begin, place = divmod(first, self.window_size)
        if place:
            number += int(np.searchsorted(self.of((epoch, begin))[1], place))
        for window in range(begin, -(-self.length // self.window_size)):
            count = self.count(epoch, window)[0]
            if number < count:
                return window * self.window_size + int(self.of((epoch, window))[1][number])
            number -= count
        return self.length

    def count(self, epoch: int, window: int | None = None) -> tuple[int, int]:
        """Return the number of packs and of tokens in a window; None: in the whole epoch."""
        if window is not None:
            known = self._counts.get(epoch, {}).get(window)
            return self._fit(epoch, window)[0] if known is None else known
        counts = [self.count(epoch, window) for window in range(-(-self.length // self.window_size))]
        return sum(packs for packs, _ in counts), sum(tokens for _, tokens in counts)

    def _fit(self, epoch: int, window: int) -> tuple[tuple[int, int], Indices, Indices, Numbers, Numbers]:
        """Return the count of a window, its samples, those that are dropped, and the others' lengths and packs."""
        start = window * self.window_size
        positions = np.arange(start, min(start + self.window_size, self.length))
        indices = self._base.at(epoch, positions)
        lengths = self._lengths_of(indices)
        dropped = indices[:0]
        if lengths.max(initial=0) > self._max_tokens:
            if not self._drops:
                index = int(indices[lengths.argmax()])
                raise too_long(index, int(lengths.max()), self._max_tokens)
            fits = lengths <= self._max_tokens
            indices, dropped, lengths = indices[fits], indices[~fits], lengths[fits]
        units = -(-lengths // self._align) if self._align > 1 else lengths
        packs, number = best_fit(units, self._max_tokens // self._align, self._max_samples)
        if epoch not in self._counts:
            self._counts = {**dict([*self._counts.items()][-1:]), epoch: {}}
        count = self._counts[epoch][window] = number, int(lengths.sum(dtype=np.int64))
        return count, indices, dropped, lengths, packs

    def _compute(self, key: tuple[int, int]) -> tuple[Indices, Indices]:
        """Return a window's samples pack by pack, and where each pack begins in them, and the last one ends."""
        epoch, window = key
        (number, _), indices, dropped, lengths, packs = self._fit(epoch, window)
        order = np.arange(number)
        if self._balance:
            costs = np.bincount(packs, weights=lengths.astype(np.float64) ** 2, minlength=number)
            # So neighbours are alike across the border of two windows too.
            order = np.argsort(costs, kind="stable")[:: -1 if window % 2 else 1]
        elif self._seed is not None:
            order = argsort_of_words(order_key(self._seed, epoch, PACKS), window * self.window_size + order)
        places = np.empty(number, dtype=np.uint16 if number < 1 << 16 else np.int64)
        places[order] = np.arange(number)
        sizes = np.bincount(packs, minlength=number)[order]
        rows = np.argsort(places[packs], kind="stable")
        return np.concatenate([indices[rows], dropped]), np.concatenate([[0], np.cumsum(sizes)])


def too_long(index: int, length: int, max_tokens: int) -> ConfigError:
    """Return the error of a sample that fits into no pack."""
    return ConfigError(
        f"sample {index} has {length} tokens, as lengths says, and a pack at most max_tokens={max_tokens}: give a "
        "larger max_tokens, or overlong='truncate', 'split' or 'drop'"
    )


@dataclass(frozen=True)
class PackedEpochs(EpochOrder):
    """The packs of an epoch, in steps of ``shard.global_batch_size``, and one rank's share: every n-th, of n ranks.

    A position to go on from is ``first * global_batch_size + given``: where the first pack of the step under way begins
    in the packed order, and how many of the step's packs were given out. Steps go on from one window to the next.
    """

    order: PackOrder

    def batches(self, epoch: int, *, arrays: bool = False) -> Iterator[Any]:
        """Yield the packs of this rank."""
        given = self.shard.base % self._step
        for step in self._steps(epoch):
            yield from step[given + self.shard.rank :: self.shard.num_ranks]
            given = 0

    def position_after(self, num_batches: int, epoch: int) -> int:
        """Return from which position an epoch goes on after so many batches on each rank."""
        first, given = divmod(self.shard.base, self._step)
        steps, given = divmod(given + num_batches * self.shard.num_ranks, self._step)
        return self.order.start_of(epoch, first, steps * self._step) * self._step + given

    def num_batches(self, epoch: int) -> int:
        """Return how many batches this rank has in an epoch."""
        shard, packs = self.shard, self.order.count(epoch)[0]
        steps, rest = divmod(packs, self._step)
        if rest and shard.tail != "drop":
            first = self.order.start_of(epoch, 0, steps * self._step)
            held = list(itertools.chain.from_iterable(self.order.packs(epoch, first)))
            rest = len(self._filled(epoch, held)[shard.rank :: shard.num_ranks])
        else:
            rest = 0
        return steps * self._step // shard.num_ranks + rest

    def check_position(self, position: int, epoch: int, saved_batch_size: int) -> None:
        """Raise a StateError unless an epoch can go on from there."""
        first, given = divmod(position, self._step)
        if not self.order.begins_pack(epoch, first):
            raise StateError(f"no pack of epoch {epoch} begins at {first}, which the state says, got {position=}")
        if given % self.shard.num_ranks:
            raise StateError(
                f"the state was saved within a step, after {given} of its {self._step} packs, which "
                f"{self.shard.num_ranks} ranks cannot go on from; load it on as many ranks as there were, or save "
                "states between steps"
            )

    def around(self, position: int, epoch: int) -> Indices:
        """Return the positions of the pack that a position falls in."""
        order = self.order
        for pack in next(order.packs(epoch, position // order.window_size * order.window_size)):
            if pack.position <= position < pack.position + len(pack):
                return np.arange(pack.position, pack.position + len(pack))
        raise ConfigError(f"position {position} is in no pack: overlong='drop' leaves its sample out")

    def draws_before(self, position: int, epoch: int) -> tuple[int, int]:
        """Return up to which draw of a mixture all was given out, and from which on it may change: the window's end."""
        order, (first, given) = self.order, divmod(position, self._step)
        start = min(order.start_of(epoch, first, given), order.length)
        end = min(-(-start // order.window_size) * order.window_size, order.length)
        assert order.mixture is not None
        return order.mixture.draw_at(epoch, start), order.mixture.block_end(epoch, end)

    @property
    def _step(self) -> int:
        assert self.shard.global_batch_size is not None
        return self.shard.global_batch_size

    def _steps(self, epoch: int) -> Iterator[list[Pack]]:
        held: list[Pack] = []
        for packs in self.order.packs(epoch, self.shard.base // self._step):
            held += packs
            end = len(held) // self._step * self._step
            for first in range(0, end, self._step):
                yield held[first : first + self._step]
            del held[:end]
        if held and self.shard.tail != "drop":
            yield self._filled(epoch, held)

    def _filled(self, epoch: int, step: list[Pack]) -> list[Pack]:
        """Return the last step with as many packs as the others: by repeats, or by cutting the largest into two."""
        if self.shard.tail == "pad":
            repeats = (
                Pack(pack, pack.position + turn * self.order.length)
                for turn in itertools.count(1)
                for packs in self.order.packs(epoch, 0)
                for pack in packs
            )
            return [*step, *itertools.islice(repeats, self._step - len(step))]
        while len(step) < self._step and (most := max(map(len, step))) > 1:
            place = next(place for place, pack in enumerate(step) if len(pack) == most)
            pack, half = step[place], most // 2
            step[place : place + 1] = [Pack(pack[:half], pack.position), Pack(pack[half:], pack.position + half)]
        return step
