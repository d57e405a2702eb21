"""torchvision's random crops and flips, with fewer calls around the same draws.

The classes spend most of their time in small tensors that each draw makes anew and in checks of arguments (54 µs for a
resized crop, 12 here); the functions of this module make the same draws with one tensor. ``RandomIoUCrop``, which keeps
boxes, makes some twenty trials a sample, each by forty small tensors (2.7 ms); here arrays of numpy compute the same in
single precision. Nothing is assumed of the installed torchvision: both ways are compared first.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..base import overrides
from ..base.overrides import Override
from .patch_guard import SampleOverride
from .scope import is_watched, run_outside_sample
from .transform_lists import V1, V2, V2_FUNCTIONAL

Draw = Callable[[dict[str, Any], Any], Any]
"""Takes a transform's attributes and an image; returns what the transform makes of the image, or None before anything
was drawn: then the transform is to be called."""


def _random_resized_crop(arguments: dict[str, Any], image: Any) -> Any:
    scale: Any = arguments.get("scale")
    ratio: Any = arguments.get("ratio")
    size: Any = arguments.get("size")
    logarithms = arguments.get("_log_ratio")  # version 2 takes them when it is constructed
    mode: Any = arguments.get("interpolation")
    # Version 2 takes names too.
    is_name = type(mode) is str and mode.islower() and logarithms is not None
    resample = getattr(Image.Resampling, mode.upper() if is_name else getattr(mode, "name", ""), None)
    number = torch.empty(1)
    if resample is None or arguments.get("antialias") is not True or not _is_plain(number):
        return None
    if not (_is_pair(scale, int, float) and _is_pair(ratio, int, float) and _is_pair(size, int)):
        return None
    low, high = _logarithms(*ratio) if logarithms is None else logarithms.tolist()
    width, height = image.size
    middle = _middle(width, height, (ratio[0], ratio[1]))
    if min(middle[2:]) == 0:
        return None
    left, upper, w, h = _box(width, height, (scale[0], scale[1]), (low, high), number) or middle
    image = image.crop((left, upper, left + w, upper + h))
    return image if image.size == (size[1], size[0]) else image.resize((size[1], size[0]), resample)


def _box(
    width: int,
    height: int,
    scale: tuple[float, float],
    log_ratio: tuple[float, float],
    number: Tensor,
) -> tuple[int, int, int, int] | None:
    """Draw the left and upper edge, the width and the height of a crop; None where ten draws do not fit the image."""
    area = height * width
    integer = torch.empty(1, dtype=torch.int64)
    for _ in range(10):
        target_area = area * number.uniform_(*scale).item()
        aspect = number.uniform_(*log_ratio).exp_().item()
        w = round(math.sqrt(target_area * aspect))
        h = round(math.sqrt(target_area / aspect))
        if 0 < w <= width and 0 < h <= height:
            upper = integer.random_(0, height - h + 1).item()
            return int(integer.random_(0, width - w + 1).item()), int(upper), w, h
    return None


def _middle(width: int, height: int, ratio: tuple[float, float]) -> tuple[int, int, int, int]:
    """Return the largest crop in the middle whose aspect ratio is allowed."""
    w, h = width, height
    if width / height < min(ratio):
        h = round(width / min(ratio))
    elif width / height > max(ratio):
        w = round(height * max(ratio))
    return (width - w) // 2, (height - h) // 2, w, h


def _random_flip(method: Image.Transpose) -> Draw:
    def flip(arguments: dict[str, Any], image: Any) -> Any:
        p = arguments.get("p")
        number = torch.empty(1)
        if type(p) is not float or not _is_plain(number):
            return None
        # Compared in single precision, as a tensor is with a number.
        return image.transpose(method) if number.uniform_().item() < np.float32(p) else image

    return flip


def _is_pair(value: Any, *types: type) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2 and type(value[0]) in types and type(value[1]) in types


def _is_plain(number: Tensor) -> bool:
    """Return whether the default dtype, the default device and the modes in force are those that draw as usual."""
    return type(number) is Tensor and number.is_cpu and number.dtype is torch.float32


@functools.lru_cache(64)
def _logarithms(low: float, high: float) -> tuple[float, float]:
    first, second = torch.log(torch.tensor((low, high), dtype=torch.float32, device="cpu")).tolist()
    return first, second


_DRAWS: dict[str, Draw] = {
    "RandomResizedCrop": _random_resized_crop,
    "RandomHorizontalFlip": _random_flip(Image.Transpose.FLIP_LEFT_RIGHT),
    "RandomVerticalFlip": _random_flip(Image.Transpose.FLIP_TOP_BOTTOM),
}
"""Draw functions, by a class's name."""
NAMES = (*_DRAWS,)
"""Names of the classes whose draws are known here, of both versions."""


def classes() -> list[type]:
    """Return those of the imported modules."""
    found = (getattr(sys.modules.get(module), name, None) for module in (V1, V2) for name in NAMES)
    return [kind for kind in found if isinstance(kind, type) and kind.__name__ in NAMES]


def draw_of(kind: type) -> Draw | None:
    """Return how one of :func:`classes` draws; None where it does not make the same. Compared once, in 1 to 2 ms."""
    key = kind.__module__, kind.__name__
    if key not in overrides.results and not _is_plain(torch.empty(1)):
        return None
    draw = _DRAWS[kind.__name__]
    return draw if overrides.agreed(key, lambda: run_outside_sample(lambda: _makes_the_same(kind, draw))) else None


def _makes_the_same(kind: Any, draw: Draw) -> bool:
    levels = (np.arange(3 * 40 * 40, dtype=np.uint32) * 2654435761 >> 24).astype(np.uint8).reshape(40, 40, 3)
    transform = kind((7, 5)) if kind.__name__ == "RandomResizedCrop" else kind()

    def pixels(run: Any, image: Any) -> bytes:
        made: bytes = run(image).tobytes()
        return made

    images = (Image.fromarray(levels[:height, :width]) for height, width in ((40, 31), (23, 40), (40, 3)))
    runs = transform, functools.partial(draw, vars(transform))
    return all(
        _draw_alike(seed, *(functools.partial(pixels, run, image) for run in runs)) for seed, image in enumerate(images)
    )


def _draw_alike(seed: int, one: Callable[[], Any], other: Callable[[], Any]) -> bool:
    """Return whether two functions make the same from the same state of torch's generator, and leave it the same."""
    start = torch.Generator().manual_seed(seed).get_state()  # torch.manual_seed would act on accelerators too
    results = []
    for run in (one, other):
        torch.set_rng_state(start)
        results.append((run(), torch.get_rng_state().tolist()))
    return results[0] == results[1]


def _parameters(override: Override, self: Any, flat_inputs: Any) -> Any:
    if type(self) is not getattr(sys.modules[V2], "RandomIoUCrop", None) or is_watched():  # it would see a tensor made
        return None
    return _drawn(vars(self), flat_inputs) if _is_plain(torch.empty(1)) and override.agrees() else None


def _drawn(arguments: dict[str, Any], flat_inputs: Any) -> dict[str, Any] | None:
    """Return the parameters; None before anything was drawn: then the original is to be called."""
    names = ("min_scale", "max_scale", "min_aspect_ratio", "max_aspect_ratio")
    limits: list[Any] = [arguments.get(name) for name in names]
    options, trials = arguments.get("options"), arguments.get("trials")
    if not isinstance(options, (list, tuple)) or not options or type(trials) is not int:
        return None
    # Up to this scale sides stay whole numbers in single precision.
    if not all(type(one) in (int, float) and abs(one) <= 1e4 for one in (*limits, *options)):
        return None
    geometry = sys.modules[f"{V2}._geometry"]
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


def _draws_the_same(override: Override) -> bool:
    from torchvision.transforms.v2 import RandomIoUCrop
    from torchvision.tv_tensors import BoundingBoxes

    transform = RandomIoUCrop(trials=8)

    def parameters(draw: Any, dtype: torch.dtype) -> Any:
        edges = torch.tensor([[10, 20, 150, 180], [180, 80, 320, 250], [5, 3, 490, 320]], dtype=dtype)
        made = draw([BoundingBoxes(edges, format="XYXY", canvas_size=(375, 500))])
        return made and {**made, "is_within_crop_area": made["is_within_crop_area"].tolist()}

    draws = functools.partial(override.original, transform), functools.partial(_drawn, vars(transform))
    return all(
        _draw_alike(seed, *(functools.partial(parameters, draw, dtype) for draw in draws))
        for seed, dtype in enumerate((torch.float32, torch.int64) * 3)
    )


_PURPOSE = "the random crop that keeps boxes is drawn with fewer calls"
OVERRIDES = (SampleOverride(V2, f"{V2}:RandomIoUCrop", "make_params", _PURPOSE, _parameters, _draws_the_same),)
