"""Random words as a function of (key, id, purpose): Philox4x32-10, vectorised.

The words of a sample are the same in any batch and on any machine. For the parameters of batched transforms and for
draws by position: one call serves a batch, and a generator for each sample would cost 6 µs each.

The algorithm is that of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011). cuRAND and Triton have it
too, so a device can draw the same words. The NumPy implementation is the reference; the native library, if available,
draws the same words. Pure.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from .. import native

Words: TypeAlias = npt.NDArray[np.uint32]

_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


def philox4x32(counters: npt.NDArray[np.integer], key: tuple[int, int]) -> Words:
    """Return four random words, uint32, for each counter: [..., 4], of values below 2**32, like the key's two words.

    Cost: 0.1 ms for 1,000 counters.
    """
    a, b, c, d = np.moveaxis(np.asarray(counters).astype(np.uint64), -1, 0)
    for number in range(10):
        first, second = ((word + number * step) & 0xFFFFFFFF for word, step in zip(key, _KEY_STEPS, strict=True))
        low_product, high_product = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a = (high_product >> _SHIFT) ^ b ^ np.uint64(first)
        c = (low_product >> _SHIFT) ^ d ^ np.uint64(second)
        b, d = high_product & _LOW, low_product & _LOW
    return np.stack([a, b, c, d], axis=-1).astype(np.uint32)


class SampleWords(NamedTuple):
    """Random words for each of some samples."""

    key: bytes
    """At least 8 bytes: the key of an epoch and a domain."""
    ids: npt.NDArray[np.int64]
    """[N]: the samples."""
    purpose: int
    """Keeps the draws of different transforms apart, so that adding one does not shift the others; 0 to 2**32 - 1."""
    first_block: int = 0
    """Number of blocks of four words to skip; a sample has 4096 blocks."""
    repeats: npt.NDArray[np.integer] | None = None
    """[N], below 2**20: which occurrence of the sample this is, or which image of it."""

    def words(self, count: int) -> Words:
        """Return [N, count], uint32; ``count`` is at least 1. The first words do not depend on it.

        Raises:
            ValueError: more blocks than a sample has.

        Cost: 5 µs a call and 4 ns a block with the native library; without it 70 µs and 40 to 100 ns.
        """
        self._check_blocks(count)
        if _native() is None:
            return self.reference(count)
        words = np.empty((len(self.ids), count), dtype=np.uint32)
        self._draw_natively(words)
        return words

    def units(self, count: int) -> npt.NDArray[np.float64]:
        """Return uniform numbers in [0, 1), [N, count], float64: :func:`to_unit` of ``2 * count`` words.

        Errors: those of :meth:`words`.
        """
        self._check_blocks(2 * count)
        if _native() is None:
            words = self.reference(2 * count)
            return to_unit(words[:, 0::2], words[:, 1::2])
        units = np.empty((len(self.ids), count), dtype=np.float64)
        self._draw_natively(units)
        return units

    def reference(self, count: int) -> Words:
        """Return the same as :meth:`words`, computed by NumPy."""
        num_blocks = -(-count // 4)
        counters = np.empty((len(self.ids), num_blocks, 4), dtype=np.uint64)
        counters[..., 0] = np.arange(self.first_block, self.first_block + num_blocks, dtype=np.uint64)
        if self.repeats is not None:
            counters[..., 0] |= (self.repeats.astype(np.uint64)[:, None] & np.uint64((1 << 20) - 1)) << np.uint64(12)
        counters[..., 1] = self.purpose
        wide = self.ids.astype(np.uint64)[:, None]
        counters[..., 2] = wide & _LOW
        counters[..., 3] = wide >> _SHIFT
        words = philox4x32(counters, _words_of(self.key))
        return words.reshape(len(self.ids), 4 * num_blocks)[:, :count]

    def _check_blocks(self, num_words: int) -> None:
        if self.first_block + -(-num_words // 4) > 1 << 12:
            raise ValueError(
                f"a sample has 4096 blocks of words for each purpose, got {num_words} words from {self.first_block=}"
            )

    def _draw_natively(self, out: npt.NDArray[Any]) -> None:
        """Fill [N, words] of uint32, or [N, units] of float64."""
        ids = np.ascontiguousarray(self.ids, dtype=np.int64)
        repeats = None
        if self.repeats is not None:
            repeats = np.ascontiguousarray(np.broadcast_to(self.repeats, ids.shape), dtype=np.int64)
        is_unit = out.dtype == np.float64
        num_words = out.shape[1] * (2 if is_unit else 1)
        pointers = (None, out.ctypes.data) if is_unit else (out.ctypes.data, None)
        arguments = len(ids), *_words_of(self.key), self.purpose, self.first_block, num_words, *pointers
        _native()(ids.ctypes.data, None if repeats is None else repeats.ctypes.data, *arguments)


def to_unit(high: Words, low: Words) -> npt.NDArray[np.float64]:
    """Return uniform numbers in [0, 1) with all 53 bits of a float64, from two words each."""
    bits = (high.astype(np.uint64) >> np.uint64(5) << np.uint64(26)) | (low.astype(np.uint64) >> np.uint64(6))
    return bits.astype(np.float64) * 2.0**-53


def _words_of(key: bytes) -> tuple[int, int]:
    return int.from_bytes(key[:4], "little"), int.from_bytes(key[4:8], "little")


@functools.cache
def _native() -> Any:
    return native.library.philox if native.available() else None
