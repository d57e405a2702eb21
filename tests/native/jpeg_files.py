"""JPEG files made for the tests, and what Pillow makes of them. No file is kept."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.cuts import by_pillow, some_cut
from PIL import Image

from fastload import native
from fastload.native import jpeg, rows

SOURCES = Path(rows.__file__).parent / "src"
# Sampling of the first component, across and down.
SAMPLINGS = [(1, 1), (2, 1), (2, 2), (1, 2), (4, 1)]


def use_level(level: str) -> None:
    """Let kernels use no newer instructions than those of a level; until the test ends."""
    native.library.limit_level(native.LEVELS.index(level))


def each_level() -> Iterator[str]:
    """Give each instruction set, which is the newest that kernels use until the next one is asked for."""
    for level in native.LEVELS:
        use_level(level)
        yield level


def on_each_level(image: Any, cut: rows.Cut) -> np.ndarray | rows.Status:
    """Return the pixels that each instruction set makes of a cut, or the status in which each ends."""
    found, *others = [rows.pixels_of_image(image, cut) for _ in each_level()]
    for one in others:
        assert one is found if isinstance(found, rows.Status) else np.array_equal(one, found), f"{cut}"
    return found


def with_record(data: bytes) -> list[bytes]:
    """Return a file, and its record where it has one, of which the file can be made again."""
    record = jpeg.record_of_jpeg(data)
    if isinstance(record, rows.Status):
        return [data]
    again, header = jpeg.jpeg_of_record(record), jpeg.header_of_record(record)
    assert (jpeg.is_record(data), jpeg.is_record(record)) == (False, True)
    assert jpeg.record_of_jpeg(again) == record, "the same coefficients and header"
    assert (data[: len(header)], again[: len(header)]) == (header, header)
    assert jpeg.read_size(record) == jpeg.read_size(data)
    return [data, record]


def assert_equals_pillow(data: bytes, rng: np.random.Generator, *, times: int = 2) -> None:
    """Of a file and its record, all of it and some cuts, on every instruction set."""
    size = jpeg.read_size(data)
    assert (size.width, size.height) == Image.open(io.BytesIO(data)).size
    cuts = [some_cut(rng, size.height, size.width) for _ in range(times)]
    cuts.append(rows.whole(size.height, size.width)._replace(flips=cuts[0].flips))
    files = with_record(data)
    for cut in cuts:
        expected = by_pillow(data, cut)
        for file in files:
            np.testing.assert_array_equal(on_each_level(file, cut), expected, f"{size=} {cut=}")


def picture(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Return [height, width, 3] of uint8: waves, edges and noise."""
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x * rng.uniform(0.02, 0.6) + y * rng.uniform(0.02, 0.6)) for _ in range(3)]
    image = 128 + 80 * np.stack(waves, axis=-1) + rng.normal(0, 12, (height, width, 3))
    image[height // 3 :, width // 2 :] += rng.uniform(-90, 90, 3)
    return image.clip(0, 255).astype(np.uint8)


def noise(height: int, width: int) -> np.ndarray:
    """Return [height, width, 3] whose coefficients are beyond 4 bits in all blocks."""
    return np.random.default_rng(3).integers(0, 256, (height, width, 3), dtype=np.uint8)


def stripes(height: int, width: int) -> np.ndarray:
    """Return [height, width, 3] of black and white, whose coefficients are beyond 8 bits in most blocks."""
    return np.random.default_rng(3).integers(0, 2, (height, width, 1), dtype=np.uint8).repeat(3, 2) * np.uint8(255)


def saved(image: np.ndarray, **options: object) -> bytes:
    """Return the JPEG file that Pillow writes."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", **options)
    return buffer.getvalue()


def compiler() -> str:
    """Return a C compiler, or skip the test."""
    found = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if not found:
        pytest.skip("there is no C compiler")
    return found


class Maker:
    """Writes files of kinds that Pillow does not write, by tests/native/make_jpeg.c and libjpeg.

    Without a compiler or libjpeg's headers the test is skipped; FASTLOAD_REQUIRE_NATIVE=1 makes that a failure.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = folder / "make_jpeg"
        source = Path(__file__).with_name("make_jpeg.c")
        command = [compiler(), "-O1", str(source), "-o", str(self.program), "-ljpeg", "-lm"]
        said = subprocess.run(command, capture_output=True, text=True)
        if said.returncode:
            required = os.environ.get("FASTLOAD_REQUIRE_NATIVE", "") not in ("", "0")
            (pytest.fail if required else pytest.skip)(f"no libjpeg to make files with: {said.stderr}")
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
