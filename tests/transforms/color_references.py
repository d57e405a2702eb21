"""Random batches of images, and what torchvision makes of them sample by sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

DTYPES = (torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float64)
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
    *,
    dtypes: tuple[torch.dtype, ...] = DTYPES,
    channels: tuple[int, ...] = (1, 3),
    smallest: int = 1,
    largest: int = 40,
    most: int = 5,
) -> Tensor:
    """Return [N, C, H, W] of one of these dtypes, lying in memory in one of several ways."""
    shape = (
        draw(st.integers(1, most)),
        draw(st.sampled_from(channels)),
        draw(st.integers(smallest, largest)),
        draw(st.integers(smallest, largest)),
    )
    images = random_images(shape, draw(st.sampled_from(dtypes)), draw(st.integers(0, 2**32)))
    if draw(st.booleans()):  # few levels: equal neighbours, grey pixels, uniform channels
        levels = draw(st.sampled_from([1, 2, 4]))
        images = (images.double() * levels).floor().div(levels).to(images.dtype)
        if images.dtype == torch.uint8:
            images = images // 100 * 85
    if draw(st.booleans()):
        images[0] = images[0, :1]  # grey
    return lain_out(images, draw(st.sampled_from(["contiguous", "channels_last", "strided", "turned"])))


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


def sample_by_sample(function: Callable[..., Any], images: Tensor, *values: Tensor) -> Tensor:
    """Return what a function of one image [C, H, W] and numbers makes of each."""
    return torch.stack(
        [function(image.contiguous(), *(value[row].item() for value in values)) for row, image in enumerate(images)]
    )


def assert_near(found: Tensor, expected: Tensor, *, tolerance: float | None = None) -> None:
    """Check shape, dtype and values, to the tolerance of the dtype."""
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    if tolerance is None:
        tolerance = TOLERANCES[found.dtype]
    worst = (found.double() - expected.double()).abs().max().item()
    assert worst <= tolerance


def furthest(drawn: Any, expected: Any) -> float:
    """Return the distance of Kolmogorov and Smirnov between two samples of a distribution."""
    drawn, expected = np.sort(np.ravel(drawn)), np.sort(np.ravel(expected))
    places = np.concatenate([drawn, expected])
    shares = [np.searchsorted(sample, places, side="right") / len(sample) for sample in (drawn, expected)]
    return float(np.abs(shares[0] - shares[1]).max())


def assert_same_distribution(drawn: Any, expected: Any) -> None:
    """Check that two samples may be of one distribution: 1 in 10,000 pairs that are would fail, these ones never."""
    drawn, expected = np.ravel(drawn), np.ravel(expected)
    limit = 2.23 * np.sqrt(1 / len(drawn) + 1 / len(expected))
    assert furthest(drawn, expected) < limit
