"""JPEG files written bit by bit, with any tables, codes and scans; and whether they are decoded as by Pillow.

No encoder that can be had writes such files.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

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


def coded(bits: str) -> bytes:
    """Return bits as coded data: filled up with ones, and with zeros stuffed."""
    bits += "1" * (-len(bits) % 8)
    return int("1" + bits, 2).to_bytes(len(bits) // 8 + 1, "big")[1:].replace(b"\xff", b"\xff\x00")


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


# -- files of any scans, from coefficients ----------------------------------------------------------------------------


class Scan(NamedTuple):
    """What one scan sends: components, coefficients in zigzag order, and bits."""

    components: tuple[int, ...]
    first: int = 0
    last: int = 63
    high: int = 0
    low: int = 0


class Drawn(NamedTuple):
    """An image of any coefficients."""

    width: int
    height: int
    samplings: tuple[tuple[int, int], ...]
    blocks: tuple[np.ndarray, ...]
    """Of each component [rows, columns, 64], whole MCUs, in zigzag order."""

    def sides(self, component: int) -> tuple[int, int]:
        """Return the rows and columns of blocks that a scan of this component alone has."""
        h, v = self.samplings[component]
        most = self.samplings[0]
        return -(-self.height * v // (8 * most[1])), -(-self.width * h // (8 * most[0]))


def drawn(
    rng: np.random.Generator,
    width: int,
    height: int,
    sampling: tuple[int, int] | None = None,
    *,
    most: int = 40,
    share: float = 0.2,
) -> Drawn:
    """Return an image: grey without a sampling. ``most``: the largest level but of DC; ``share`` of them are not 0."""
    samplings = ((1, 1),) if sampling is None else (sampling, (1, 1), (1, 1))
    mcus = -(-height // (8 * samplings[0][1])), -(-width // (8 * samplings[0][0]))
    blocks = []
    for h, v in samplings:
        shape = mcus[0] * v, mcus[1] * h, 64
        levels = np.rint(rng.laplace(0, most / 8, shape)).clip(-most, most).astype(np.int64)
        levels[rng.random(shape) > share * np.linspace(2, 0, 64)] = 0
        levels[..., 0] = rng.integers(-500, 500, shape[:2])
        blocks.append(levels)
    return Drawn(width, height, samplings, tuple(blocks))


class _Writer:
    """The symbols of a scan, with the bits behind each; None: a restart."""

    def __init__(self, most_run: int) -> None:
        self.out: list[tuple[str, int, str] | None] = []
        self.most_run = most_run
        self.run, self.waiting = 0, ""

    def put(self, table: str, symbol: int, bits: str = "") -> None:
        self.out.append((table, symbol, bits))

    def put_value(self, table: str, run: int, value: int) -> None:
        self.put(table, run << 4 | abs(value).bit_length(), bits_of(value))

    def end_blocks(self) -> None:
        """Write the ends that were collected, and the bits of the blocks that they end."""
        if self.run:
            size = self.run.bit_length() - 1
            extra = format(self.run - (1 << size), f"0{size}b") if size else ""
            self.put("ac", size << 4, extra + self.waiting)
            self.run, self.waiting = 0, ""

    def end_block(self, bits: str = "") -> None:
        self.run += 1
        self.waiting += bits
        if self.run >= self.most_run:
            self.end_blocks()

    def first(self, levels: list[int]) -> None:
        run = 0
        for level in levels:
            if not level:
                run += 1
                continue
            self.end_blocks()
            for _ in range(run // 16):
                self.put("ac", ZERO_RUN)
            self.put_value("ac", run % 16, level)
            run = 0
        if run:
            self.end_block()

    def refine(self, levels: list[int]) -> None:
        """Levels without the bits below: those of 1 and -1 are new."""
        last = max((k for k, level in enumerate(levels) if abs(level) == 1), default=-1)
        run, bits = 0, ""
        for k, level in enumerate(levels):
            if not level:
                run += 1
                continue
            while run > 15 and k <= last:
                self.end_blocks()
                self.put("ac", ZERO_RUN, bits)
                run, bits = run - 16, ""
            if abs(level) > 1:
                bits += str(abs(level) & 1)
                continue
            self.end_blocks()
            self.put("ac", run << 4 | 1, ("1" if level > 0 else "0") + bits)
            run, bits = 0, ""
        if run or bits:
            self.end_block(bits)


def _units(image: Drawn, scan: Scan) -> Iterator[list[tuple[int, list[int]]]]:
    """Give the blocks of each MCU: component and levels."""
    if len(scan.components) == 1:
        c = scan.components[0]
        rows, columns = image.sides(c)
        for row in range(rows):
            for column in range(columns):
                yield [(c, image.blocks[c][row, column].tolist())]
        return
    mcus = image.blocks[0].shape[0] // image.samplings[0][1], image.blocks[0].shape[1] // image.samplings[0][0]
    for y in range(mcus[0]):
        for x in range(mcus[1]):
            yield [
                (c, image.blocks[c][y * v + i, x * h + k].tolist())
                for c in scan.components
                for h, v in [image.samplings[c]]
                for i in range(v)
                for k in range(h)
            ]


def _without(level: int, bits: int) -> int:
    return abs(level) >> bits if level >= 0 else -(abs(level) >> bits)


def _symbols(image: Drawn, scan: Scan, restart: int, most_run: int) -> list[tuple[str, int, str] | None]:
    writer = _Writer(1 if scan.first == 0 else most_run)
    previous = [0, 0, 0]
    for number, unit in enumerate(_units(image, scan)):
        if restart and number and number % restart == 0:
            writer.end_blocks()
            writer.out.append(None)
            previous = [0, 0, 0]
        for c, levels in unit:
            if scan.first == 0 and scan.high:
                writer.put("", 0, str(levels[0] >> scan.low & 1))
            elif scan.first == 0:
                writer.put_value(f"dc{c}", 0, (levels[0] >> scan.low) - previous[c])
                previous[c] = levels[0] >> scan.low
            part = levels[max(scan.first, 1) : scan.last + 1]
            if any(part):
                (writer.refine if scan.high else writer.first)([_without(level, scan.low) for level in part])
            elif part:
                writer.end_block()
    writer.end_blocks()
    return writer.out


def _codes(symbols: Iterable[int]) -> Codes:
    """Return codes of all lengths: the commonest symbol has one bit."""
    common = [symbol for symbol, _ in Counter(symbols).most_common()] or [0]
    flat = 7 + (len(common) - 6).bit_length()
    return Codes({symbol: place + 1 if place < 7 else flat for place, symbol in enumerate(common)})


def scan_of(image: Drawn, scan: Scan, *, restart: int = 0, most_run: int = 0x7FFF) -> bytes:
    """Return a scan, with its tables before it. ``most_run``: blocks whose ends are written by one symbol."""
    symbols = _symbols(image, scan, restart, most_run)
    names = sorted({entry[0] for entry in symbols if entry is not None and entry[0]})
    codes = {name: _codes(entry[1] for entry in symbols if entry is not None and entry[0] == name) for name in names}
    places = {name: 16 if name == "ac" else int(name[2]) for name in names}
    tables = b"".join(segment(0xC4, codes[name].body(places[name])) for name in names)
    pieces, bits, num = b"", [], 0
    for entry in symbols:
        if entry is None:
            pieces += coded("".join(bits)) + bytes((0xFF, 0xD0 | num % 8))
            bits, num = [], num + 1
        else:
            bits.append((codes[entry[0]].of[entry[1]] if entry[0] else "") + entry[2])
    return tables + scan_header(scan) + pieces + coded("".join(bits))


def scan_header(scan: Scan) -> bytes:
    """Return the header of a scan whose component c has the DC table c and the AC table 0."""
    components = b"".join(bytes((c + 1, c << 4)) for c in scan.components)
    body = bytes([len(scan.components)]) + components + bytes((scan.first, scan.last, scan.high << 4 | scan.low))
    return segment(0xDA, body)


def start_of(image: Drawn, *, restart: int = 0, progressive: bool = True) -> bytes:
    """Return what stands before the first scan."""
    components = [(c + 1, h << 4 | v, 0) for c, (h, v) in enumerate(image.samplings)]
    head = b"\xff\xd8" + segment(0xDB, b"\x00" + ONES)
    interval = segment(0xDD, restart.to_bytes(2, "big")) if restart else b""
    return head + frame(image.width, image.height, components, 0xC2 if progressive else 0xC0) + interval


def file_of(image: Drawn, scans: Iterable[Scan], *, restart: int = 0, most_run: int = 0x7FFF) -> bytes:
    """Return a file. Scans of all coefficients make it a sequential one."""
    scans = list(scans)
    progressive = any((scan.first, scan.last) != (0, 63) for scan in scans)
    written = [scan_of(image, scan, restart=restart, most_run=most_run) for scan in scans]
    return start_of(image, restart=restart, progressive=progressive) + b"".join(written) + EOI
