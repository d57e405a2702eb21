"""What a known transform is: its arguments, what it draws, and torchvision's function that it calls.

In: arguments in one form, whichever version of torchvision's transforms they come from. Out: frozen values that can be
compared, printed and pickled. A step holds no object of the user's, no generator and no tensor.

Three things are asked of a step: :meth:`Step.draw`, the parameters of N samples, from their keys;
:meth:`Step.apply`, torchvision's own function with one sample's parameters, which says what the result is; and
:meth:`Step.batched`, the transforms of :mod:`fastload.transforms` that do the same to a batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torchvision.transforms import functional as v1_functional
from torchvision.transforms.v2 import functional as v2_functional

from ..transforms.base import BatchShape, Transform
from ..transforms.draws import Draws, Integers

Version: TypeAlias = Literal["v1", "v2"]
"""``torchvision.transforms`` or ``torchvision.transforms.v2``."""

Kind: TypeAlias = Literal["PIL", "tensor", "Image"]
"""A Pillow image; a plain tensor [C, H, W]; a ``tv_tensors.Image`` [C, H, W]."""

Drawn: TypeAlias = dict[str, Any]
"""What a step draws for N samples: arrays [N, ...]."""


class State(NamedTuple):
    """What an image is between two steps."""

    kind: Kind
    dtype: torch.dtype
    channels: int

    def __str__(self) -> str:
        if self.kind == "PIL":
            return f"PIL image ({'RGB' if self.channels == 3 else 'L'})"
        name = "tv_tensors.Image" if self.kind == "Image" else "tensor"
        return f"{name} of {str(self.dtype).removeprefix('torch.')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A transform whose effect is known. Subclasses have torchvision's names and arguments."""

    version: Version = "v2"

    random: ClassVar[bool] = False
    """Whether it draws anything."""
    squares: ClassVar[tuple[str, ...]] = ()
    """Arguments that are printed as one number where all of theirs are the same, as they may be given."""

    def __str__(self) -> str:
        shown = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            required = field.default is dataclasses.MISSING
            if field.name != "version" and (required or value != field.default):
                if field.name in self.squares and isinstance(value, tuple) and len(set(value)) == 1:
                    value = value[0]
                text = short(value)
                shown.append(text if required else f"{field.name}={text}")
        return f"{type(self).__name__}({', '.join(shown)})"

    @property
    def functional(self) -> ModuleType:
        """The functions of torchvision's that are of its version."""
        functional: ModuleType = v1_functional if self.version == "v1" else v2_functional
        return functional

    def after(self, state: State) -> State:
        """Return what the image is afterwards."""
        return state

    def size_after(self, height: int, width: int) -> tuple[int, int]:
        """Return the image's size afterwards."""
        return height, width

    def twin(self) -> Any:
        """Return the batched transform that draws its parameters; None if it draws nothing."""
        return None

    def draw(self, twin: Any, draws: Draws, name: str, sizes: Sizes) -> Drawn:
        """Return the parameters of N samples.

        Args:
            twin: what :meth:`twin` returned.
            draws: of these samples.
            name: of the stream.
            sizes: of the images that it gets.
        """
        return {}

    def given(self, drawn: Drawn, count: int) -> list[Any]:
        """Return the parameters of each of N samples, as :meth:`apply` takes them."""
        return [None] * count

    def drawn_as(self, given: Sequence[Any]) -> Drawn:
        """Return parameters as :meth:`draw` gives them, from those of N samples; for steps that only move pixels."""
        return {}

    def apply(self, image: Any, given: Any) -> Any:
        """Return what torchvision's function makes of an image of the kind that it gets, given the parameters."""
        raise NotImplementedError

    def batched(self, before: State) -> list[Transform] | None:
        """Return the batched transforms that do the same, none or more; None if there are none that do.

        Args:
            before: what the image is that it gets. A PIL image stands for the tensor of its pixels.
        """
        return None


class Sizes(NamedTuple):
    """Heights and widths of N images, in pixels."""

    height: Integers
    width: Integers
    alike: bool = False
    """Whether all of them are known to be the same."""

    @classmethod
    def of(cls, sizes: list[tuple[int, int]]) -> Sizes:
        """Return these (height, width)."""
        both = np.array(sizes, dtype=np.int64).reshape(-1, 2)
        return cls(both[:, 0], both[:, 1])

    @classmethod
    def all_of(cls, size: tuple[int, int], count: int) -> Sizes:
        """Return this (height, width) ``count`` times."""
        height, width = size
        return cls(np.full(count, height, dtype=np.int64), np.full(count, width, dtype=np.int64), alike=True)

    def common(self) -> tuple[int, int] | None:
        """Return the size that all of them have; None if they differ."""
        height, width = int(self.height[0]), int(self.width[0])
        alike = self.alike or ((self.height == height).all() and (self.width == width).all())
        return (height, width) if alike else None

    def groups(self) -> list[tuple[Any, tuple[int, int]]]:
        """Return which samples have which size."""
        common = self.common()
        if common is not None:
            return [(slice(None), common)]
        pairs, which = np.unique(np.stack(self[:2], axis=1), axis=0, return_inverse=True)
        which = which.reshape(-1)
        return [(np.flatnonzero(which == place), (int(h), int(w))) for place, (h, w) in enumerate(pairs)]

    def after(self, step: Step) -> Sizes:
        """Return the sizes after a step."""
        if type(step).size_after is Step.size_after:
            return self
        common = self.common()
        if common is not None:
            size = step.size_after(*common)
            return self if size == common else Sizes.all_of(size, len(self.height))
        height, width = self.height.copy(), self.width.copy()
        for rows, size in self.groups():
            height[rows], width[rows] = step.size_after(*size)
        return Sizes(height, width)


def drawn_by_size(twin: Transform, draws: Draws, name: str, sizes: Sizes) -> Drawn:
    """Return the parameters that a batched transform draws, where they depend on the size of an image.

    A sample's parameters do not depend on those drawn with it, so those of one size are drawn together.
    """
    common = sizes.common()
    if common is not None:
        params = twin.draw(draws.stream(name), BatchShape(len(draws), 0, *common))
        return {key: values.numpy() for key, values in params.items()}
    drawn: Drawn = {}
    for rows, (height, width) in sizes.groups():
        some = draws.of(rows)
        params = twin.draw(some.stream(name), BatchShape(len(some), 0, height, width))
        for key, values in params.items():
            array = values.numpy()
            drawn.setdefault(key, np.empty((len(draws), *array.shape[1:]), dtype=array.dtype))[rows] = array
    return drawn


def any_size(count: int) -> BatchShape:
    """Return a shape for a transform whose parameters do not depend on it."""
    return BatchShape(count, 0, 1, 1)


def short(value: Any) -> str:
    """Return a value as it is printed in a table."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(short, value))})"
    return str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else repr(value)


__all__ = [
    "Drawn",
    "Kind",
    "Sizes",
    "State",
    "Step",
    "Version",
    "any_size",
    "drawn_by_size",
    "short",
]
