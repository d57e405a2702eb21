"""Every public transform, with how near its results on a GPU are to those on the CPU given the same parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fastload import transforms as T
from fastload.transforms.base import shape_of

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NORMALIZED = max(1e-6 * (1 + mean) / std for mean, std in zip(MEAN, STD, strict=True))


class Case(NamedTuple):
    """A transform, and how far a value may be from the CPU's: 0 stands for bit for bit."""

    make: Callable[[], Any]
    levels: float = 0
    """Of uint8."""
    floats: float = 0
    """Of floats in [0, 1]."""
    share: float = 0
    """Of values that may be farther: pixels halfway between two, levels on an edge."""
    dtypes: tuple[torch.dtype, ...] = (torch.uint8, torch.float32)


FLOATS = (torch.float32,)
CASES = {
    "AlternatingFlip": Case(T.AlternatingFlip),
    "CenterCrop": Case(lambda: T.CenterCrop((20, 40))),
    "ColorJitter": Case(lambda: T.ColorJitter(0.4, 0.4, 0.4, 0.1), 4, 1e-4, 0.01),
    "Compose": Case(
        lambda: T.Compose(
            [
                T.RandomCrop(32, 4),
                T.RandomHorizontalFlip(),
                T.ToDtype(torch.float32, scale=True),
                T.Normalize(MEAN, STD),
            ]
        ),
        NORMALIZED,
        NORMALIZED,
    ),
    "CutMix": Case(lambda: T.CutMix(num_classes=5)),
    "Cutout": Case(lambda: T.Cutout(9)),
    "GaussianBlur": Case(lambda: T.GaussianBlur(5), 1, 1e-5),
    "MixUp": Case(lambda: T.MixUp(num_classes=5), 1, 1e-6),
    "MixUpOrCutMix": Case(lambda: T.MixUpOrCutMix(num_classes=5), 1, 1e-6),
    "Normalize": Case(lambda: T.Normalize(MEAN, STD), dtypes=FLOATS),
    "RandomAdjustSharpness": Case(lambda: T.RandomAdjustSharpness(2.0), 1, 1e-5),
    "RandomAffine": Case(lambda: T.RandomAffine(20, (0.1, 0.2), (0.8, 1.2), 5, "bilinear"), 1, 1e-4, 0.001),
    "RandomAutocontrast": Case(T.RandomAutocontrast, 1, 1e-5),
    "RandomCrop": Case(lambda: T.RandomCrop(32, 4, padding_mode="reflect")),
    "RandomEqualize": Case(T.RandomEqualize, 0, 1e-5, 0.001),
    "RandomErasing": Case(lambda: T.RandomErasing(0.8, value=(1, 0.5, 0))),
    "RandomErasing of noise": Case(lambda: T.RandomErasing(0.8, value="random"), floats=1e-4, dtypes=FLOATS),
    "RandomGrayscale": Case(lambda: T.RandomGrayscale(0.5), 1, 1e-6),
    "RandomHorizontalFlip": Case(T.RandomHorizontalFlip),
    "RandomInvert": Case(T.RandomInvert),
    "RandomPosterize": Case(lambda: T.RandomPosterize(3), 0, 1e-5, 0.001),
    "RandomResizedCrop": Case(lambda: T.RandomResizedCrop(24), 1, 1e-5, 0.001),
    "RandomRotation": Case(lambda: T.RandomRotation(30), share=0.01),
    "RandomSolarize": Case(lambda: T.RandomSolarize(0.5)),
    "RandomVerticalFlip": Case(T.RandomVerticalFlip),
    "Resize": Case(lambda: T.Resize(24), 1, 1e-5, 0.001),
    "ToDtype": Case(lambda: T.ToDtype(torch.bfloat16, scale=True)),
    "ToNormalized": Case(lambda: T.ToNormalized(MEAN, STD), NORMALIZED, NORMALIZED),
}
NUM, SIDES = 16, (40, 36)


def made(dtype: torch.dtype, memory: torch.memory_format = torch.contiguous_format, seed: int = 0) -> Tensor:
    """Return smooth images with some noise: [16, 3, 40, 36], uint8 or floats in [0, 1]."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand((NUM, 3, 6, 6), generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, SIDES, mode="bilinear")
    levels = (smooth * 200 + torch.rand((NUM, 3, *SIDES), generator=generator) * 55).floor()
    images = levels.to(torch.uint8) if dtype == torch.uint8 else (levels / 255).to(dtype)
    return images.contiguous(memory_format=memory)


def arguments(transform: Any, images: Tensor) -> list[Tensor]:
    """Return the images; and labels, where they are mixed."""
    return [images, torch.arange(len(images), device=images.device) % 5] if transform.mixes else [images]


def draws_of(num: int) -> T.Draws:
    """Return what so many samples draw from, always the same, with epochs, as a loader with a seed gives it."""
    key = bytes(range(16))
    return T.Draws(key, np.arange(num, dtype=np.int64), epochs=(1, key))


def params_of(transform: Any, images: Tensor) -> Any:
    """Return parameters, drawn on the CPU and always the same."""
    return transform.draw_for(draws_of(len(images)), shape_of(images, transform.layout))


def check(found: Any, expected: Any, case: Case, dtype: torch.dtype) -> None:
    """Check that results are as near as the case says; ``dtype`` is that of the images."""
    tolerance = case.levels if dtype == torch.uint8 else case.floats
    if isinstance(expected, tuple):  # images, labels
        (found, labels), (expected, expected_labels) = found, expected
        torch.testing.assert_close(labels.cpu(), expected_labels, rtol=0, atol=1e-6)
    found = found.cpu()
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    far = ~((found.double() - expected.double()).abs() <= tolerance)  # so that NaN is far, too
    assert far.double().mean() <= case.share, f"{far.sum()} of {far.numel()} values, {tolerance=}"
