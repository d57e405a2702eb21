"""No transform of colours, values or pairs asks a device what is in a tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from color_references import random_images
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

from fastload.transforms import auto, jitter, mix, values
from fastload.transforms.base import shape_of
from fastload.transforms.draws import Draws

MAKE = {
    "ColorJitter": lambda: jitter.ColorJitter(0.4, 0.4, 0.4, 0.1),
    "GaussianBlur": lambda: jitter.GaussianBlur(3),
    "RandomGrayscale": lambda: jitter.RandomGrayscale(0.5),
    "RandomInvert": jitter.RandomInvert,
    "RandomEqualize": jitter.RandomEqualize,
    "RandomAutocontrast": jitter.RandomAutocontrast,
    "RandomSolarize": lambda: jitter.RandomSolarize(0.5),
    "RandomPosterize": lambda: jitter.RandomPosterize(3),
    "RandomAdjustSharpness": lambda: jitter.RandomAdjustSharpness(2.0),
    "RandAugment": lambda: auto.RandAugment(fill=(0.1, 0.2, 0.3)),
    "TrivialAugmentWide": auto.TrivialAugmentWide,
    "AugMix": auto.AugMix,
    "ToDtype": lambda: values.ToDtype(torch.float16, scale=True),
    "ToNormalized": lambda: values.ToNormalized((0.5,), (0.25,)),
    "MixUp": lambda: mix.MixUp(num_classes=5),
    "CutMix": lambda: mix.CutMix(num_classes=5),
    "MixUpOrCutMix": lambda: mix.MixUpOrCutMix(num_classes=5),
}
NUM = 60


def prepared(name: str, dtype: torch.dtype) -> tuple[Any, list[torch.Tensor], Any]:
    """Return a transform, its arguments and its parameters."""
    transform = MAKE[name]()
    images = random_images((NUM, 3, 9, 8), dtype, 0)
    arguments = [images, torch.arange(NUM) % 5] if isinstance(transform, mix.Mix) else [images]
    draws = Draws(bytes(16), np.arange(NUM))
    return transform, arguments, transform.draw_for(draws, shape_of(images, "NCHW"))


def check(found: Any, expected: Any) -> None:
    for one, other in zip(
        *(value if isinstance(value, tuple) else (value,) for value in (found, expected)), strict=True
    ):
        assert one.shape == other.shape
        assert one.dtype == other.dtype


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])  # all floats are alike to what follows
@pytest.mark.parametrize("name", MAKE)
def test_tensors_without_values_will_do(name, dtype):
    transform, arguments, params = prepared(name, dtype)
    expected = transform(*arguments, params=params)
    # As on any device that is not the CPU.
    check(transform(*(argument.to("meta") for argument in arguments), params=params), expected)
    with FakeTensorMode() as mode:  # as on the CPU
        fake = [mode.from_tensor(argument) for argument in arguments]
        check(transform(*fake, params=tree_map(mode.from_tensor, params)), expected)
