"""Cuts of images, and what Pillow makes of them."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from fastload.native.rows import FILTERS, Box, Cut


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
