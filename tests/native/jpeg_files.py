"""JPEG files made for the tests, and what Pillow makes of them. No file is kept."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fastload import native
from fastload.native import rows
from fastload.native.rows import FILTERS, Box, Cut

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


def cut_of(
    box: Box,
    size: tuple[int, int] | None = None,
    interpolation: str = "bilinear",
    *,
    window: Box | None = None,
    flips: tuple[bool, bool] = (False, False),
    source: tuple[float, float, float, float] | None = None,
) -> Cut:
    """Return a cut: of the box's size and of all of the result, where nothing else is said."""
    size = box[2:] if size is None else size
    return Cut(box, size, interpolation, (0, 0, *size) if window is None else window, flips, source)


def by_pillow(image: bytes | np.ndarray, cut: Cut, mode: str = "RGB") -> np.ndarray:
    """Return [height, width, 3], or [height, width] of mode "L": what Pillow makes of a file or of pixels."""
    found = Image.open(io.BytesIO(image)).convert(mode) if isinstance(image, bytes) else Image.fromarray(image)
    for step in range(2):
        top, left, height, width = cut.window if step else cut.box
        found = found.crop((left, top, left + width, top + height))
        if not step:
            found = found.resize(cut.size[::-1], Image.Resampling[cut.interpolation.upper()], cut.source)
    return np.asarray(found)[:: -1 if cut.flips[1] else 1, :: -1 if cut.flips[0] else 1]


def assert_in_layout(found: np.ndarray, layout: str, data: bytes, cut: Cut) -> None:
    """Check pixels of a layout, made of a file by a cut, by Pillow's."""
    expected = by_pillow(data, cut, "L" if layout == "L" else "RGB")
    if layout == "RGBX":
        assert bool((found[..., 3] == 255).all())
        found = found[..., :3]
    np.testing.assert_array_equal(found, expected[..., ::-1] if layout == "BGR" else expected, f"{cut}")


def assert_rows_by_table(row: Callable[..., torch.Tensor], data: bytes, cut: Cut) -> None:
    """Check what ``row`` makes of a cut, a table and room for it, or none, by Pillow's pixels of the file."""
    table = torch.arange(256) * torch.tensor([1.0, 2.0, 3.0])[:, None]
    expected = by_pillow(data, cut).transpose(2, 0, 1) * np.array([1, 2, 3], dtype=np.float32).reshape(3, 1, 1)
    out = torch.zeros(expected.shape)
    assert row(cut, table, out) is out
    for found in (out, row(cut, table)):
        assert found.is_contiguous()
        np.testing.assert_array_equal(found.numpy(), expected)


def some_cut(rng: np.random.Generator, height: int, width: int) -> Cut:
    """Return any cut of an image: mostly resized, often in a window, sometimes with a source of its own."""
    box = some_box(rng, height, width)
    size = [int(side) for side in rng.integers(1, 150, 2)]
    # Without a resize every pixel of the box is seen.
    for axis in range(2):
        if rng.random() < 0.5:
            size[axis] = box[2 + axis]
    high, wide = size
    source = None
    if rng.random() < 0.3:
        whole = rng.random() < 0.3
        x, y = (np.sort(rng.integers(0, side + 1, 2) if whole else rng.uniform(0, side, 2)) for side in box[:1:-1])
        source = float(x[0]), float(y[0]), float(x[1]), float(y[1])
    return cut_of(
        box,
        (high, wide),
        FILTERS[rng.integers(len(FILTERS))],
        window=some_box(rng, high, wide) if rng.random() < 0.6 else None,
        flips=(bool(rng.integers(2)), bool(rng.integers(2))),
        source=source,
    )


def some_box(rng: np.random.Generator, height: int, width: int) -> tuple[int, int, int, int]:
    """Return a box inside of an image: mostly any, sometimes all of it or one pixel at an edge."""
    h, w = (int(side if rng.random() < 0.1 else rng.integers(1, side + 1)) for side in (height, width))
    top = height - h if rng.random() < 0.15 else rng.integers(0, height - h + 1)
    left = width - w if rng.random() < 0.15 else rng.integers(0, width - w + 1)
    return int(top), int(left), h, w


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
