"""The geometry of views, beside Pillow: crops, one resize, flips and turns of images whose pixels name their place."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fastload.late.view import View
from fastload.native.rows import FILTERS, pixels_of_image

_RESAMPLING = {name: Image.Resampling[name.upper()] for name in FILTERS}


def _places(width: int, height: int) -> np.ndarray:
    """Return [height, width, 3] of uint8, where no two pixels near each other are equal."""
    y, x = np.mgrid[:height, :width]
    return np.stack([x * 5, y * 5, x * 31 + y * 17], axis=-1).astype(np.uint8)


def _shown(view: View, image: np.ndarray) -> np.ndarray:
    """Return what a view says of an image."""
    pixels = pixels_of_image(image, view.cut, "RGB")
    if view.transposed:
        pixels = pixels.swapaxes(0, 1)[:: -1 if view.inverted else 1, :: -1 if view.mirrored else 1]
    return pixels


@st.composite
def _steps(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    steps = []
    for _ in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from(["crop", "transpose", "resize"]))
        if kind == "crop":
            steps.append((kind, tuple(draw(st.integers(-2, 42)) for _ in range(4))))
        elif kind == "transpose":
            steps.append((kind, draw(st.integers(-1, 8))))
        else:
            size = draw(st.integers(1, 45)), draw(st.integers(1, 45))
            source = draw(st.none() | st.tuples(*[st.floats(0, 5)] * 2, *[st.floats(6, 9)] * 2))
            steps.append((kind, size, draw(st.sampled_from(FILTERS)), source))
    return steps


@given(st.integers(1, 40), st.integers(1, 40), _steps())
def test_a_view_shows_what_pillow_makes(width, height, steps):
    places = _places(width, height)
    view, image = View.whole(width, height), Image.fromarray(places)
    for kind, *arguments in steps:
        if kind == "crop":
            changed = view.cropped(arguments[0])
        elif kind == "transpose":
            changed = view.transposed_by(arguments[0])
        else:
            size, interpolation, source = arguments
            if source is not None and (source[2] > image.width or source[3] > image.height):
                source = None
            changed = view.resized(size, interpolation, source)
        if changed is None:
            continue
        view = changed
        if kind == "crop":
            image = image.crop(arguments[0])
        elif kind == "transpose":
            image = image.transpose(Image.Transpose(arguments[0]))
        else:
            image = image.resize(size, _RESAMPLING[interpolation], source)
        assert view.shown_size == image.size
    assert np.array_equal(_shown(view, places), np.asarray(image))


@given(st.tuples(*[st.integers(-3, 12)] * 4))
def test_a_crop_is_recorded_exactly_where_it_has_pixels_and_all_are_of_the_image(box):
    left, upper, right, lower = box
    inside = 0 <= left < right <= 9 and 0 <= upper < lower <= 7
    assert (View.whole(9, 7).cropped(box) is not None) == inside
