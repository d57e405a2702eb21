"""Read the arguments of Pillow's methods: pure functions.

They return None for all that Pillow is to treat by itself: errors, warnings, and what its versions treat differently.
"""

from __future__ import annotations

import operator
from array import array
from types import NoneType
from typing import Any

from PIL import Image

from ..native.adjust import AFFINE_FILTERS
from ..native.rows import FILTERS, MOST_SIDE
from .geometry import Geometry

_INTERPOLATIONS = {int(Image.Resampling[name.upper()]): name for name in FILTERS}
_AFFINE_FILTERS = {int(Image.Resampling[name.upper()]): name for name in AFFINE_FILTERS}


def cropped(geometry: Geometry, box: Any) -> Geometry | None:
    """Return the geometry after ``crop(box)``."""
    if box is None:
        return geometry
    if not isinstance(box, (tuple, list)):
        return None  # Pillow treats some of them in ways of its own
    try:
        left, upper, right, lower = map(int, map(round, box))
    except (TypeError, ValueError, OverflowError):
        return None
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and (right - left) * (lower - upper) > limit:
        return None  # Pillow warns, or refuses
    return geometry.cropped((left, upper, right, lower))


def resized(geometry: Geometry, size: Any, resample: Any, box: Any) -> Geometry | None:
    """Return the geometry after ``resize(size, resample, box)``."""
    if not isinstance(size, (tuple, list)) or not isinstance(box, (tuple, list, NoneType)):
        return None  # versions of Pillow differ in what they make of others
    width, height = geometry.shown_size
    try:
        columns, rows = map(operator.index, size)
        interpolation = _INTERPOLATIONS.get(Image.Resampling.BICUBIC if resample is None else operator.index(resample))
        # In single precision, as Pillow reads them.
        source = None if box is None or tuple(box) == (0, 0, width, height) else tuple(array("f", box))
    except (TypeError, ValueError, OverflowError):
        return None
    if interpolation is None or not (0 < columns <= MOST_SIDE and 0 < rows <= MOST_SIDE):
        return None
    if source is None:
        return geometry if (columns, rows) == (width, height) else geometry.resized((columns, rows), interpolation)
    if len(source) != 4 or not (0 <= source[0] < source[2] <= width and 0 <= source[1] < source[3] <= height):
        return None
    return geometry.resized((columns, rows), interpolation, source)


def affine_arguments(
    mode: str, size: Any, method: Any, data: Any, resample: Any, fillcolor: Any
) -> dict[str, Any] | None:
    """Return the arguments of :func:`fastload.native.adjust.affine` for those of ``transform``; ``mode``: RGB or L."""
    fill = (0,) * len(mode) if fillcolor is None else fillcolor
    # Pillow takes no list as a color, and as a size only some of its versions do.
    if type(fill) is not tuple or type(size) is not tuple:
        return None
    if not (isinstance(method, int) and method == Image.Transform.AFFINE):
        return None
    interpolation = _AFFINE_FILTERS.get(int(resample)) if isinstance(resample, int) else None
    if interpolation is None:
        return None
    if not (_are(size, 2, int) and _are(data, 6, int, float) and _are(fill, len(mode), int)):
        return None
    if not 1 <= min(size) <= max(size) <= MOST_SIDE or not 0 <= min(fill) <= max(fill) < 256:
        return None
    return {"size": size, "matrix": data, "fill": fill, "interpolation": interpolation}


def _are(numbers: Any, length: int, *kinds: type) -> bool:
    return type(numbers) in (tuple, list) and len(numbers) == length and all(type(one) in kinds for one in numbers)


def table_of_levels(lut: Any, num_channels: int) -> bytes | None:
    """Return the table of ``point(lut)`` as bytes, cut to 8 bits as Pillow cuts it."""
    if type(lut) is not list or len(lut) != 256 * num_channels:
        return None
    try:
        return bytes(lut)
    except TypeError:  # not integers
        return None
    except ValueError:
        pass
    try:
        return bytes(min(max(level, 0), 255) for level in array("i", lut))
    except (TypeError, OverflowError):  # Pillow cuts them to 32 bits first
        return None
