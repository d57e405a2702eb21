"""The order of an epoch as a function of (epoch, position). Most orders need no list of indices.

Which rank loads which positions: see :class:`~fastload.work.Shard`. Pure, but for a cache of the last two epochs.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import numpy as np

from .. import native
from ..keys.seeding import ORDER, Keys

Indices: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
_T = TypeVar("_T")

# Purposes within the ORDER domain. The numbers are part of the key: never renumber.
PERMUTATION, DRAWS, BATCHES, ROWS, BLOCKS, PACKS = range(6)


class Order(Protocol):
    """The global order of every epoch."""

    length: int
    """Number of positions of an epoch."""
    name: str
    """The kind of order and its arguments, without the seed. It is part of the state, to detect another order."""
    once: bool
    """An index occurs at most once in an epoch, so it can be the id of a sample."""

    def at(self, epoch: int, positions: Indices) -> Indices:
        """Return the dataset indices at these positions (int64, 0..length-1, in any order)."""


def order_of(dataset: Any, seed: int, block: int | None = None) -> Order | None:
    """Return the order that a dataset brings, as a :class:`fastload.Mixture` does; None: it brings none.

    ``block``: samples of a batch, of all ranks together; None: unknown.
    """
    make = getattr(type(dataset), "fastload_order", None)
    order: Order | None = None if make is None else make(dataset, seed, block)
    return order


class Cached(Generic[_T]):
    """Caches the last two values, since two epochs may be loaded at once."""

    _cache: list[tuple[Any, _T]] = []

    def of(self, key: Any) -> _T:
        """Return the value of an epoch, or of what else it depends on."""
        for known, value in self._cache:
            if known == key:
                return value
        value = self._compute(key)
        self._cache = [*self._cache[-1:], (key, value)]
        return value

    def _compute(self, key: Any) -> _T:
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_cache"}


class Sequential:
    """The dataset's own order."""

    once = True
    name = "sequential"

    def __init__(self, length: int) -> None:
        self.length = length

    def __eq__(self, other: object) -> bool:
        return type(other) is Sequential and other.length == self.length

    __hash__ = None  # type: ignore[assignment]

    def at(self, epoch: int, positions: Indices) -> Indices:
        """Return the positions themselves."""
        return positions


class Keyed(Cached["Permutation"]):
    """A permutation that is computed at each position: it needs no memory, however many samples there are."""

    once = True
    name = "keyed"

    def __init__(self, length: int, seed: int) -> None:
        self.length = length
        self._seed = seed

    def _compute(self, epoch: int) -> Permutation:
        return Permutation(self.length, order_key(self._seed, epoch, PERMUTATION))

    def at(self, epoch: int, positions: Indices) -> Indices:
        """Return the dataset indices at these positions."""
        return self.of(epoch).at(positions)


class Permutation:
    """A keyed bijection of 0..length-1, for a length of 1 to 2**62.

    A Feistel network over the next power of two, repeated until the value is below ``length`` (cycle walking: Black and
    Rogaway, "Ciphers with arbitrary finite domains", 2002). The values depend only on the key, so they are the same on
    every machine and for every version of NumPy.

    Cost: 10 to 36 ns an index with the native library, a third of that above 65,536 indices; without it 25 to 65 ns in
    large arrays, 0.05 ms for a single one.
    """

    def __init__(self, length: int, key: bytes) -> None:
        if not 1 <= length <= 1 << 62:
            raise ValueError(f"a permutation needs 1 to 2**62 elements, got {length}")
        self.length = length
        bits = max(2, (length - 1).bit_length())
        self.bits = bits // 2, bits - bits // 2  # of the lower and the higher half
        # Narrow halves mix slowly: of five elements, eight rounds favour some orders by a quarter, sixteen do not.
        rounds = 24 if bits <= 16 else 8
        words = hashlib.shake_256(key).digest(8 * rounds)
        self.round_keys = np.frombuffer(words, dtype="<u8").astype(np.uint64)

    def at(self, positions: Indices) -> Indices:
        """Return the values at these positions (int64, any shape, all in 0..length-1).

        Raises:
            ValueError: a position is outside.
        """
        return self._permuted(positions, backwards=False)

    def position_of(self, values: Indices) -> Indices:
        """Return the positions of these values: the inverse of :meth:`at`."""
        return self._permuted(values, backwards=True)

    def _permuted(self, start: Indices, *, backwards: bool) -> Indices:
        if start.size and not 0 <= start.min() <= start.max() < self.length:  # which would be walked for ever
            raise ValueError(
                f"a permutation of {self.length} takes 0 to {self.length - 1}, got {start.min()} to {start.max()}"
            )
        permute = _native()
        if permute is None:
            from .permuting import by_numpy

            return by_numpy(start, self.length, self.bits, self.round_keys, backwards=backwards)
        values = np.array(start, dtype=np.int64, order="C")
        network = *self.bits, self.round_keys.ctypes.data, len(self.round_keys)
        permute(values.ctypes.data, values.size, self.length, *network, backwards)
        return values


@functools.cache
def _native() -> Any:
    return native.library.permute if native.available() else None


def order_key(seed: int, epoch: int, purpose: int) -> bytes:
    """Return the key of an epoch's order for one of the purposes above."""
    return Keys(seed, epoch, ORDER).key(purpose)
