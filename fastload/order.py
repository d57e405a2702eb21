"""The order of an epoch, as a function of position: no list, no memory, any part of it at once.

In: positions in an epoch's global order. Out: the dataset indices that stand there.

The permutation is a Feistel network over the smallest power of two that holds all indices, walked until it falls
inside (cycle-walking: Black and Rogaway, "Ciphers with arbitrary finite domains", 2002). Its values depend on
nothing but 128 bits of key, so that they are the same on every machine and for every version of NumPy.

Pure: arrays of integers in and out.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from .seeding import ORDER, Keys

Indices: TypeAlias = npt.NDArray[np.int64]
_Words: TypeAlias = npt.NDArray[np.uint64]

_ROUNDS = 8
_MULTIPLIERS = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93))
"""Odd constants that spread every bit of a word upwards: the golden ratio's, and one of Degski's 64-bit mixers."""

# What has to be told apart within the ORDER domain. The numbers are part of the key: never renumber.
_SAMPLES, _DRAWS, _BATCHES, _ROWS = range(4)


class Permutation:
    """A keyed bijection of 0..length-1.

    Args:
        length: how many there are; at least 1, at most 2**62.
        key: 16 bytes.

    Cost: 25 to 50 ns an index in large arrays, 0.2 ms for a single one.
    """

    def __init__(self, length: int, key: bytes) -> None:
        if not 1 <= length <= 1 << 62:
            raise ValueError(f"a permutation needs 1 to 2**62 elements, got {length}")
        self.length = length
        bits = max(2, (length - 1).bit_length())
        self._low_bits = np.uint64(bits // 2)
        self._low = np.uint64((1 << (bits // 2)) - 1)
        self._high = np.uint64((1 << (bits - bits // 2)) - 1)
        schedule = Keys(int.from_bytes(key, "little", signed=True), 0, ORDER)
        self._round_keys = [np.uint64(int.from_bytes(schedule.key(i)[:8], "little")) for i in range(_ROUNDS)]

    def at(self, positions: Indices) -> Indices:
        """Return what stands at these positions (int64, any shape, all in 0..length-1)."""
        return self._walk(positions, range(_ROUNDS))

    def position_of(self, values: Indices) -> Indices:
        """Return where these values stand: the inverse of :meth:`at`."""
        return self._walk(values, range(_ROUNDS - 1, -1, -1))

    def _walk(self, start: Indices, rounds: range) -> Indices:
        words = start.astype(np.uint64).ravel()
        found = self._pass(words, rounds)
        outside = np.flatnonzero(found >= np.uint64(self.length))
        while outside.size:
            again = self._pass(found[outside], rounds)
            found[outside] = again
            outside = outside[again >= np.uint64(self.length)]
        return found.astype(np.int64).reshape(start.shape)

    def _pass(self, words: _Words, rounds: range) -> _Words:
        low, high = words & self._low, words >> self._low_bits
        for i in rounds:
            # Alternately each half is changed by a hash of the other, so either direction is the same steps.
            if i % 2:
                low = low ^ (_mixed(high, self._round_keys[i]) & self._low)
            else:
                high = high ^ (_mixed(low, self._round_keys[i]) & self._high)
        return high << self._low_bits | low


def _mixed(words: _Words, key: np.uint64) -> _Words:
    mixed = (words ^ key) * _MULTIPLIERS[0]
    mixed ^= mixed >> np.uint64(32)
    mixed *= _MULTIPLIERS[1]
    return mixed >> np.uint64(32)
