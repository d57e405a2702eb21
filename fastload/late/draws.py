"""torchvision's random resized crop and random flips, with fewer calls around the same draws.

The classes spend most of their time in small tensors that each draw makes anew and in checks of arguments (54 µs for a
resized crop, 12 here); the functions of this module make the same draws with one tensor.

Nothing is assumed of the installed torchvision: :func:`draw_of` compares both ways first.
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

from .scope import tried
from .transform_lists import takes_names

Draw = Callable[[dict[str, Any], Any], Any]
"""Takes a transform's attributes and an image; returns what the transform makes of the image, or None before anything
was drawn: then the transform is to be called."""


def _random_resized_crop(arguments: dict[str, Any], image: Any) -> Any:
    scale: Any = arguments.get("scale")
    ratio: Any = arguments.get("ratio")
    size: Any = arguments.get("size")
    logarithms = arguments.get("_log_ratio")  # version 2 takes them when it is constructed
    mode = arguments.get("interpolation")
    if type(mode) is str and logarithms is not None:
        name = mode.upper() if mode.islower() and takes_names() else ""
    else:
        name = getattr(mode, "name", "")
    resample = getattr(Image.Resampling, name, None)
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
    """Whether the default dtype, the default device and the modes in force are those that draw as usual."""
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
"""By a class's name: how it draws."""


def classes() -> list[type]:
    """Return the classes of the imported modules whose draws are known here."""
    modules = map(sys.modules.get, ("torchvision.transforms.transforms", "torchvision.transforms.v2"))
    found = (getattr(module, name, None) for module in modules for name in _DRAWS)
    return [kind for kind in found if isinstance(kind, type) and kind.__name__ in _DRAWS]


_compared: dict[type, Draw | None] = {}


def draw_of(kind: type) -> Draw | None:
    """Return how one of :func:`classes` draws; None where it does not make the same. Compared once, in 1 to 2 ms."""
    if kind not in _compared and _is_plain(torch.empty(1)):
        draw = _DRAWS[kind.__name__]
        _compared[kind] = draw if _makes_the_same(kind, draw) else None
    return _compared.get(kind)


def _makes_the_same(kind: type, draw: Draw) -> bool:
    state = torch.get_rng_state()
    levels = (np.arange(3 * 40 * 40, dtype=np.uint32) * 2654435761 >> 24).astype(np.uint8).reshape(40, 40, 3)

    def compare() -> bool:
        transform = kind((7, 5)) if kind.__name__ == "RandomResizedCrop" else kind()
        for seed, (height, width) in enumerate(((40, 31), (23, 40), (40, 3))):
            image = Image.fromarray(levels[:height, :width])
            start = torch.Generator().manual_seed(seed).get_state()  # torch.manual_seed would act on accelerators too
            results = []
            for run in (transform, functools.partial(draw, vars(transform))):
                torch.set_rng_state(start)
                results.append((run(image).tobytes(), torch.get_rng_state().numpy().tobytes()))
            if results[0] != results[1]:
                return False
        return True

    try:
        return tried(compare) or False  # it fails with another torchvision: its transforms are called
    finally:
        torch.set_rng_state(state)
