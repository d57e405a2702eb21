"""Deflate streams (RFC 1951) written bit by bit, of any codes, literals and copies."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np


class Bits:
    """A deflate stream, bit by bit."""

    def __init__(self) -> None:
        self.value = self.length = 0

    def number(self, value: int, length: int) -> None:
        """Add a number, its lowest bit first."""
        self.value |= value << self.length
        self.length += length

    def code(self, code: tuple[int, int]) -> None:
        """Add a Huffman code: its bits, the highest first, and how many they are."""
        value, length = code
        for bit in reversed(range(length)):
            self.number(value >> bit & 1, 1)

    def bytes(self) -> bytes:
        """Return all of it, filled up with zeros."""
        return self.value.to_bytes((self.length + 7) // 8, "little")


def codes_of(lengths: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Return the code of each symbol that has one, from their lengths."""
    code, found = 0, {}
    for length in range(1, 16):
        code <<= 1
        for symbol, own in enumerate(lengths):
            if own == length:
                found[symbol] = (code, length)
                code += 1
    return found


ORDER = (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15)


def begin_block(bits: Bits, lengths: Sequence[int], distances: Sequence[int], *, is_final: bool = True) -> None:
    """Add the head of a block with codes of its own: each length by itself, in a code of 5 bits at most."""
    bits.number(is_final | 2 << 1, 3)
    bits.number(len(lengths) - 257, 5)
    bits.number(len(distances) - 1, 5)
    bits.number(15, 4)
    of_lengths = [4] * 13 + [5] * 6
    for symbol in ORDER:
        bits.number(of_lengths[symbol], 3)
    codes = codes_of(of_lengths)
    for length in (*lengths, *distances):
        bits.code(codes[length])


def zlib_stream(deflated: bytes, data: bytes, *, window_bits: int = 15) -> bytes:
    """Return a deflate stream with zlib's head and the checksum of what it stands for."""
    head = (window_bits - 8) << 12 | 0x800
    return (head + -head % 31).to_bytes(2, "big") + deflated + zlib.adler32(data).to_bytes(4, "big")


def number_of(value: int, *, is_distance: bool) -> tuple[int, int, int]:
    """Return the symbol of a length or a distance, its extra bits, and how many they are."""
    if not is_distance and value == 258:
        return 285, 0, 0
    step, base = (2, 1) if is_distance else (4, 3)
    symbol = 0
    while True:
        extra = max(0, symbol // step - 1)
        if value < base + (1 << extra):
            return symbol + (0 if is_distance else 257), value - base, extra
        base += 1 << extra
        symbol += 1


def random_lengths(rng: np.random.Generator, num: int, most: int) -> list[int]:
    """Return lengths of a complete code of so many symbols, of up to ``most`` bits, in any order."""
    if num < 2:
        return [1] * num
    leaves = [1, 1]
    while len(leaves) < num:
        open_ones = [i for i, length in enumerate(leaves) if length < most]
        # The last ones are often the longest: a code of all lengths.
        at = open_ones[-1 if rng.random() < 0.4 else int(rng.integers(len(open_ones)))]
        leaves[at] += 1
        leaves.append(leaves[at])
    rng.shuffle(leaves)
    return leaves


def random_tokens(rng: np.random.Generator, made: bytearray, size: int) -> list[tuple[bool, int, int, int]]:
    """Return literals, lengths and distances that add so many bytes to those made before.

    Of each: whether it is a distance, the symbol, its extra bits, and how many they are.
    """
    tokens, end = [], len(made) + size
    while len(made) < end:
        room = end - len(made)
        if made and room >= 3 and rng.random() < 0.4:
            length = min(room, int(rng.integers(3, 12 if rng.random() < 0.7 else 259)))
            most = min(len(made), 32768)
            distance = int(rng.integers(1, 1 + (most if rng.random() < 0.3 else min(most, 40))))
            tokens.append((False, *number_of(length, is_distance=False)))
            tokens.append((True, *number_of(distance, is_distance=True)))
            for _ in range(length):
                made.append(made[-distance])
        else:
            made.append(int(rng.integers(256 if rng.random() < 0.5 else 8)))
            tokens.append((False, made[-1], 0, 0))
    return tokens


def random_block(bits: Bits, rng: np.random.Generator, made: bytearray, size: int, *, is_final: bool) -> None:
    """Add a block of random codes and tokens that makes so many bytes."""
    tokens = random_tokens(rng, made, size)
    tables = []
    for is_distance, num in ((False, 286), (True, 30)):
        # Some that are not used, too.
        symbols = {symbol for of_distance, symbol, *_ in tokens if of_distance == is_distance}
        symbols |= {int(x) for x in rng.integers(0, num, rng.integers(0, 30))} | (set() if is_distance else {256})
        lengths = [0] * num
        for symbol, length in zip(sorted(symbols), random_lengths(rng, len(symbols), 15), strict=True):
            lengths[symbol] = length
        tables.append(lengths)
    begin_block(bits, *tables, is_final=is_final)
    codes = [codes_of(lengths) for lengths in tables]
    for is_distance, symbol, extra, num in tokens:
        bits.code(codes[is_distance][symbol])
        bits.number(extra, num)
    bits.code(codes[0][256])


def random_stream(rng: np.random.Generator, size: int) -> tuple[bytes, bytes]:
    """Return a zlib stream of blocks of all kinds, and what it stands for."""
    bits, made = Bits(), bytearray()
    while True:
        part = min(int(rng.integers(0, size + 1)), size - len(made))
        is_final = len(made) + part == size and rng.random() < 0.7
        if rng.random() < 0.2:
            more = rng.bytes(part)
            bits.number(int(is_final), 3)
            bits.number(0, -bits.length % 8)
            bits.number(len(more) | (len(more) ^ 0xFFFF) << 16, 32)
            bits.number(int.from_bytes(more, "little"), 8 * len(more))
            made += more
        else:
            random_block(bits, rng, made, part, is_final=is_final)
        if is_final:
            return zlib_stream(bits.bytes(), bytes(made)), bytes(made)
