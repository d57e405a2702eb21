"""Random images in every dtype and memory layout, and torchvision applied sample by sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from fastload.transforms.base import DTYPES, BatchShape
from fastload.transforms.draws import Draws
from fastload.transforms.gather import _gather, map_of, steps_of

KEY = bytes(range(16))
MEMORY = ("contiguous", "channels_last", "strided", "transposed")


def made_images(
    seed: int, shape: tuple[int, int, int, int], dtype: torch.dtype = torch.uint8, memory: str = "contiguous"
) -> Tensor:
    """Return images of noise: all of uint8's values, or floats in [0, 1)."""
    generator = torch.Generator().manual_seed(seed)
    num, channels, height, width = shape
    if memory == "strided":
        return made_images(seed, (num, channels, 2 * height, 3 * width), dtype)[:, :, ::2, 1::3]
    if memory == "transposed":
        return made_images(seed, (num, channels, width, height), dtype).transpose(2, 3)
    if dtype == torch.uint8:
        images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    else:
        images = torch.rand(shape, generator=generator).to(dtype)
    return images.contiguous(memory_format=torch.channels_last) if memory == "channels_last" else images


@st.composite
def batches(
    draw: Any,
    sides: tuple[int, int] = (1, 13),
    dtypes: tuple[torch.dtype, ...] = DTYPES,
    channels: tuple[int, ...] = (1, 2, 3, 4),
) -> Tensor:
    """Batches of every dtype, size and memory layout."""
    side = st.integers(*sides)
    shape = (draw(st.integers(1, 5)), draw(st.sampled_from(channels)), draw(side), draw(side))
    memory = draw(st.sampled_from(MEMORY))
    return made_images(draw(st.integers(0, 2**31)), shape, draw(st.sampled_from(dtypes)), memory)


def generators() -> st.SearchStrategy[torch.Generator]:
    return st.integers(0, 2**31).map(lambda seed: torch.Generator().manual_seed(seed))


def one_by_one(images: Tensor, function: Callable[..., Tensor], params: dict[str, Tensor]) -> Tensor:
    """Return what a function of one image and its parameters, Python numbers by name, makes of each."""
    rows = [{name: values[sample].tolist() for name, values in params.items()} for sample in range(len(images))]
    return torch.stack([function(image.clone(), **row) for image, row in zip(images, rows, strict=True)])


def keyed(num: int, first: int = 0) -> Draws:
    """Return the draws of samples with keys."""
    return Draws(KEY, np.arange(first, first + num, dtype=np.int64))


def drawn(transform: Any, num: int, height: int, width: int, channels: int = 3) -> dict[str, np.ndarray]:
    """Return the parameters of many samples, always the same."""
    params = transform.draw_for(keyed(num), BatchShape(num, channels, height, width))
    return {name: values.numpy() for name, values in params.items()}


def resized_by(way: Any, transform: Any, images: Tensor, params: Any, flip: Tensor | None = None) -> Tensor:
    """Return what a transform resizes by ``resize_boxes``, as on the CPU, or ``resample``, as elsewhere."""
    shape = BatchShape(*images.shape)
    boxes, size = transform._boxes(params, shape, images.device), transform.shape_after(shape)[2:]
    return way(images, boxes, size, transform.interpolation, transform.antialias, flip)


def gathered(transform: Any, images: Tensor, params: Any) -> Tensor:
    """Return what a transform that only moves pixels does, by a gather, as elsewhere than on the CPU."""
    rows, cols, after = steps_of([transform], [params], BatchShape(*images.shape), images.device)
    return _gather(images, map_of(rows, cols, after, images.device), transform.map_fill)


def check_independence(transform: Any, images: Tensor) -> None:
    """Check that each sample's result is the same alone, together and in another order, and the input as it was."""
    num = len(images)
    before = images.clone()
    draws = keyed(num, 100)
    together = transform(images, draws=draws)
    backwards = torch.arange(num - 1, -1, -1)
    assert torch.equal(transform(images[backwards], draws=draws.of(backwards.numpy()))[backwards], together)
    for sample in range(num):
        alone = transform(images[sample : sample + 1], draws=draws.of([sample]))
        assert torch.equal(alone, together[sample : sample + 1])
    assert torch.equal(images, before)


def ks_distance(ours: Any, theirs: Any) -> float:
    """Return the largest difference of two empirical distributions (Kolmogorov and Smirnov), ties or not."""
    ours, theirs = np.sort(np.asarray(ours, dtype=float)), np.sort(np.asarray(theirs, dtype=float))
    places = np.concatenate([ours, theirs])
    first = np.searchsorted(ours, places, side="right") / len(ours)
    second = np.searchsorted(theirs, places, side="right") / len(theirs)
    return float(np.abs(first - second).max())


def ks_limit(ours: int, theirs: int) -> float:
    """Return the distance that one in 10,000 pairs of samples of one distribution exceeds."""
    return float(2.23 * np.sqrt((ours + theirs) / (ours * theirs)))


def source_places(matrix: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the columns and rows, [N, H, W] each and float64, that a matrix in the affine family's sense points at."""
    height, width = images.shape[2:]
    x = torch.arange(width, dtype=torch.float64) - (width - 1) / 2
    y = torch.arange(height, dtype=torch.float64)[:, None] - (height - 1) / 2
    col, row = (
        matrix[:, axis, 0, None, None] * x + matrix[:, axis, 1, None, None] * y + matrix[:, axis, 2, None, None]
        for axis in (0, 1)
    )
    return col + (width - 1) / 2, row + (height - 1) / 2


def halfway(matrix: Tensor, images: Tensor) -> Tensor:
    """Return [N, H, W]: where it is for rounding to say which of two pixels is the nearest."""
    col, row = source_places(matrix, images)
    return ((col - col.floor() - 0.5).abs() < 1e-4) | ((row - row.floor() - 0.5).abs() < 1e-4)


def resampled(images: Tensor, matrix: Tensor, interpolation: str, fill: float) -> Tensor:
    """Return the images resampled in float64, in plain steps, as torchvision defines it where there is a fill."""
    height, width = images.shape[2:]
    col, row = source_places(matrix, images)
    if interpolation == "nearest":
        taps = [(col.round(), row.round(), torch.ones_like(col))]
    else:
        taps = [
            (
                col.floor() + right,
                row.floor() + down,
                (1 - (col - col.floor() - right).abs()) * (1 - (row - row.floor() - down).abs()),
            )
            for right in (0, 1)
            for down in (0, 1)
        ]
    found = torch.zeros_like(images, dtype=torch.float64)
    share = torch.zeros_like(col)
    samples = torch.arange(len(images))[:, None, None]
    for tap_col, tap_row, weight in taps:
        inside = (tap_col >= 0) & (tap_col < width) & (tap_row >= 0) & (tap_row < height)
        weight = weight * inside
        columns, rows = tap_col.clamp(0, width - 1).long(), tap_row.clamp(0, height - 1).long()
        found += images.double()[samples, :, rows, columns].permute(0, 3, 1, 2) * weight[:, None]
        share += weight
    share = share[:, None]
    return (found - fill) * share + fill
