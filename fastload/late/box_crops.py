"""torchvision's random crop that keeps boxes, with fewer calls around the same draws.

``RandomIoUCrop.make_params`` of version 2 makes some twenty trials a sample, each by forty small tensors (2.7 ms);
here numbers and arrays of numpy compute the same in single precision. torch's generator ends in the same state.

Replaced in worker processes alone, once, unless somebody else has. The first call in a process compares both ways.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from . import modes
from .originals import Originals, in_place_of, is_imported, is_written_in
from .scope import thread, tried
from .transform_lists import V2_FUNCTIONAL

_V2 = "torchvision.transforms.v2"
_ORIGINALS = Originals("torch", "torchvision")
"""Functions that the original calls."""
_MOST = 1e4
"""Of a scale: sides stay whole numbers in single precision."""
_prepared = False


def prepare() -> None:
    """Replace the method, if version 2 is imported. A worker process calls it when it begins a chunk."""
    global _prepared
    if _prepared or not is_imported(_V2):
        return
    _prepared = True
    kind: Any = getattr(sys.modules[_V2], "RandomIoUCrop", None)
    geometry = sys.modules.get(f"{_V2}._geometry")
    original = vars(kind).get("make_params") if isinstance(kind, type) else None
    if geometry is not None and is_written_in(original, "torchvision"):
        _ORIGINALS.add(torch, ("rand",))
        _ORIGINALS.add(geometry, ("box_iou", "get_bounding_boxes", "query_size"))
        _ORIGINALS.add(sys.modules[V2_FUNCTIONAL], ("convert_bounding_box_format",))
        kind.make_params = _around(kind, original, geometry)


def _around(kind: Any, original: Any, geometry: Any) -> Callable[..., Any]:
    @in_place_of(original)
    def make_params(self: Any, flat_inputs: Any) -> Any:
        made = None
        if thread.scope is not None and type(self) is kind and _is_usual() and _agrees(kind, original, geometry):
            made = _drawn(vars(self), flat_inputs, geometry)
        return original(self, flat_inputs) if made is None else made

    make_params.stands_for = original  # type: ignore[attr-defined]
    return make_params


def _is_usual() -> bool:
    """Whether nothing was replaced, and none of torch's modes or defaults asks for other draws."""
    number = torch.empty(1)
    return (
        not modes.are_watching() and number.is_cpu and number.dtype is torch.float32 and _ORIGINALS.replaced() is None
    )


def _drawn(arguments: dict[str, Any], flat_inputs: Any, geometry: Any) -> dict[str, Any] | None:
    """Return the parameters; None before anything was drawn: then the original is to be called."""
    names = ("min_scale", "max_scale", "min_aspect_ratio", "max_aspect_ratio")
    limits: list[Any] = [arguments.get(name) for name in names]
    options, trials = arguments.get("options"), arguments.get("trials")
    if not isinstance(options, (list, tuple)) or not options or type(trials) is not int:
        return None
    if not all(type(one) in (int, float) and math.isfinite(one) for one in (*limits, *options)):
        return None
    if max(map(abs, limits[:2])) > _MOST:
        return None
    height, width = geometry.query_size(flat_inputs)
    boxes = geometry.get_bounding_boxes(flat_inputs)
    corners = _corners_of(boxes)
    if corners is None or max(height, width) > 1 << 20:
        return None
    x0, y0, x1, y1 = corners.T
    middle_x, middle_y = (np.float32(0.5) * (low + high).astype(np.float32) for low, high in ((x0, x1), (y0, y1)))
    low, span = np.float32(limits[0]), np.float32(limits[1] - limits[0])
    integer, pair = torch.empty(1, dtype=torch.int64), torch.empty(2)
    numbers = pair.numpy()  # the same memory
    while True:
        least = options[int(integer.random_(0, len(options)).item())]
        if least >= 1.0:
            return {}
        for _ in range(trials):
            pair.uniform_()
            share = low + span * numbers
            new_width, new_height = int(np.float32(width) * share[0]), int(np.float32(height) * share[1])
            if not limits[2] <= new_width / new_height <= limits[3]:
                continue
            pair.uniform_()
            left = int(np.float32(width - new_width) * numbers[0])
            top = int(np.float32(height - new_height) * numbers[1])
            right, bottom = left + new_width, top + new_height
            if left == right or top == bottom:
                continue
            within = (left < middle_x) & (middle_x < right) & (top < middle_y) & (middle_y < bottom)
            if within.any() and not _most_overlap(corners[within], left, top, right, bottom) < np.float32(least):
                found = torch.from_numpy(within)
                return {
                    "top": top, "left": left, "height": new_height, "width": new_width, "is_within_crop_area": found
                }  # fmt: skip


def _corners_of(boxes: Any) -> Any:
    """Return the edges [N, 4] of boxes that are not rotated; None where they are not plain numbers."""
    from torchvision.tv_tensors import BoundingBoxes, BoundingBoxFormat

    known = (BoundingBoxFormat.XYXY, BoundingBoxFormat.XYWH, BoundingBoxFormat.CXCYWH)
    if type(boxes) is not BoundingBoxes or boxes.format not in known or boxes.ndim != 2 or not boxes.is_cpu:
        return None
    plain = boxes.as_subclass(torch.Tensor)
    if plain.dtype not in (torch.float32, torch.int64) or plain.requires_grad or plain.layout is not torch.strided:
        return None
    functional = sys.modules[V2_FUNCTIONAL]
    corners = functional.convert_bounding_box_format(plain, boxes.format, BoundingBoxFormat.XYXY).numpy()
    return corners if np.isfinite(corners).all() and (np.abs(corners) < 1 << 20).all() else None


def _most_overlap(corners: Any, left: int, top: int, right: int, bottom: int) -> np.float32:
    """Return the largest overlap of boxes with a crop, as ``box_iou`` computes it; not a number if one is of a box."""
    x0, y0, x1, y1 = corners.T
    crop = np.array((left, top, right, bottom), dtype=corners.dtype)
    own = (crop[2] - crop[0]) * (crop[3] - crop[1])
    across = np.minimum(x1, crop[2]) - np.maximum(x0, crop[0])
    down = np.minimum(y1, crop[3]) - np.maximum(y0, crop[1])
    shared = np.maximum(across, 0) * np.maximum(down, 0)
    union = (x1 - x0) * (y1 - y0) + own - shared
    with np.errstate(all="ignore"):
        overlaps: Any = shared.astype(np.float32) / union.astype(np.float32)
    most: np.float32 = overlaps.max()
    return most


_agreeing: dict[Any, bool] = {}


def _agrees(kind: type[Any], original: Callable[..., Any], geometry: Any) -> bool:
    """Whether both ways draw the same. Compared once, in about 10 ms."""
    if original not in _agreeing:
        state = torch.get_rng_state()
        try:
            _agreeing[original] = bool(tried(lambda: _draws_the_same(kind, original, geometry)))
        finally:
            torch.set_rng_state(state)
    return _agreeing[original]


def _draws_the_same(kind: type[Any], original: Callable[..., Any], geometry: Any) -> bool:
    from torchvision.tv_tensors import BoundingBoxes

    transform = kind(trials=8)
    for seed, dtype in enumerate((torch.float32, torch.int64) * 3):
        edges = torch.tensor([[10, 20, 150, 180], [180, 80, 320, 250], [5, 3, 490, 320]], dtype=dtype)
        boxes = [BoundingBoxes(edges, format="XYXY", canvas_size=(375, 500))]
        # torch.manual_seed would act on accelerators too.
        start = torch.Generator().manual_seed(seed).get_state()
        results = []
        for draw in (functools.partial(original, transform), lambda found: _drawn(vars(transform), found, geometry)):
            torch.set_rng_state(start)
            made = draw(boxes)
            if made:
                made["is_within_crop_area"] = made["is_within_crop_area"].tolist()
            results.append((made, torch.get_rng_state().tolist()))
        if results[0] != results[1]:
            return False
    return True
