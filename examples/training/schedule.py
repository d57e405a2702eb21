"""What depends on how far the training is: the learning rate, the images' size, and how a step is cut into pieces.

Pure functions of counts. So nothing of this needs to be saved but the step, and a resumed run has the same values.
"""

from __future__ import annotations

import itertools
import math


def lr_factor(step: int, num_steps: int, *, warmup: float, shape: str, final: float, first: float = 0.0) -> float:
    """Return the learning rate of a step as a share of the highest.

    It rises in a line from ``first``, which lies before the first step, is 1 at its peak, and falls to ``final`` behind
    the last step.

    Args:
        step: 0 to ``num_steps - 1``.
        num_steps: of the whole training.
        warmup: share of them in which it rises, at least 0 and below 1.
        shape: how it falls: ``"cosine"``, ``"linear"`` or ``"constant"``, which does not.
        final: where to.
        first: where it rises from.
    """
    peak = int(num_steps * warmup)
    if step < peak:
        return first + (1 - first) * (step + 1) / (peak + 1)
    passed = (step - peak) / (num_steps - peak)
    left = {"cosine": 0.5 * (1 + math.cos(math.pi * passed)), "linear": 1 - passed, "constant": 1.0}[shape]
    return final + (1 - final) * left


def image_size(epoch: int, epochs: int, *, first: int, last: int, multiple: int = 8) -> int:
    """Return the side of the training images of an epoch, in pixels: progressive resizing.

    It is ``first`` for a third of the epochs, grows in the second third, and is ``last`` from there on; in between it
    is rounded to a multiple, so that there are few different ones: each is compiled anew. A ``first`` of 0: always
    ``last``.

    Source: the ramp of ffcv-imagenet's recipes, 160 to 192 pixels.
    """
    begin, end = epochs // 3, 2 * epochs // 3
    if first == 0 or epoch >= end:
        return last
    if epoch < begin:
        return first
    size = first + (last - first) * (epoch - begin + 1) / (end - begin + 1)
    low, high = min(first, last), max(first, last)
    return min(max(round(size / multiple) * multiple, low), high)


def pieces(num_images: int, most: int | None) -> list[slice]:
    """Cut the images of a step into what goes through the network at once: the windows of gradient accumulation.

    Here the window is the step, so it is never short. (Where a window is a number of the loader's batches, the last one
    of an epoch is short unless their numbers divide; with the wrong divisor its gradient is too small, and loops that
    look for "every k-th batch" make no step of it, or several.) Pieces differ by one image at most, since batch
    normalisation over a rest of one or two would be noise; each counts by its share of the images.

    Args:
        num_images: of this process in this step, at least 1.
        most: images of a piece at most; None: any number.

    Returns:
        Slices in order, which together are all images; as few as may be.
    """
    count = 1 if most is None else -(-num_images // most)
    ends = [num_images * number // count for number in range(count + 1)]
    return [slice(begin, end) for begin, end in itertools.pairwise(ends)]
