"""A picture of what a loader's batched transform does: each sample as it is, and as it comes out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..device.prefetch import check_count
from ..errors import ConfigError
from .base import Transform
from .batches import images_of, on_batches
from .values import Normalize, ToNormalized

_GAP = 4
_WHITE = 255


def preview(
    loader: Any, path: str | os.PathLike[str] = "preview.png", *, num_samples: int = 8, num_versions: int = 7
) -> Path:
    """Write a PNG: a row for each sample, first as the dataset gives it, then augmented as in that many epochs.

    Args:
        loader: a :class:`fastload.DataLoader` with a ``batch_transform`` of :mod:`fastload.transforms`. It is not
            changed: a copy of it is iterated, without workers.
        path: where to; a file there is replaced.
        num_samples: rows, at most as many as the first batch has samples.
        num_versions: augmented versions of each.

    Values are shown as they are: uint8, or floats in [0, 1]; what ``Normalize`` did is undone first. Images of another
    size than the first one's are scaled to it.

    Returns:
        The path.

    Raises:
        ConfigError: the loader has no such transform, or a number is below 1.
    """
    transform = getattr(loader, "batch_transform", None)
    if not isinstance(transform, Transform):
        raise ConfigError(
            f"preview shows what a batch_transform of fastload.transforms does, and this loader has {transform!r}"
        )
    num_samples, num_versions = check_count("num_samples", num_samples), check_count("num_versions", num_versions)
    batch, draws_of_version = loader._batch_on_host()
    apply = on_batches(transform)
    columns = [_shown(images_of(batch)[:num_samples], transform, before=True)]
    for version in range(num_versions):
        made = apply(batch, draws_of_version(version))
        columns.append(_shown(images_of(made)[:num_samples], transform, before=False))
    height, width = columns[0].shape[2:]
    rows = torch.full(
        (len(columns[0]) * (height + _GAP) + _GAP, len(columns) * (width + _GAP) + _GAP, 3),
        _WHITE,
        dtype=torch.uint8,
        device="cpu",
    )
    for column, images in enumerate(columns):
        for row, image in enumerate(_sized(images, height, width)):
            top, left = row * (height + _GAP) + _GAP, column * (width + _GAP) + _GAP
            rows[top : top + height, left : left + width] = image.permute(1, 2, 0)
    from PIL import Image

    written = Path(path)
    Image.fromarray(rows.numpy()).save(written, format="PNG")
    return written


def _shown(images: Tensor, transform: Transform, *, before: bool) -> Tensor:
    """Return [N, 3, H, W], uint8."""
    if transform.layout == "NHWC":
        images = images.permute(0, 3, 1, 2)
    images = images.detach().cpu()
    if not before:
        images = _denormalized(images, transform)
    if images.is_floating_point():
        images = images.float().clamp(0, 1).mul(255).round().to(torch.uint8)
    return images[:, :1].expand(-1, 3, -1, -1) if images.shape[1] != 3 else images


def _denormalized(images: Tensor, transform: Transform) -> Tensor:
    for member in reversed(list(transform.modules())):
        if isinstance(member, (Normalize, ToNormalized)):
            std, mean = (
                torch.tensor(values, dtype=torch.float32, device="cpu").view(1, -1, 1, 1)
                for values in (member.std, member.mean)
            )
            images = images.float() * std + mean
            break
    return images


def _sized(images: Tensor, height: int, width: int) -> Tensor:
    if images.shape[2:] == (height, width):
        return images
    return functional.interpolate(images.float(), (height, width), mode="nearest").to(torch.uint8)


__all__ = ["preview"]
