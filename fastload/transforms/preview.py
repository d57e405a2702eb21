"""A picture of what a loader's batched transform does: each sample as it is, and as it comes out."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from ..errors import ConfigError
from .arguments import check_integer
from .base import Transform
from .batches import images_of, on_batches
from .draws import Draws
from .values import Normalize, ToNormalized

_GAP = 4
_WHITE = 255


class Loader(Protocol):
    """What ``preview`` uses of a ``fastload.DataLoader``."""

    batch_transform: Callable[[Any], Any] | None

    def _batch_on_host(self) -> tuple[Any, Callable[[int], Draws]]: ...


def preview(
    loader: Loader, path: str | os.PathLike[str] = "preview.png", *, num_samples: int = 8, num_versions: int = 7
) -> Path:
    """Write a picture (PNG) with a row for each sample: the original, then augmented versions of several epochs.

    Args:
        loader: a ``fastload.DataLoader`` with a ``batch_transform`` of ``fastload.transforms``. It is not
            changed: a copy of it is iterated, without workers.
        path: of the file; a file there is replaced.
        num_samples: number of rows, at most as many as the first batch has samples.
        num_versions: number of augmented versions of each sample.

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
    check_integer("num_versions", num_versions, 1)
    num_samples = check_integer("num_samples", num_samples, 1)
    batch, draws_of_version = loader._batch_on_host()
    apply = on_batches(transform)
    normalize = [one for one in transform.modules() if isinstance(one, (Normalize, ToNormalized))][-1:]
    columns = [_shown(images_of(batch)[:num_samples], transform, [])]
    for version in range(num_versions):
        changed = apply(batch, draws_of_version(version))
        columns.append(_shown(images_of(changed)[:num_samples], transform, normalize))
    size = columns[0].shape[2:]
    tiles = torch.stack([_sized(images, size) for images in columns], dim=1).flatten(0, 1)
    from PIL import Image
    from torchvision.utils import make_grid

    grid = make_grid(tiles, nrow=len(columns), padding=_GAP, pad_value=_WHITE)
    written = Path(path)
    Image.fromarray(grid.permute(1, 2, 0).numpy()).save(written, format="PNG")
    return written


def _shown(images: Tensor, transform: Transform, undone: Sequence[Normalize | ToNormalized]) -> Tensor:
    """Return [N, 3, H, W], uint8, of images to which the transforms in ``undone`` were applied."""
    images = (images.permute(0, 3, 1, 2) if transform.layout == "NHWC" else images).detach().cpu()
    for normalize in undone:
        std, mean = (torch.tensor(values, device="cpu").view(1, -1, 1, 1) for values in (normalize.std, normalize.mean))
        images = images.float() * std.float() + mean.float()
    if images.is_floating_point():
        images = images.float().clamp(0, 1).mul(255).round().to(torch.uint8)
    return images[:, :1].expand(-1, 3, -1, -1) if images.shape[1] != 3 else images


def _sized(images: Tensor, size: Sequence[int]) -> Tensor:
    if images.shape[2:] == size:
        return images
    return functional.interpolate(images.float(), tuple(size), mode="nearest").to(torch.uint8)
