"""A dataset's transform as DALI's operators, with the parameters that the fused loader draws.

In: a dataset of image files with torchvision's transforms. Out: a :class:`Recipe`: what DALI does, with which
parameters for each sample, and what is done with the batch after it. Nothing of DALI's is needed for it.
"""

# N samples.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ...errors import ConfigError
from ...fusion.conversions import Values
from ...fusion.plan import FusedTail, recognise
from ...fusion.stages import Drawing, cut_of, fits, names_of, num_cut, size_after
from ...native.rows import Cut
from ...transforms.crop import CenterCrop, RandomCrop, RandomVerticalFlip
from ...transforms.draws import Draws
from ...transforms.resize import RandomResizedCrop, Resize
from ...transforms.sample import SampleTransform, Sizes, State

_INTERPOLATIONS = {
    "nearest": "NN",
    "nearest-exact": "NN",
    "bilinear": "LINEAR",
    "bicubic": "CUBIC",
    "lanczos": "LANCZOS3",
}


class Scaling(NamedTuple):
    """What becomes of levels: ``(level - mean) / std``, for each channel."""

    dtype: torch.dtype
    """uint8, float16 or float32."""
    mean: list[float]
    std: list[float]


class Recipe:
    """What DALI does to each image, and what is done after it.

    Args:
        steps: those of the dataset's transform, all of them.
        states: before each of them, and after the last.
        head: how many of the first ones crop, resize and flip.
        size: (height, width) of all images after these; None: they differ, or it does not matter.

    Raises:
        ConfigError: a step can be done neither by DALI nor in batches after it.
    """

    def __init__(
        self, steps: Sequence[SampleTransform], states: Sequence[State], head: int, size: tuple[int, int] | None
    ) -> None:
        self._steps = list(steps[:head])
        self._drawing = Drawing(self._steps)
        resizes = [step for step in self._steps if isinstance(step, RandomResizedCrop | Resize)]
        crops = [place for place, step in enumerate(self._steps) if isinstance(step, RandomCrop | CenterCrop)]
        self.interpolation: str | None = None
        """DALI's name of the filter; None: nothing is resized."""
        if resizes:
            found = _INTERPOLATIONS.get(resizes[0].interpolation)
            if found is None:
                raise ConfigError(
                    f"DALI has no filter for {resizes[0].shown}; it has those for "
                    f"{', '.join(map(repr, _INTERPOLATIONS))}"
                )
            self.interpolation = found
        self.window: tuple[int, int] | None = None
        """Height and width of what is kept after a resize; None: all."""
        if resizes and any(place > self._steps.index(resizes[0]) for place in crops):
            self.window = size
        self.flips_vertically = any(isinstance(step, RandomVerticalFlip) for step in self._steps)
        rest, before = steps[head:], states[head]
        self.scaling: Scaling | None = None
        """None: levels stay what they are."""
        self.tail: FusedTail | None = None
        """What is done with batches [N, 3, H, W] of uint8 after DALI."""
        if all(step.role == "value" for step in rest):
            self.scaling = _scaling(Values(rest, before).table)
        if self.scaling is None:
            self.tail = _tail(steps, states, head, size)

    def cuts(self, draws: Draws, sizes: Sizes) -> list[Cut | None]:
        """Return what is made of N images of these sizes; None for those too small for a crop."""
        given = self._drawing.given(self._drawing.draw(draws, sizes), len(draws))
        each = zip(given, sizes.height.tolist(), sizes.width.tolist(), strict=True)
        return [cut_of(self._steps, values, height, width) for values, height, width in each]


def recipe_of(dataset: Any, *, whole: bool) -> Recipe:
    """Return what is made of a dataset's images; not ``whole``: only how they are cropped, resized and flipped.

    Raises:
        ConfigError: it is another dataset, or a transform of it is not known, or DALI cannot do it.
    """
    plan = recognise(dataset)
    if not plan.parts or any(part.source.size is not None for part in plan.parts):
        raise ConfigError(
            f"DALI decodes the files of an ImageFolder or DatasetFolder, and {plan.dataset} is none"
            + (f": {plan.reason}" if plan.reason else "")
            + "; give a dataset of pairs (encoded image, target) together with pipeline=..."
        )
    part, others = plan.parts[0], plan.parts[1:]
    if any(other.pipeline != part.pipeline for other in others):
        raise ConfigError("all parts of the dataset must have the same transform, for DALI has one pipeline")
    pipeline = part.pipeline
    if pipeline.rest:
        raise ConfigError(
            f"DALI cannot call {pipeline.rest[0]}: {pipeline.reason}; leave it out, or give pipeline=..., or use "
            "fastload.DataLoader(..., fuse=True), which calls what it does not know"
        )
    head = num_cut(pipeline.steps, pipeline.states, through=True)
    if not whole:
        if head < len(pipeline.steps):
            raise ConfigError(
                f"with pipeline=... the dataset's transform says how images are cropped, resized and flipped, and "
                f"nothing else, got {pipeline.steps[head].shown}; leave it to the pipeline"
            )
        return Recipe(pipeline.steps, pipeline.states, head, None)
    steps, states = pipeline.steps, pipeline.states
    if states[-1].kind == "PIL":
        raise ConfigError("the dataset's transform ends with a PIL image; let it end with ToTensor, or ToImage")
    size = size_after(part.source, steps[:head])
    if size is None:
        after = steps[head - 1].shown if head else "decoding"
        raise ConfigError(
            f"after {after}, the last that DALI can do of the dataset's transform, images have different sizes; crop "
            "or resize all of them to one before that"
        )
    return Recipe(steps, states, head, size)


def _scaling(table: torch.Tensor) -> Scaling | None:
    """Return the scaling that makes this table of the levels; None if none does."""
    if table.dtype == torch.uint8:
        same = bool((table == torch.arange(256, dtype=torch.uint8)).all())
        return Scaling(torch.uint8, [0.0] * len(table), [1.0] * len(table)) if same else None
    if table.dtype not in (torch.float32, torch.float16):
        return None
    wide = table.double()
    slope = (wide[:, -1] - wide[:, 0]) / 255
    line = wide[:, :1] + slope[:, None] * torch.arange(256, dtype=torch.float64)
    tolerance = 4 * torch.finfo(table.dtype).eps * float(wide.abs().max())
    if not bool((slope != 0).all()) or float((line - wide).abs().max()) > tolerance:
        return None
    return Scaling(table.dtype, (-wide[:, 0] / slope).tolist(), (1 / slope).tolist())


def _tail(steps: Sequence[SampleTransform], states: Sequence[State], head: int, size: Any) -> FusedTail | None:
    """Return the steps after the head as one transform of batches."""
    tail = list(zip(steps, states, names_of(steps), strict=False))[head:]
    for step, state, _ in tail:
        if not fits(step, state, size):
            raise ConfigError(
                f"{step.shown} can be done neither by DALI nor with whole batches after it; leave it out, or use "
                "fastload.DataLoader(..., fuse=True)"
            )
        size = step.size_after(*size)
    return FusedTail.of(tuple(tail))
