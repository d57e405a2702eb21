"""MixUp and CutMix: the two samples of a pair are mixed with each other, and their labels likewise.

Pairs are the positions 2j and 2j + 1 of the batch, so partners are on one rank as long as the ranks' parts are even. A
pair has one weight (and one box), drawn with the key of its first sample; an odd last sample is not changed.
torchvision mixes each sample with the one before it, and draws one weight for the batch; the formulas are the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..base.checks import check_count
from .arguments import check_number, check_probability
from .base import BatchShape, Params, Transform, tensor_of
from .boxes import Boxes, paste
from .draws import Floats, Integers, Stream
from .tensors import in_parts, narrowed, wide_dtype


class Mix(Transform):
    """Common base of MixUp and CutMix: labels, and pairs.

    float32 and float64 are mixed as they are, lower dtypes in float32, and so is uint8, which torchvision's MixUp does
    not take; it is rounded to the nearest. Labels are classes, [N], integers, or their probabilities,
    [N, num_classes], floats. The result has probabilities, float32 or the dtype given. A class that is not below
    ``num_classes`` raises torch's IndexError or RuntimeError.

    If you use ``transform`` for the images alone, use ``transform_labels`` with the same parameters too.
    """

    mixes = True

    def __init__(self, num_classes: int | None) -> None:
        super().__init__()
        self.num_classes = None if num_classes is None else check_count("num_classes", num_classes)

    def transform_labels(self, labels: Tensor, params: Params) -> Tensor:
        if labels.ndim == 1:
            assert self.num_classes is not None  # checked
            soft = torch.zeros((len(labels), self.num_classes), dtype=torch.float32, device=labels.device)
            soft.scatter_(1, labels.long()[:, None], 1.0)
        else:
            soft = labels if labels.is_floating_point() else labels.float()
        own = params["label_weight"].to(soft.dtype)[:, None]
        return soft.index_select(0, _partners(soft)).mul_(1 - own).add_(soft * own)

    def check_labels(self, labels: object, num_images: int) -> None:
        name = type(self).__name__
        if not isinstance(labels, Tensor):
            raise TypeError(
                f"{name} takes the labels as a tensor, got {type(labels).__name__}; call with (images, labels): it "
                "mixes both"
            )
        if labels.ndim not in (1, 2) or len(labels) != num_images:
            raise ValueError(
                f"{name} takes labels [N] or [N, num_classes] for {num_images} images, got shape {tuple(labels.shape)}"
            )
        if labels.ndim == 1 and (labels.is_floating_point() or labels.dtype == torch.bool):
            raise TypeError(f"{name} takes labels [N] of integers, the classes, got {labels.dtype}")
        if labels.ndim == 1 and self.num_classes is None:
            raise ValueError(f"{name} needs num_classes for labels that are classes, got num_classes=None")
        if labels.ndim == 2 and self.num_classes not in (None, labels.shape[1]):
            raise ValueError(f"{name} has num_classes={self.num_classes}, got labels of shape {tuple(labels.shape)}")


class MixUp(Mix):
    """Mix the images of each pair, weight * image + (1 - weight) * partner, and their labels.

    Samples 2j and 2j + 1 of a batch are a pair.
    For the same weight the result equals torchvision's in float32 and float64; in float16 and bfloat16 it is within 4
    units in the last place.

    Args:
        alpha: the weight is distributed as Beta(alpha, alpha); above 0.
        num_classes: number of classes, for labels [N] of integers; None: labels are always [N, classes] of
            probabilities.

    Drawn: ``weight`` and ``label_weight`` [N], float32, the same number; 1 for an odd last sample.

    Source: Zhang et al., "mixup: Beyond empirical risk minimization" (2018).
    """

    def __init__(self, *, alpha: float = 1.0, num_classes: int | None = None) -> None:
        super().__init__(num_classes)
        self.alpha = check_number("alpha", alpha, above=0)

    def draw(self, stream: Stream, shape: BatchShape) -> Params:
        weight = tensor_of(_of_pairs(stream.beta(self.alpha), 1.0))
        return {"weight": weight, "label_weight": weight}

    def transform(self, images: Tensor, params: Params) -> Tensor:
        return _weighted(images, params["weight"])


class CutMix(Mix):
    """Replace a box of each image by its partner's, and mix the labels by the box's share of the area.

    Samples 2j and 2j + 1 of a batch are partners. For the same box images equal torchvision's.

    Args:
        alpha: the share of the image that is kept is distributed as Beta(alpha, alpha), before the box is clipped;
            above 0.
        num_classes: number of classes, for labels [N] of integers; None: labels are always [N, classes] of
            probabilities.

    Drawn: ``box`` [N, 4], int64: left, top, right, bottom, in pixels, the last two exclusive; ``label_weight``
    [N], float32: the share that is kept. An odd last sample has an empty box.

    Source: Yun et al., "CutMix: Regularization strategy to train strong classifiers" (2019).
    """

    def __init__(self, *, alpha: float = 1.0, num_classes: int | None = None) -> None:
        super().__init__(num_classes)
        self.alpha = check_number("alpha", alpha, above=0)

    def draw(self, stream: Stream, shape: BatchShape) -> Params:
        box, kept = _boxes(stream, stream.beta(self.alpha), shape)
        return {"box": tensor_of(_of_pairs(box, 0), torch.int64), "label_weight": tensor_of(_of_pairs(kept, 1.0))}

    def transform(self, images: Tensor, params: Params) -> Tensor:
        return _pasted(images, params["box"])


class MixUpOrCutMix(Mix):
    """Apply CutMix to some pairs and MixUp to the others; torchvision's recipes choose one for a whole batch.

    Args:
        mixup_alpha: ``alpha`` of ``MixUp``.
        cutmix_alpha: ``alpha`` of ``CutMix``.
        cutmix_p: the probability of CutMix; otherwise MixUp.
        num_classes: number of classes, for labels [N] of integers; None: labels are always [N, classes] of
            probabilities.

    Drawn: ``weight`` of MixUp, 1 for the pairs of CutMix; ``box`` of CutMix, empty for the pairs of MixUp;
    ``label_weight``.
    """

    def __init__(
        self,
        *,
        mixup_alpha: float = 1.0,
        cutmix_alpha: float = 1.0,
        cutmix_p: float = 0.5,
        num_classes: int | None = None,
    ) -> None:
        super().__init__(num_classes)
        self.mixup_alpha = check_number("mixup_alpha", mixup_alpha, above=0)
        self.cutmix_alpha = check_number("cutmix_alpha", cutmix_alpha, above=0)
        self.cutmix_p = check_probability("cutmix_p", cutmix_p)

    def draw(self, stream: Stream, shape: BatchShape) -> Params:
        cut = stream.chance(self.cutmix_p)
        weight = np.where(cut, 1.0, stream.beta(self.mixup_alpha))
        box, kept = _boxes(stream, stream.beta(self.cutmix_alpha), shape)
        return {
            "weight": tensor_of(_of_pairs(weight, 1.0)),
            "box": tensor_of(_of_pairs(np.where(cut[:, None], box, 0), 0), torch.int64),
            "label_weight": tensor_of(_of_pairs(np.where(cut, kept, weight), 1.0)),
        }

    def transform(self, images: Tensor, params: Params) -> Tensor:
        # A weight of 1 leaves an image as it is, and so does an empty box.
        return _pasted(_weighted(images, params["weight"]), params["box"])


def _of_pairs(values: Any, unpaired: float) -> Any:
    """Return [N, ...] with the value of each pair's first sample for both, and of an odd last one, ``unpaired``."""
    paired = values[np.arange(len(values)) // 2 * 2]
    if len(values) % 2:
        paired[-1] = unpaired
    return paired


def _partners(batch: Tensor) -> Tensor:
    """Return [N]: 1, 0, 3, 2, ...; an odd last one is its own."""
    return torch.arange(len(batch), device=batch.device).bitwise_xor_(1).clamp_(max=len(batch) - 1)


def _boxes(stream: Stream, kept: Floats, shape: BatchShape) -> tuple[Integers, Floats]:
    """Return [N, 4] boxes about random centres, clipped to the image, and the share of the image outside of each."""
    size = np.array([shape.width, shape.height])
    unit = stream.uniform(count=2)
    centre = np.minimum(np.floor(unit * size), size - 1).astype(np.int64)
    half = (0.5 * np.sqrt(1 - kept)[:, None] * size).astype(np.int64)
    low, high = np.maximum(centre - half, 0), np.minimum(centre + half, size)
    area = np.prod(high - low, axis=1) / np.prod(size)
    return np.concatenate([low, high], axis=1), 1 - area


@in_parts
def _weighted(images: Tensor, weights: Tensor) -> Tensor:
    wide = wide_dtype(images.dtype)
    own = weights.to(wide).view(-1, 1, 1, 1)
    partners = images.index_select(0, _partners(images))  # parts are of whole pairs
    mixed = (partners.to(wide) * (1 - own)).add_(images.to(wide) * own)
    return narrowed(mixed.round_() if images.dtype == torch.uint8 else mixed, images.dtype)


def _pasted(images: Tensor, boxes: Tensor) -> Tensor:
    left, top, right, bottom = boxes.unbind(1)
    return paste(images, Boxes(top, left, bottom - top, right - left), images, _partners(images))
