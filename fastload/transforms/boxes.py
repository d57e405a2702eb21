"""Boxes of images, another one for each sample."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .tensors import INTEGERS, on_host


class Boxes(NamedTuple):
    """Parts of images, in pixels; [N] each, int64, or [1]: the same for all."""

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor


def whole_box(height: int, width: int, device: torch.device) -> Boxes:
    """Return the box of all of an image."""
    start = torch.zeros(1, dtype=torch.int64, device=device)
    return Boxes(start, start, start + height, start + width)


def places_of(boxes: Boxes, images: Tensor) -> list[tuple[int, int, int, int, int]]:
    """Return sample, top, left, height and width of each box that has pixels, on the host.

    Raises:
        ValueError: such a box is not inside of the images.
    """
    sides = (side.expand(len(images)).tolist() for side in boxes)
    places = [place for place in zip(range(len(images)), *sides, strict=True) if place[3] > 0 and place[4] > 0]
    for _, top, left, height, width in places:
        if min(top, left) < 0 or top + height > images.shape[2] or left + width > images.shape[3]:
            raise ValueError(
                f"these parameters have a box of {height} x {width} pixels at row {top} and column {left}, outside of "
                f"images of {images.shape[2]} x {images.shape[3]}; use parameters that were drawn for images of this "
                "size"
            )
    return places


def paste(images: Tensor, boxes: Boxes, source: Tensor, rows: Tensor | None = None, *, inplace: bool = False) -> Tensor:
    """Return the images with the pixels of each sample's box from ``source``, which broadcasts to them.

    ``rows``: [N], int64: which sample of the source is whose; None: each its own. A box without pixels changes nothing.
    On the CPU the boxes are copied; one outside of the images is a ValueError. Elsewhere no value is read on the host,
    and each pixel is chosen by a mask. ``inplace``: the images are changed, which are on the CPU.
    """
    if on_host(images) and type(images) is Tensor:  # a subclass such as FakeTensor has no values
        found, bits = images if inplace else images.clone(), INTEGERS[images.element_size()]
        target, pixels = found.view(bits).numpy(), source.to(images.dtype).expand_as(images).view(bits).numpy()
        other = range(len(images)) if rows is None else rows.tolist()
        for sample, top, left, height, width in places_of(boxes, images):
            part = slice(None), slice(top, top + height), slice(left, left + width)
            target[(sample, *part)] = pixels[(other[sample], *part)]
        return found
    inside = [
        (places >= start[:, None]) & (places < (start + length)[:, None])
        for places, start, length in (
            (torch.arange(images.shape[2], device=images.device), boxes.top, boxes.height),
            (torch.arange(images.shape[3], device=images.device), boxes.left, boxes.width),
        )
    ]
    source = source.to(images.dtype) if rows is None else source.index_select(0, rows)
    return torch.where(inside[0][:, None, :, None] & inside[1][:, None, None, :], source, images)
