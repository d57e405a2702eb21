"""A keyed permutation by NumPy: the reference, and the way where the native library is missing. Pure."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Indices: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
_Words: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]

# Odd numbers that spread bits upwards: 2**64 divided by the golden ratio, and a random one.
_FIRST_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SECOND_MULTIPLIER = np.uint64(0xA24BAED4963EE407)
_HALF = np.uint64(32)


def by_numpy(
    start: Indices, length: int, bits: tuple[int, int], round_keys: _Words, *, backwards: bool = False
) -> Indices:
    """Return the values at these positions, with ``backwards`` the positions of these values.

    ``start``: int64, any shape, all in 0..length-1. ``bits``: of the lower and the higher half of a word.
    """
    rounds = range(len(round_keys))[:: -1 if backwards else 1]
    end = np.uint64(length)
    values = _applied(bits, round_keys, start.astype(np.uint64).ravel(), rounds)
    outside = np.flatnonzero(values >= end)
    while outside.size:
        again = _applied(bits, round_keys, values[outside], rounds)
        values[outside] = again
        outside = outside[again >= end]
    return values.astype(np.int64).reshape(start.shape)


def _applied(bits: tuple[int, int], round_keys: _Words, words: _Words, rounds: range) -> _Words:
    low_bits, high_bits = map(np.uint64, bits)
    low_mask, high_mask = ((np.uint64(1) << bits) - np.uint64(1) for bits in (low_bits, high_bits))
    low, high = words & low_mask, words >> low_bits
    for i in rounds:
        # A hash of one half changes the other, alternately. The inverse is the same rounds backwards.
        if i % 2:
            low ^= _mixed(high, round_keys[i]) & low_mask
        else:
            high ^= _mixed(low, round_keys[i]) & high_mask
    high <<= low_bits
    high |= low
    return high


def _mixed(words: _Words, key: np.uint64) -> _Words:
    """Hash words; the lower 32 bits of the result depend on all bits of word and key."""
    mixed = words ^ key
    mixed *= _FIRST_MULTIPLIER
    mixed ^= mixed >> _HALF
    mixed *= _SECOND_MULTIPLIER
    mixed >>= _HALF
    return mixed
