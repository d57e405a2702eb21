"""Damaged copies of files: a byte, a bit, a piece or a marker of them is another."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

EDGES = (0, 1, 2, 3, 4, 8, 16, 127, 128, 255)


def mutants(rng: np.random.Generator, files: list[bytes], most: int = 3) -> Iterator[bytes]:
    """Give damaged copies without end, each with up to so many changes."""
    while True:
        data = bytearray(files[rng.integers(len(files))])
        for _ in range(int(rng.integers(1, most + 1))):
            at = int(rng.integers(len(data)) if rng.random() < 0.6 else rng.integers(min(len(data), 700)))
            match rng.integers(6):
                case 0:
                    data[at] = int(rng.choice(EDGES) if rng.random() < 0.5 else rng.integers(256))
                case 1:
                    data[at] ^= 1 << int(rng.integers(8))
                case 2:
                    del data[at : at + int(rng.integers(1, 40))]
                case 3:
                    data[at:at] = data[at : at + int(rng.integers(1, 40))]
                case 4:
                    data[at : at + 2] = bytes([0xFF, int(rng.integers(256))])
                case _:
                    del data[at:]
            if not data:
                break
        yield bytes(data)
