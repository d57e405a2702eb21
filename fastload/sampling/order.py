"""The order of an epoch as a function of (epoch, position). Most orders need no list of indices.

In: an epoch, and positions in its global order. Out: the dataset indices at these positions. Which rank loads which
positions is decided in shard.py. Pure, but for a cache of the last two epochs.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from .. import native
from ..errors import ConfigError
from ..keys.philox import sample_units, sample_words
from ..keys.seeding import ORDER, Keys

Indices: TypeAlias = npt.NDArray[np.int64]
_Words: TypeAlias = npt.NDArray[np.uint64]
_T = TypeVar("_T")

# Purposes within the ORDER domain. The numbers are part of the key: never renumber.
_PERMUTATION, _DRAWS, _BATCHES, _ROWS = range(4)


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


class _Cached(Generic[_T]):
    """Caches the last two values, since two epochs may be loaded at once."""

    _cache: list[tuple[Any, _T]] = []

    def _of(self, key: Any) -> _T:
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


class Keyed(_Cached["Permutation"]):
    """A permutation that is computed at each position: it needs no memory, however many samples there are.

    Args:
        length: samples.
        seed: any integer that fits 128 bits, signed.
    """

    once = True
    name = "keyed"

    def __init__(self, length: int, seed: int) -> None:
        self.length = length
        self._seed = seed

    def _compute(self, epoch: int) -> Permutation:
        return Permutation(self.length, _key(self._seed, epoch, _PERMUTATION))

    def at(self, epoch: int, positions: Indices) -> Indices:
        """Return the dataset indices at these positions."""
        return self._of(epoch).at(positions)


class Blocks(_Cached["Permutation"]):
    """Blocks of consecutive samples, in random order, for slow storage.

    Args:
        length: samples.
        seed: any integer that fits 128 bits, signed.
        block_size: samples of a block; the dataset's last block may be shorter.
    """

    once = True

    def __init__(self, length: int, seed: int, block_size: int) -> None:
        self.length = length
        self.name = f"block {block_size}"
        self._seed = seed
        self._size = block_size
        self._num_blocks = -(-length // block_size)

    def _compute(self, epoch: int) -> Permutation:
        return Permutation(self._num_blocks, _key(self._seed, epoch, _PERMUTATION))

    def at(self, epoch: int, positions: Indices) -> Indices:
        """Return the dataset indices at these positions."""
        permutation = self._of(epoch)
        # The dataset's last block may be short; the blocks that follow it in the order begin earlier by the difference.
        missing = self._num_blocks * self._size - self.length
        place = int(permutation.position_of(np.array([self._num_blocks - 1]))[0])
        follows = positions >= (place + 1) * self._size - missing
        shifted = np.where(follows, positions + missing, positions)
        indices: Indices = permutation.at(shifted // self._size) * self._size + shifted % self._size
        return indices


class AsTorch(_Cached[Indices]):
    """The order of torch's ``DistributedSampler``, and of a ``RandomSampler`` whose generator had that seed.

    Args:
        length: samples.
        seed: torch's: the generator of an epoch is seeded with ``seed + epoch``.

    Memory: 8 bytes a sample.
    """

    once = True
    name = "torch"

    def __init__(self, length: int, seed: int) -> None:
        self.length = length
        self._seed = seed

    def _compute(self, epoch: int) -> Indices:
        generator = torch.Generator()
        generator.manual_seed(self._seed + epoch)
        order: Indices = torch.randperm(self.length, generator=generator, device="cpu").numpy()
        return order

    def at(self, epoch: int, positions: Indices) -> Indices:
        """Return the dataset indices at these positions."""
        return self._of(epoch)[positions]


class Weighted:
    """Draws with replacement, by weight; each draw depends only on its position.

    Args:
        weights: one for each sample of the dataset; not negative, finite, not all 0.
        num_draws: number of positions of an epoch.
        seed: any integer that fits 128 bits, signed.

    Raises:
        ConfigError: the weights are not such numbers.

    Memory: 8 bytes a sample.
    """

    once = False

    def __init__(self, weights: Sequence[float] | torch.Tensor | npt.ArrayLike, num_draws: int, seed: int) -> None:
        values = _float64("weights", weights)
        if values.ndim != 1 or not np.all(np.isfinite(values)) or np.any(values < 0) or not np.any(values > 0):
            raise ConfigError(
                "weights must be one number for each sample, finite, not negative and not all 0, got "
                f"shape {values.shape}, minimum {values.min(initial=np.inf)}, sum {values.sum()}"
            )
        self.length = num_draws
        self.name = f"weighted {_digest(values)}"
        self._ends = np.cumsum(values)
        self._last = int(np.flatnonzero(values)[-1])
        self._seed = seed

    def at(self, epoch: int, positions: Indices) -> Indices:
        """Return the dataset indices at these positions."""
        drawn = sample_units(_key(self._seed, epoch, _DRAWS), positions, 0, 1)[:, 0] * self._ends[-1]
        # A draw that is rounded up to the end must not select a weight of 0 there.
        indices: Indices = np.minimum(np.searchsorted(self._ends, drawn, side="right"), self._last).astype(np.int64)
        return indices

    def possible(self) -> Indices:
        """Return the indices that can be drawn: those whose weight is not 0."""
        indices: Indices = np.flatnonzero(np.diff(self._ends, prepend=0.0)).astype(np.int64)
        return indices


class Buckets(_Cached[Indices]):
    """Batches of samples of similar length, in random order, every sample once.

    The samples, in the order of :class:`Keyed` (or the dataset's own), are sorted by length within windows of many
    batches and cut into batches, which are shuffled within their window. The rows of a batch are shuffled too, so that
    no rank always gets the longest. The samples at the end that do not fill a batch are not sorted, so that
    ``tail="drop"`` does not always drop the longest.

    Args:
        lengths: one for each sample of the dataset.
        seed: any integer that fits 128 bits, signed.
        batch_size: samples of the global batch.
        window: number of batches that are sorted together: with more, lengths are more similar; with fewer, the order
            is more random.
        shuffle: False: the dataset's order, only sorted within the windows.

    Memory: 8 bytes a sample, and a window.
    """

    once = True

    def __init__(
        self,
        lengths: Sequence[float] | torch.Tensor | npt.ArrayLike,
        seed: int,
        *,
        batch_size: int,
        window: int,
        shuffle: bool,
    ) -> None:
        self._lengths = _float64("lengths", lengths)
        if self._lengths.ndim != 1:
            raise ConfigError(f"lengths must be one number for each sample, got shape {self._lengths.shape}")
        self.length = len(self._lengths)
        self.name = f"buckets {batch_size} {window} {_digest(self._lengths)}"
        self._base: Order = Keyed(self.length, seed) if shuffle else Sequential(self.length)
        self._seed, self._batch_size, self._shuffle = seed, batch_size, shuffle
        self._window_size = batch_size * window
        self._full = self.length // batch_size * batch_size

    def at(self, epoch: int, positions: Indices) -> Indices:
        """Return the dataset indices at these positions."""
        indices = self._base.at(epoch, positions).copy()
        in_full_batch = positions < self._full
        windows = positions // self._window_size
        for window in np.unique(windows[in_full_batch]).tolist():
            inside = in_full_batch & (windows == window)
            indices[inside] = self._of((epoch, window))[positions[inside] - window * self._window_size]
        return indices

    def _compute(self, key: tuple[int, int]) -> Indices:
        epoch, window = key
        positions = np.arange(window * self._window_size, min((window + 1) * self._window_size, self._full))
        indices = self._base.at(epoch, positions)
        indices = indices[np.argsort(self._lengths[indices], kind="stable")].reshape(-1, self._batch_size)
        if self._shuffle:
            batches = positions[:: self._batch_size] // self._batch_size
            indices = indices[_argsort_of_words(_key(self._seed, epoch, _BATCHES), batches)]
        rows = _argsort_of_words(_key(self._seed, epoch, _ROWS), positions, indices.shape)
        return np.take_along_axis(indices, rows, axis=1).ravel()


class Permutation:
    """A keyed bijection of 0..length-1.

    A Feistel network over the next power of two, repeated until the value is below ``length`` (cycle walking: Black and
    Rogaway, "Ciphers with arbitrary finite domains", 2002). The values depend only on the key, so they are the same on
    every machine and for every version of NumPy.

    Args:
        length: number of elements; 1 to 2**62.
        key: any bytes.

    Cost: 10 to 36 ns an index with the native library, a third of that above 65,536 indices; without it 25 to 65 ns in
    large arrays, 0.05 ms for a single one.
    """

    def __init__(self, length: int, key: bytes) -> None:
        if not 1 <= length <= 1 << 62:
            raise ValueError(f"a permutation needs 1 to 2**62 elements, got {length}")
        self.length = length
        bits = max(2, (length - 1).bit_length())
        self._bits = bits // 2, bits - bits // 2
        self._low_bits = np.uint64(bits // 2)
        self._low = np.uint64((1 << (bits // 2)) - 1)
        self._high = np.uint64((1 << (bits - bits // 2)) - 1)
        # Narrow halves mix slowly: of five elements, eight rounds favour some orders by a quarter, sixteen do not.
        rounds = 24 if bits <= 16 else 8
        words = hashlib.shake_256(key).digest(8 * rounds)
        self._round_keys = np.frombuffer(words, dtype="<u8").astype(np.uint64)

    def at(self, positions: Indices) -> Indices:
        """Return the values at these positions (int64, any shape, all in 0..length-1).

        Raises:
            ValueError: a position is outside.
        """
        return self._permuted(positions, backwards=False)

    def position_of(self, values: Indices) -> Indices:
        """Return the positions of these values: the inverse of :meth:`at`."""
        return self._permuted(values, backwards=True)

    def _permuted(self, start: Indices, *, backwards: bool, level: int = len(native.LEVELS) - 1) -> Indices:
        if start.size and not 0 <= start.min() <= start.max() < self.length:  # which would be walked for ever
            raise ValueError(
                f"a permutation of {self.length} takes 0 to {self.length - 1}, got {start.min()} to {start.max()}"
            )
        permute = _native()
        if permute is None:
            return self.by_numpy(start, backwards=backwards)
        values = np.array(start, dtype=np.int64, order="C")
        network = *self._bits, self._round_keys.ctypes.data, len(self._round_keys)
        permute(values.ctypes.data, values.size, self.length, *network, backwards, level)
        return values

    def by_numpy(self, start: Indices, *, backwards: bool) -> Indices:
        """Compute :meth:`at`, or with ``backwards`` :meth:`position_of`, by NumPy: the reference."""
        rounds = range(len(self._round_keys))
        rounds = rounds[::-1] if backwards else rounds
        length = np.uint64(self.length)
        values = self._apply(start.astype(np.uint64).ravel(), rounds)
        outside = np.flatnonzero(values >= length)
        while outside.size:
            again = self._apply(values[outside], rounds)
            values[outside] = again
            outside = outside[again >= length]
        return values.astype(np.int64).reshape(start.shape)

    def _apply(self, words: _Words, rounds: range) -> _Words:
        low, high = words & self._low, words >> self._low_bits
        for i in rounds:
            # A hash of one half changes the other, alternately. The inverse is the same rounds backwards.
            if i % 2:
                low ^= _mixed(high, self._round_keys[i]) & self._low
            else:
                high ^= _mixed(low, self._round_keys[i]) & self._high
        high <<= self._low_bits
        high |= low
        return high


@functools.cache
def _native() -> Any:
    if not native.available():
        return None
    number, pointer = ctypes.c_int64, ctypes.c_void_p
    halves, flags = [ctypes.c_int] * 2, [ctypes.c_int] * 3
    return native.function("fastload_permute", None, pointer, number, ctypes.c_uint64, *halves, pointer, *flags)


# Odd numbers that spread bits upwards: 2**64 divided by the golden ratio, and a random one.
_FIRST_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SECOND_MULTIPLIER = np.uint64(0xA24BAED4963EE407)
_HALF = np.uint64(32)


def _mixed(words: _Words, key: np.uint64) -> _Words:
    """Hash words; the lower 32 bits of the result depend on all bits of word and key."""
    mixed = words ^ key
    mixed *= _FIRST_MULTIPLIER
    mixed ^= mixed >> _HALF
    mixed *= _SECOND_MULTIPLIER
    mixed >>= _HALF
    return mixed


def _argsort_of_words(key: bytes, ids: Indices, shape: tuple[int, ...] | None = None) -> Indices:
    """Sort random words of these ids, along the last axis of ``shape``; return the indices, as ``np.argsort``."""
    words = sample_words(key, ids, 0, 2).astype(np.uint64)
    values = words[:, 0] << _HALF | words[:, 1]
    return np.argsort(values.reshape(shape or (-1,)), axis=-1, kind="stable")


def _key(seed: int, epoch: int, purpose: int) -> bytes:
    return Keys(seed, epoch, ORDER).key(purpose)


def _float64(name: str, values: Any) -> npt.NDArray[np.float64]:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().double()
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name} must be one number for each sample, got {type(values).__name__}: {error}") from error


def _digest(values: npt.NDArray[Any]) -> str:
    return hashlib.blake2b(np.ascontiguousarray(values).tobytes(), digest_size=4).hexdigest()
