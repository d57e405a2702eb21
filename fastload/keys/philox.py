"""Random words as a function of (key, id, purpose): Philox4x32-10, vectorised.

In: the key of an epoch and the ids of samples. Out: words for each sample, the same in any batch and on any machine.
For the parameters of batched transforms and for draws by position. One call serves a batch; a generator for each sample
would cost 6 µs each.

The algorithm is that of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011). cuRAND and Triton have it
too, so a device can draw the same words. The NumPy implementation is the reference; the native library, if available,
draws the same words. Pure.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .. import native

Words: TypeAlias = npt.NDArray[np.uint32]

_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)

# The native level: the highest that the processor has.
_BEST = len(native.LEVELS) - 1


def philox4x32(counters: npt.NDArray[np.integer], key: tuple[int, int]) -> Words:
    """Return four random words for each counter.

    Args:
        counters: [..., 4], of values below 2**32.
        key: two words below 2**32.

    Returns:
        [..., 4], uint32.

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


def sample_words(
    key: bytes,
    ids: npt.NDArray[np.int64],
    purpose: int,
    num_words: int,
    *,
    first_block: int = 0,
    repeats: npt.NDArray[np.integer] | None = None,
) -> Words:
    """Return random words for each sample.

    Args:
        key: at least 8 bytes: the key of an epoch and a domain.
        ids: [N], int64: the samples.
        purpose: keeps the draws of different transforms apart, so that adding one does not shift the others; 0 to
            2**32 - 1.
        num_words: for each sample; at least 1.
        first_block: number of blocks of four words to skip; a sample has 4096 blocks.
        repeats: [N], below 2**20: which occurrence of the sample this is, or which image of it.

    Returns:
        [N, num_words], uint32. The first words do not depend on ``num_words``.

    Raises:
        ValueError: more blocks than a sample has.

    Cost: 5 µs a call and 4 ns a block with the native library; without it 70 µs and 40 to 100 ns.
    """
    _check_blocks(first_block, num_words)
    if _native() is None:
        return reference_words(key, ids, purpose, num_words, first_block=first_block, repeats=repeats)
    words = np.empty((len(ids), num_words), dtype=np.uint32)
    _draw_natively(words, key, ids, purpose, first_block, repeats)
    return words


def sample_units(
    key: bytes,
    ids: npt.NDArray[np.int64],
    purpose: int,
    num_units: int,
    *,
    first_block: int = 0,
    repeats: npt.NDArray[np.integer] | None = None,
) -> npt.NDArray[np.float64]:
    """Return uniform numbers in [0, 1) for each sample: :func:`to_unit` of ``2 * num_units`` words.

    Args, errors: those of :func:`sample_words`.

    Returns:
        [N, num_units], float64. The first numbers do not depend on ``num_units``.
    """
    _check_blocks(first_block, 2 * num_units)
    if _native() is None:
        words = reference_words(key, ids, purpose, 2 * num_units, first_block=first_block, repeats=repeats)
        return to_unit(words[:, 0::2], words[:, 1::2])
    units = np.empty((len(ids), num_units), dtype=np.float64)
    _draw_natively(units, key, ids, purpose, first_block, repeats)
    return units


def reference_words(
    key: bytes,
    ids: npt.NDArray[np.int64],
    purpose: int,
    num_words: int,
    *,
    first_block: int = 0,
    repeats: npt.NDArray[np.integer] | None = None,
) -> Words:
    """Return the same as :func:`sample_words`, computed by NumPy."""
    num_blocks = -(-num_words // 4)
    counters = np.empty((len(ids), num_blocks, 4), dtype=np.uint64)
    counters[..., 0] = np.arange(first_block, first_block + num_blocks, dtype=np.uint64)
    if repeats is not None:
        counters[..., 0] |= (repeats.astype(np.uint64)[:, None] & np.uint64((1 << 20) - 1)) << np.uint64(12)
    counters[..., 1] = purpose
    wide = ids.astype(np.uint64)[:, None]
    counters[..., 2] = wide & _LOW
    counters[..., 3] = wide >> _SHIFT
    words = philox4x32(counters, _words_of(key))
    return words.reshape(len(ids), 4 * num_blocks)[:, :num_words]


def to_unit(high: Words, low: Words) -> npt.NDArray[np.float64]:
    """Return uniform numbers in [0, 1) with all 53 bits of a float64, from two words each."""
    bits = (high.astype(np.uint64) >> np.uint64(5) << np.uint64(26)) | (low.astype(np.uint64) >> np.uint64(6))
    return bits.astype(np.float64) * 2.0**-53


def _check_blocks(first_block: int, num_words: int) -> None:
    if first_block + -(-num_words // 4) > 1 << 12:
        raise ValueError(f"a sample has 4096 blocks of words for each purpose, got {first_block=} and {num_words=}")


def _words_of(key: bytes) -> tuple[int, int]:
    return int.from_bytes(key[:4], "little"), int.from_bytes(key[4:8], "little")


@functools.cache
def _native() -> Any:
    if not native.available():
        return None
    pointer, word = ctypes.c_void_p, ctypes.c_uint32
    arguments = pointer, pointer, ctypes.c_int64, word, word, word, word, ctypes.c_int64, pointer, pointer, ctypes.c_int
    return native.function("fastload_philox", None, *arguments)


def _draw_natively(
    out: npt.NDArray[Any],
    key: bytes,
    ids: npt.NDArray[np.int64],
    purpose: int,
    first_block: int,
    repeats: npt.NDArray[np.integer] | None,
) -> None:
    """Fill [N, words] of uint32, or [N, units] of float64."""
    ids = np.ascontiguousarray(ids, dtype=np.int64)
    occurrences = None
    if repeats is not None:
        repeats = np.ascontiguousarray(np.broadcast_to(repeats, ids.shape), dtype=np.int64)
        occurrences = repeats.ctypes.data
    is_unit = out.dtype == np.float64
    num_words = out.shape[1] * (2 if is_unit else 1)
    pointers = (None, out.ctypes.data) if is_unit else (out.ctypes.data, None)
    arguments = len(ids), *_words_of(key), purpose, first_block, num_words, *pointers, _BEST
    _native()(ids.ctypes.data, occurrences, *arguments)
