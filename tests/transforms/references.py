"""Random batches of images in every dtype and memory layout, and what torchvision makes of them sample by sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from fastload.transforms.base import DTYPES, BatchShape
from fastload.transforms.draws import Draws

KEY = bytes(range(16))
MEMORY = ("contiguous", "channels_last", "strided", "turned")
EXACT = (torch.uint8, torch.float32, torch.float64)
TOLERANCES = {
    torch.uint8: 0.0,
    torch.float16: 8 * 2.0**-10,
    torch.bfloat16: 8 * 2.0**-7,
    torch.float32: 1e-5,
    torch.float64: 1e-5,
}


@st.composite
def batches(
    draw: st.DrawFn,
    sides: tuple[int, int] = (1, 13),
    dtypes: tuple[torch.dtype, ...] = DTYPES,
    channels: tuple[int, ...] = (1, 2, 3, 4),
    most: int = 5,
) -> Tensor:
    """Return [N, C, H, W] of one of these dtypes, lying in memory in one of several ways."""
    side = st.integers(*sides)
    shape = (draw(st.integers(1, most)), draw(st.sampled_from(channels)), draw(side), draw(side))
    images = random_images(shape, draw(st.sampled_from(dtypes)), draw(st.integers(0, 2**32)))
    return lain_out(images, draw(st.sampled_from(MEMORY)))


@st.composite
def coloured(draw: st.DrawFn, **options: Any) -> Tensor:
    """Return batches of one channel or three, some of few levels: equal neighbours, grey pixels, uniform channels."""
    images = draw(batches(**{"sides": (1, 40), "channels": (1, 3), **options}))
    if draw(st.booleans()):
        levels = draw(st.sampled_from([1, 2, 4]))
        images = images // 100 * 85 if images.dtype == torch.uint8 else (images * levels).floor().div(levels)
    if draw(st.booleans()):
        images[0] = images[0, :1]  # grey
    return images


def random_images(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    """Return random images: uint8 of all values, floats of [0, 1] of as many."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    return images if dtype == torch.uint8 else (images.double() / 255).to(dtype)


def lain_out(images: Tensor, layout: str) -> Tensor:
    """Return the same images, lying in memory in another way."""
    if layout == "channels_last":
        return images.contiguous(memory_format=torch.channels_last)
    if layout == "strided":
        wide = torch.zeros((*images.shape[:3], images.shape[3] * 2), dtype=images.dtype)
        wide[..., ::2] = images
        return wide[..., ::2]
    if layout == "turned":
        return images.transpose(2, 3).contiguous().transpose(2, 3)
    return images


def made_images(
    seed: int, shape: tuple[int, ...], dtype: torch.dtype = torch.uint8, memory: str = "contiguous"
) -> Tensor:
    """Return random images that lie in memory in a way."""
    return lain_out(random_images(shape, dtype, seed), memory)


def assert_near(found: Tensor, expected: Tensor, *, tolerance: float | None = None) -> None:
    """Check shape, dtype and values, to the tolerance of the dtype."""
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    worst = (found.double() - expected.double()).abs().max().item()
    assert worst <= (TOLERANCES[found.dtype] if tolerance is None else tolerance)


def assert_same_distribution(drawn: Any, expected: Any) -> None:
    """Check that two samples may be of one distribution: 1 in 10,000 pairs that are would fail, these ones never."""
    drawn, expected = np.sort(np.ravel(drawn)), np.sort(np.ravel(expected))
    places = np.concatenate([drawn, expected])
    shares = [np.searchsorted(sample, places, side="right") / len(sample) for sample in (drawn, expected)]
    # The distance of Kolmogorov and Smirnov.
    assert np.abs(shares[0] - shares[1]).max() < 2.23 * np.sqrt(1 / len(drawn) + 1 / len(expected))


def generators() -> st.SearchStrategy[torch.Generator]:
    return st.integers(0, 2**31).map(lambda seed: torch.Generator().manual_seed(seed))


def one_by_one(images: Tensor, function: Callable[..., Tensor], params: dict[str, Tensor]) -> Tensor:
    """Return what a function of one image and its parameters, Python numbers by name, makes of each."""
    rows = [{name: values[sample].tolist() for name, values in params.items()} for sample in range(len(images))]
    return torch.stack([function(image.clone(), **row) for image, row in zip(images, rows, strict=True)])


def keyed(num: int, first: int = 0) -> Draws:
    """Return the draws of samples with keys."""
    return Draws(KEY, np.arange(first, first + num, dtype=np.int64))


def many_params(transform: Any, num: int = 20_000, height: int = 20, width: int = 30) -> Any:
    """Return the parameters of many samples, always the same."""
    return transform.draw_for(keyed(num), BatchShape(num, 3, height, width))


def drawn(transform: Any, num: int, height: int, width: int) -> dict[str, np.ndarray]:
    return {name: values.numpy() for name, values in many_params(transform, num, height, width).items()}


def elsewhere(transform: Any, *images: Tensor, params: Any) -> Any:
    """Return what a transform makes of images where no value may be read, as on other devices."""
    with mock.patch.object(torch.compiler, "is_compiling", return_value=True):
        return transform(*images, params=params)


def halfway(matrix: Tensor, images: Tensor) -> Tensor:
    """Return [N, H, W]: where it is for rounding to say which of two pixels is the nearest that a matrix points at."""
    height, width = images.shape[2:]
    x = torch.arange(width, dtype=torch.float64) - (width - 1) / 2
    y = torch.arange(height, dtype=torch.float64)[:, None] - (height - 1) / 2
    is_halfway = torch.zeros((len(images), height, width), dtype=torch.bool)
    for axis, side in ((0, width), (1, height)):
        by_x, by_y, constant = (matrix[:, axis, place, None, None] for place in range(3))
        places = by_x * x + by_y * y + constant + (side - 1) / 2
        is_halfway |= (places - places.floor() - 0.5).abs() < 1e-4
    return is_halfway
