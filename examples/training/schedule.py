"""What depends on the step alone: the learning rate, the image size, and the micro-batches.

Pure functions, so a checkpoint needs only the step, and a resumed run has the same values.
"""

from __future__ import annotations

import itertools
import math

from .recipe import Recipe


def lr_factor(step: int, num_steps: int, recipe: Recipe) -> float:
    """Return the learning rate of a step, as a fraction of the peak ``recipe.lr``.

    It rises linearly from ``first_lr`` (before the first step) to 1 and falls to ``final_lr`` (after the last step).
    """
    peak = int(num_steps * recipe.warmup)
    if step < peak:
        return recipe.first_lr + (1 - recipe.first_lr) * (step + 1) / (peak + 1)
    progress = (step - peak) / (num_steps - peak)
    left = {"cosine": 0.5 * (1 + math.cos(math.pi * progress)), "linear": 1 - progress, "constant": 1.0}
    return recipe.final_lr + (1 - recipe.final_lr) * left[recipe.schedule]


def image_size(epoch: int, recipe: Recipe) -> int:
    """Return the side of the training images of an epoch, in pixels: progressive resizing.

    It is ``first_image_size`` in the first third of the epochs and ``image_size`` in the last; in between it grows in
    multiples of 8 pixels, since every other size is compiled anew. With a ``first_image_size`` of 0 it is constant.

    Source: ffcv-imagenet's recipes, which go from 160 to 192 pixels.
    """
    first, last, epochs = recipe.first_image_size, recipe.image_size, recipe.epochs
    begin, end = epochs // 3, 2 * epochs // 3
    if first == 0 or epoch >= end:
        return last
    if epoch < begin:
        return first
    size = first + (last - first) * (epoch - begin + 1) / (end - begin + 1)
    return min(max(round(size / 8) * 8, min(first, last)), max(first, last))


def micro_batches(num_images: int, max_size: int | None) -> list[slice]:
    """Cut this rank's images of a step into micro-batches, whose gradients are accumulated.

    Their sizes differ by one at most, since batch normalisation over a small remainder would be noise. The gradient of
    each must be weighted by its share of the images.

    Returns:
        Slices in order, as few as possible, which together cover all images.
    """
    count = 1 if max_size is None else -(-num_images // max_size)
    ends = [num_images * number // count for number in range(count + 1)]
    return [slice(begin, end) for begin, end in itertools.pairwise(ends)]
