"""PNG files made for the tests, of any chunks, filters and deflate streams. No file is kept."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Sequence

import numpy as np
from damaged_files import mutants

SIGNATURE = b"\x89PNG\r\n\x1a\n"
SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Of a pixel, by the colour that the file names."""
KINDS = [(1, 0), (2, 0), (4, 0), (8, 0), (8, 2), (16, 2), (1, 3), (2, 3), (4, 3), (8, 3), (8, 4), (16, 4), (8, 6)]
KINDS += [(16, 6)]
"""Bits of a sample and colour of the files that the library decodes."""


def chunk(name: bytes, body: bytes = b"", crc: int | None = None) -> bytes:
    """Return a chunk, with another checksum if one is given."""
    crc = zlib.crc32(name + body) if crc is None else crc
    return len(body).to_bytes(4, "big") + name + body + crc.to_bytes(4, "big")


def chunks_of(data: bytes) -> list[tuple[bytes, bytes]]:
    """Return names and bodies of a good file's chunks."""
    found, at = [], len(SIGNATURE)
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        found.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + size]))
        at += 12 + size
    return found


def header(width: int, height: int, bits: int, color: int, tail: bytes = bytes(3)) -> bytes:
    """Return the first chunk; ``tail``: compression, filter and interlace."""
    return chunk(b"IHDR", width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes((bits, color)) + tail)


def bytes_of_row(width: int, bits: int, color: int) -> int:
    """Return how many there are, without that of the filter."""
    return (width * bits * SAMPLES[color] + 7) // 8


def filtered(rows: np.ndarray, pixel: int, filters: Iterable[int]) -> bytes:
    """Return rows [height, bytes] with the filters named, ``pixel`` bytes to the left and above."""
    height, size = rows.shape
    kinds = np.fromiter(filters, dtype=np.uint8)
    around = np.zeros((height + 1, size + pixel), dtype=np.int16)
    around[1:, pixel:] = rows
    left, above, corner = around[1:, :size], around[:-1, pixel:], around[:-1, :size]
    # PNG's guess is the nearest to left + above - corner; of equally near ones the first.
    near = np.stack([left, above, corner])
    nearest = np.abs(left + above - corner - near).argmin(axis=0)
    paeth = np.take_along_axis(near, nearest[None], axis=0)[0]
    guesses = np.stack([np.zeros_like(left), left, above, (left + above) // 2, paeth])
    differences = (rows - guesses[kinds, np.arange(height)]).astype(np.uint8)
    return np.concatenate([kinds[:, None], differences], axis=1).tobytes()


def in_pieces(stream: bytes, cuts: Sequence[int] = ()) -> bytes:
    """Return a stream in chunks of image data, cut at some places."""
    places = [0, *sorted(cuts), len(stream)]
    return b"".join(chunk(b"IDAT", stream[a:b]) for a, b in itertools.pairwise(places))


def file_of(first: bytes, data: bytes, *, before: bytes = b"", behind: bytes = b"") -> bytes:
    """Return a file of its first chunk, chunks of image data, and others before and behind these."""
    return SIGNATURE + first + before + data + behind + chunk(b"IEND")


def drawn(
    rng: np.random.Generator,
    width: int,
    height: int,
    bits: int,
    color: int,
    *,
    filters: Iterable[int] | None = None,
    before: bytes = b"",
    behind: bytes = b"",
    colors: int | None = None,
) -> bytes:
    """Return a file of smooth rows with noise, of any filters, in one piece or in several."""
    size = bytes_of_row(width, bits, color)
    pixel = max(1, bits * SAMPLES[color] // 8)
    noise = rng.integers(0, 256 if bits < 8 or rng.random() < 0.2 else 6, (height, size), dtype=np.uint8)
    slope = np.arange(size) // pixel + rng.integers(0, 5) * np.arange(height)[:, None] + 40 * (np.arange(size) % pixel)
    rows = (noise + slope * (bits >= 8)).astype(np.uint8)
    if filters is None:
        filters = rng.integers(0, 5, height) if rng.random() < 0.7 else np.full(height, rng.integers(0, 5))
    stream = zlib.compress(filtered(rows, pixel, map(int, filters)), int(rng.integers(0, 10)))
    palette = chunk(b"PLTE", rng.bytes(3 * (1 << bits if colors is None else colors))) if color == 3 else b""
    cuts = [int(at) for at in rng.integers(0, len(stream) + 1, rng.integers(0, 4))]
    return file_of(header(width, height, bits, color), in_pieces(stream, cuts), before=palette + before, behind=behind)


def repaired(stream: bytes) -> bytes:
    """Return a zlib stream whose head and checksum are right, if what lies between can be inflated."""
    inflater = zlib.decompressobj(-15)
    try:
        made = inflater.decompress(stream[2:], 1 << 20)
    except zlib.error:
        return stream
    end = len(stream) - len(inflater.unused_data)
    return b"\x78\x9c" + stream[2:end] + zlib.adler32(made).to_bytes(4, "big") if inflater.eof else stream


def _changed(rng: np.random.Generator, data: bytes) -> bytes:
    """Return bytes of which some are others."""
    return next(mutants(rng, [data], most=1)) if data else rng.bytes(rng.integers(4))


NAMES = (b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS", b"gAMA", b"cHRM", b"sRGB", b"pHYs", b"iCCP", b"tEXt", b"zTXt")
NAMES += (b"iTXt", b"eXIf", b"acTL", b"fcTL", b"fdAT", b"tIME", b"abCd", b"ABCD", b"a_b1")


def damaged(rng: np.random.Generator, files: Sequence[bytes]) -> bytes:
    """Return a damaged copy of a file: often of what its chunks say, with checksums that are right."""
    data = files[rng.integers(len(files))]
    if rng.random() < 0.2:
        return _changed(rng, data)
    parts = chunks_of(data)
    for _ in range(int(rng.integers(1, 3))):
        at = int(rng.integers(len(parts)))
        name, body = parts[at]
        match rng.integers(7):
            case 0:
                del parts[at]
            case 1:
                parts.insert(int(rng.integers(len(parts) + 1)), (name, body))
            case 2:
                parts.insert(
                    int(rng.integers(len(parts) + 1)), (NAMES[rng.integers(len(NAMES))], rng.bytes(rng.integers(40)))
                )
            case 3:
                body = _changed(rng, body)
                parts[at] = NAMES[rng.integers(len(NAMES))] if rng.random() < 0.2 else name, body
            case 4 if name == b"IHDR":
                parts[at] = name, body[:8] + bytes(rng.choice([1, 2, 4, 8, 16, 0, 3, 6], 2).tolist()) + body[10:]
            case _:
                stream = b"".join(body for name, body in parts if name == b"IDAT")
                stream = _changed(rng, stream)
                stream = repaired(stream) if rng.random() < 0.8 else stream
                where = next((i for i, one in enumerate(parts) if one[0] == b"IDAT"), len(parts))
                parts = [one for one in parts if one[0] != b"IDAT"]
                parts.insert(where, (b"IDAT", stream))
        if not parts:
            break
    made = SIGNATURE + b"".join(chunk(*one) for one in parts)
    return _changed(rng, made) if rng.random() < 0.1 else made
