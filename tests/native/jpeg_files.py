"""JPEG files made for the tests, and what Pillow makes of them. No file is kept."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fastload.native import rows

SOURCES = Path(rows.__file__).parent / "src"
RESAMPLING = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
# Sampling of the first component, across and down.
SAMPLINGS = [(1, 1), (2, 1), (2, 2), (1, 2), (4, 1)]


def picture(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Return [height, width, 3] of uint8: waves, edges and noise."""
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x * rng.uniform(0.02, 0.6) + y * rng.uniform(0.02, 0.6)) for _ in range(3)]
    image = 128 + 80 * np.stack(waves, axis=-1) + rng.normal(0, 12, (height, width, 3))
    image[height // 3 :, width // 2 :] += rng.uniform(-90, 90, 3)
    return image.clip(0, 255).astype(np.uint8)


def saved(image: np.ndarray, **options: object) -> bytes:
    """Return the JPEG file that Pillow writes."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", **options)
    return buffer.getvalue()


def by_pillow(
    data: bytes, box: tuple[int, int, int, int], size: tuple[int, int], interpolation: str, flip: bool
) -> np.ndarray:
    """Return [height, width, 3]: what Pillow decodes, crops, resizes and flips."""
    top, left, height, width = box
    image = Image.open(io.BytesIO(data)).convert("RGB").crop((left, top, left + width, top + height))
    found = np.asarray(image.resize(size[::-1], RESAMPLING[interpolation]))
    return found[:, ::-1] if flip else found


def some_box(rng: np.random.Generator, height: int, width: int) -> tuple[int, int, int, int]:
    """Return a box inside of an image: mostly any, sometimes all of it or one pixel at an edge."""
    h, w = (int(side if rng.random() < 0.1 else rng.integers(1, side + 1)) for side in (height, width))
    top = height - h if rng.random() < 0.15 else rng.integers(0, height - h + 1)
    left = width - w if rng.random() < 0.15 else rng.integers(0, width - w + 1)
    return int(top), int(left), h, w


def row_target(size: tuple[int, int], interpolation: str = "bilinear") -> tuple[np.ndarray, rows.Target]:
    """Return [height, width, 3] of uint8, and a target of one row that writes it."""
    batch = torch.zeros(1, *size, 3, dtype=torch.uint8)
    return batch[0].numpy(), rows.Target(batch.permute(0, 3, 1, 2), None, interpolation)


def real_files(limit: int | None = None) -> list[Path]:
    """Return JPEG files of the folder that FASTLOAD_BENCH_DATA names; the test is skipped without them."""
    folder = os.environ.get("FASTLOAD_BENCH_DATA")
    if not folder:
        pytest.skip("FASTLOAD_BENCH_DATA names no folder with JPEG files")
    found = sorted(path for path in Path(folder).rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    if not found:
        pytest.skip(f"there is no JPEG file under FASTLOAD_BENCH_DATA={folder}")
    return found[:: max(1, len(found) // limit)] if limit else found


def compiler() -> str:
    """Return a C compiler, or skip the test."""
    found = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if not found:
        pytest.skip("there is no C compiler")
    return found


class Maker:
    """Writes files of kinds that Pillow does not write, by tests/native/make_jpeg.c."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = folder / "make_jpeg"
        source = Path(__file__).with_name("make_jpeg.c")
        subprocess.run([compiler(), "-O1", str(source), "-o", str(self.program), "-ljpeg", "-lm"], check=True)
        self.num = 0

    def make(
        self,
        width: int,
        height: int,
        *,
        quality: int = 85,
        kind: str = "-",
        sampling: tuple[int, int] = (1, 1),
        restart: int = 0,
    ) -> bytes:
        """Return a file; for ``kind`` see the source."""
        self.num += 1
        path = self.folder / f"{self.num}.jpg"
        numbers = [width, height, quality, self.num, kind, *sampling, restart]
        subprocess.run([str(self.program), str(path), *map(str, numbers)], check=True)
        return path.read_bytes()


def mutants(rng: np.random.Generator, files: list[bytes]) -> Iterator[bytes]:
    """Give damaged copies without end."""
    while True:
        data = bytearray(files[rng.integers(len(files))])
        for _ in range(int(rng.integers(1, 4))):
            at = int(rng.integers(len(data)) if rng.random() < 0.6 else rng.integers(min(len(data), 700)))
            match rng.integers(6):
                case 0:
                    data[at] = int(rng.integers(256))
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
