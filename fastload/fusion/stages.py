"""The stages of a pipeline: which steps are done together, with which parameters.

::

    files    [ cut: decode, crop, resize, flip ]   [ sample by sample  ] [ values ] [ erasing ]
    arrays   [ block: crops and flips of a chunk ] [ sample by sample  ] [ values ] [ erasing ]

Parameters are drawn from the samples' keys by one vectorised call for each step. All of it is pure, and the same in
every chunk, batch and worker, for every decoder, on the host and on the device.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..keys.seeding import BATCH, Keys
from ..native.rows import Box, Cut
from ..transforms.base import DTYPES, BatchShape
from ..transforms.compose import numbered
from ..transforms.crop import CenterCrop, RandomCrop, RandomHorizontalFlip, RandomVerticalFlip, centre_starts
from ..transforms.draws import Draws
from ..transforms.gather import MovingTransform
from ..transforms.resize import RandomResizedCrop, Resize
from ..transforms.sample import Drawn, SampleTransform, Sizes, State, Unchanged
from .conversions import PILToTensor, ToImage, ToPureTensor
from .sources import SampleSource

_LOW = (1 << 64) - 1


class Stages(NamedTuple):
    """Places in the list of steps where each stage ends; the next one begins there."""

    head: int
    """The end of the cut or block."""
    cropped: bool
    """Whether the next step is a RandomResizedCrop of a tensor, of which the cut does the crop."""
    per_sample: int
    """The end of the steps that torchvision's functions do, sample by sample."""
    values: int
    """The end of the steps that are one function of a value."""
    direct: bool
    """Whether the result is written into the batch: all steps are known, and all results have one size."""


def stages_of(
    source: SampleSource, steps: Sequence[SampleTransform], states: Sequence[State], *, whole: bool
) -> Stages:
    """Return the stages of the workers' steps. ``whole``: no unknown transform follows, and the result is a tensor."""
    count = len(steps)
    if not whole or size_after(source, steps) is None:
        head = num_cut(steps, states, through=False) if source.size is None else 0
        return Stages(head, False, count, count, direct=False)
    values = count
    while values and steps[values - 1].role == "erase":
        values -= 1
    per_sample = values
    while per_sample and steps[per_sample - 1].role == "value":
        per_sample -= 1
    if states[per_sample].dtype.is_floating_point:  # values are a function of 256 levels
        per_sample = values = count
    if source.size is None:
        head = num_cut(steps, states, through=True)
    else:
        head = _num_gathered(source, steps, states)
    head = min(head, values)
    cropped = (
        source.size is None
        and head < per_sample
        and isinstance(steps[head], RandomResizedCrop)
        and states[head].kind != "PIL"
        and not any(step.role == "resize" for step in steps[:head])
    )
    return Stages(head, cropped, max(per_sample, head), values, direct=True)


def size_after(source: SampleSource, steps: Sequence[SampleTransform]) -> tuple[int, int] | None:
    """Return the size of all images after these steps; None if they may differ."""
    size = source.size
    for step in steps:
        if size is not None:
            size = step.size_after(*size)
        elif isinstance(own := getattr(step, "size", None), tuple):
            size = own
    return size


def _num_gathered(source: SampleSource, steps: Sequence[SampleTransform], states: Sequence[State]) -> int:
    """Return how many of the first steps only move pixels of the whole array, and can be batched."""
    size = source.size
    for place, (step, state) in enumerate(zip(steps, states, strict=False)):
        if size is None or state.dtype.is_floating_point or step.role == "erase" or not fits(step, state, size):
            return place
        moves = all(isinstance(one, MovingTransform) and one.only_moves for one in step.batched(state) or [])
        if not moves or step.state_after(state)[1:] != state[1:]:
            return place
        size = step.size_after(*size)
    return len(steps)


def fits(step: SampleTransform, state: State, size: tuple[int, int] | None) -> bool:
    """Return whether a step can be batched, for images of this size."""
    batched = step.batched(state)
    if batched is None or size is None or state.dtype not in DTYPES:
        return False
    try:
        for transform in batched:
            # Raises for images that it cannot transform; what it draws is not used.
            draws = Draws(bytes(8), np.zeros(1, dtype=np.int64))
            transform.draw(draws.stream(""), BatchShape(1, state.channels, *size))
    except ValueError:
        return False
    return True


def names_of(steps: Sequence[SampleTransform]) -> list[str]:
    """Return the names of the steps' random streams: all different, and different from those of other transforms."""
    return numbered(f"fused {type(step).__name__}" for step in steps)


def draws_of(seed: int, epoch: int, ids: Iterable[int]) -> Draws:
    """Return the draws that a batch of samples with these ids (:func:`~fastload.keys.seeding.sample_id`) has."""
    names = list(ids)
    key = _key_of(seed, epoch)
    try:
        return Draws(key, np.array(names, dtype=np.int64))
    except OverflowError:  # some are repeats, which the bits above tell from the first
        low = np.array([name & _LOW for name in names], dtype=np.uint64).astype(np.int64)
        return Draws(key, low, np.array([name >> 64 for name in names], dtype=np.int64))


@functools.lru_cache(maxsize=16)  # that of one epoch or two, for every chunk
def _key_of(seed: int, epoch: int) -> bytes:
    return Keys(seed, epoch, BATCH).key(0)


class Drawing:
    """Draws the parameters of steps: those of the whole pipeline, or the first of them."""

    def __init__(self, steps: Sequence[SampleTransform]) -> None:
        self._steps = [
            (step, name, step.is_random, step.changes_size) for step, name in zip(steps, names_of(steps), strict=True)
        ]

    def draw(self, draws: Draws, sizes: Sizes) -> list[Drawn]:
        """Return the parameters of N samples, for each step; ``sizes`` are those of the images before the first."""
        drawn = []
        for step, name, is_random, changes_size in self._steps:
            drawn.append(step.draw_samples(draws, name, sizes) if is_random else {})
            sizes = sizes.after(step) if changes_size else sizes
        return drawn

    def given(self, drawn: Sequence[Drawn], count: int) -> list[tuple[Any, ...]]:
        """Return what each of N samples is given, for each step."""
        if not self._steps:
            return [()] * count
        each = [step.params_of_each(values, count) for (step, *_), values in zip(self._steps, drawn, strict=True)]
        return list(zip(*each, strict=True))


def num_cut(steps: Sequence[SampleTransform], states: Sequence[State], *, through: bool) -> int:
    """Return how many of the first steps a :class:`Cut` can be.

    ``through``: continue after the image has become a tensor, as long as pixels only move.
    """
    resized = flipped = False
    for place, (step, state) in enumerate(zip(steps, states, strict=False)):
        match step:
            case RandomResizedCrop() | Resize():
                # Of the flipped image a resize would give the flipped result but for rounding.
                if resized or flipped or state.kind != "PIL":
                    return place
                resized = True
            case RandomHorizontalFlip() | RandomVerticalFlip():
                flipped = True
            case CenterCrop() | Unchanged():
                pass
            case RandomCrop():
                if any(step.padding):
                    return place
            case PILToTensor() | ToImage() | ToPureTensor():
                if not through:
                    return place
            case _:
                return place
    return len(steps)


def cut_of(
    steps: Sequence[SampleTransform], given: Sequence[Any], height: int, width: int, part: Box | None = None
) -> Cut | None:
    """Return the cut that steps are for an image of this size, in pixels; None if one of them pads it.

    The steps are as many as :func:`num_cut` says. ``part``: all that is needed of what they leave, where they resize
    nothing.
    """
    box: Box = (0, 0, height, width)
    size: tuple[int, int] | None = None
    interpolation = "nearest"
    flips = [False, False]
    for step, values in zip(steps, given, strict=True):
        sides = box[2:]
        if isinstance(step, (RandomResizedCrop, Resize)):
            if isinstance(step, RandomResizedCrop):
                box = _inside(box, values, flips)
                sides = box[2:]
            before, size, interpolation = box, step.size_after(*sides), step.interpolation
            box = (0, 0, *size)
        elif isinstance(step, (RandomHorizontalFlip, RandomVerticalFlip)):
            flips[isinstance(step, RandomVerticalFlip)] ^= values
        elif isinstance(step, (RandomCrop, CenterCrop)):
            if sides[0] < step.size[0] or sides[1] < step.size[1]:
                return None
            top, left = values if isinstance(step, RandomCrop) else centre_starts(sides, step.size)
            box = _inside(box, (top, left, *step.size), flips)
    if part is not None:
        box = _inside(box, part, flips)
    if size is None:
        return Cut(box, box[2:], interpolation, (0, 0, *box[2:]), (flips[0], flips[1]))
    return Cut(before, size, interpolation, box, (flips[0], flips[1]))


def _inside(outer: Box, inner: Box, flips: Sequence[bool]) -> Box:
    """Return a part of a part, whose place was counted in the flipped image."""
    top, left, height, width = inner
    if flips[0]:
        left = outer[3] - left - width
    if flips[1]:
        top = outer[2] - top - height
    return outer[0] + top, outer[1] + left, height, width
