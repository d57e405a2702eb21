"""JPEG files written bit by bit, with any tables and codes; and whether they are decoded as by Pillow."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping

import numpy as np
from jpeg_files import on_each_level
from kit.cuts import by_pillow, cut_of
from PIL import Image

from fastload.native import jpeg
from fastload.native.rows import MOST_SIDE, Status

EOI = b"\xff\xd9"
GREY = ((1, 0x11, 0),)
ZERO_RUN, END = 0xF0, 0
ONES = bytes([1] * 64)
DONE, DAMAGED = {Status.DONE}, {Status.DAMAGED}


def segment(marker: int, body: bytes) -> bytes:
    """Return a marker segment."""
    return bytes((0xFF, marker)) + (len(body) + 2).to_bytes(2, "big") + body


def bits_of(number: int) -> str:
    """Return the bits that stand behind the code of a number's size."""
    size = abs(number).bit_length()
    return format(number if number >= 0 else number + (1 << size) - 1, f"0{size}b") if size else ""


class Codes:
    """A Huffman table: from each symbol to the length of its code."""

    def __init__(self, lengths: Mapping[int, int]) -> None:
        self.symbols = sorted(lengths, key=lengths.__getitem__)
        self.counts = [list(lengths.values()).count(length) for length in range(1, 17)]
        self.of: dict[int, str] = {}
        code = length = 0
        for symbol in self.symbols:
            code <<= lengths[symbol] - length
            length = lengths[symbol]
            self.of[symbol] = format(code, f"0{length}b")
            code += 1

    def body(self, place: int) -> bytes:
        """Return what a DHT segment says of it; places of AC tables begin at 16."""
        return bytes((place, *self.counts, *self.symbols))

    def value(self, number: int, run: int = 0) -> str:
        """Return the bits of a number behind a run of zeros."""
        return self.of[run << 4 | abs(number).bit_length()] + bits_of(number)


DC = Codes(dict.fromkeys(range(16), 5))
AC = Codes({run << 4 | size: 9 for run in range(16) for size in range(11)})


def coded(bits: str, spare: bytes = b"") -> bytes:
    """Return bits as coded data: filled up with ones, and with zeros stuffed."""
    bits += "1" * (-len(bits) % 8)
    return (int("1" + bits, 2).to_bytes(len(bits) // 8 + 1, "big")[1:] + spare).replace(b"\xff", b"\xff\x00")


def frame(width: int, height: int, components: Iterable[tuple[int, int, int]] = GREY, marker: int = 0xC0) -> bytes:
    """Return a frame header; components: number, sampling factors and quantisation table of each."""
    body = b"".join(map(bytes, components))
    sides = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    return segment(marker, b"\x08" + sides + bytes([len(body) // 3]) + body)


def scan(components: Iterable[tuple[int, int, int]] = GREY) -> bytes:
    """Return a scan header; all use the first tables."""
    body = b"".join(bytes((component[0], 0)) for component in components)
    return segment(0xDA, bytes([len(body) // 2]) + body + b"\x00\x3f\x00")


def grey(width: int, data: bytes, dc: Codes = DC, ac: Codes = AC, before: bytes = b"", quant: bytes = ONES) -> bytes:
    """Return a grey file, 8 pixels high; ``data``: from coded data to the end."""
    tables = segment(0xDB, b"\x00" + quant) + segment(0xC4, dc.body(0) + ac.body(16))
    return b"\xff\xd8" + tables + before + frame(width, 8) + scan() + data


def may_wait(data: bytes) -> bool:
    """Return whether the decoding of a file may be put off."""
    return jpeg.can_wait(data).status is Status.DONE


def outcomes(data: bytes) -> set[Status]:
    """Return how the decodings end of all of a file, and of parts that begin at other blocks, on each instruction set.

    What is decoded must be Pillow's; and the file must not fail there if its decoding may be put off.
    """
    found = set()
    size = jpeg.read_size(data)
    sides = min(size.width, MOST_SIDE), min(size.height, MOST_SIDE)
    boxes = [(0, left, sides[1], sides[0] - left) for left in range(0, sides[0], max(8, sides[0] // 16))]
    for box in boxes if size.status is Status.DONE else ():
        pixels = on_each_level(data, cut_of(box))
        found.add(pixels if isinstance(pixels, Status) else Status.DONE)
        if not isinstance(pixels, Status):
            np.testing.assert_array_equal(pixels, by_pillow(data, cut_of(box)), f"{box}")
    if may_wait(data):
        Image.open(io.BytesIO(data)).load()
    return found or {size.status}
