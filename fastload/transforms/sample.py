"""The second form of a transform, for fusion: torchvision's own functions on one image at a time.

A batched transform that fusion also recognises inherits from ``SampleTransform`` too, and has the name of its
torchvision counterpart. To add one, write a module with such a class and name it in ``transforms/__init__.py``:
``fastload.fusion.recognition`` finds it there by that name.

Both forms draw the same parameters from a sample's key, and give the same result from the same parameters.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
import torch

from .arguments import check_interpolation
from .base import BatchShape, Params, Transform
from .draws import Draws, Integers, Stream

Version: TypeAlias = Literal["v1", "v2"]
"""``torchvision.transforms`` or ``torchvision.transforms.v2``."""

Kind: TypeAlias = Literal["PIL", "tensor", "Image"]
"""A Pillow image; a plain tensor [C, H, W]; a ``tv_tensors.Image`` [C, H, W]."""

Drawn: TypeAlias = dict[str, Any]
"""The parameters of N samples: arrays [N, ...]."""

Role: TypeAlias = Literal["move", "resize", "color", "value", "erase"]
"""What a transform does to an image: it moves pixels, resizes, computes colors by Pillow's or torch's arithmetic,
changes each value by itself, without a draw, or replaces a rectangle."""

# What Pillow resizes with; of tensors torchvision resizes with fewer.
_PIL_INTERPOLATIONS = ("nearest", "nearest-exact", "bilinear", "bicubic", "box", "hamming", "lanczos")
_TENSOR_INTERPOLATIONS = _PIL_INTERPOLATIONS[:4]


class NotRecognised(Exception):
    """Why fusion does not recognise a dataset or a transform."""


class State(NamedTuple):
    """What an image is between two transforms."""

    kind: Kind
    dtype: torch.dtype
    channels: int

    def __str__(self) -> str:
        if self.kind == "PIL":
            return f"PIL image ({'RGB' if self.channels == 3 else 'L'})"
        return f"{'tv_tensors.Image' if self.kind == 'Image' else 'tensor'} of {shown_value(self.dtype)}"


class SampleTransform:
    """A transform of torchvision's that fusion recognises; a base beside ``Transform``, or alone."""

    role: ClassVar[Role] = "move"
    version: Version = "v2"
    """The version of torchvision's transforms that it was recognised in."""

    @classmethod
    def from_torchvision(cls, given: Any, state: State, version: Version) -> SampleTransform:
        """Return the transform that does what torchvision's of this name does, whose attributes alone are read.

        ``state``: what the image is before it. An error says why it cannot be replaced: NotRecognised, or what comes of
        attributes that are not what torchvision makes them.
        """
        return cls(**{name: getattr(given, name) for name in inspect.signature(cls).parameters if hasattr(given, name)})

    def transform_sample(self, image: Any, params: Any) -> Any:
        """Return torchvision's result for one PIL image, tensor or ``tv_tensors.Image``.

        ``params``: the sample's element of ``params_of_each``; None if nothing is random.
        """
        raise NotImplementedError

    def batched(self, before: State) -> list[Transform] | None:
        """Return the batched transforms with the same result, none or more; None if there are none.

        ``before``: what the image is before. A PIL image stands for the tensor of its pixels.
        """
        if self.role == "color" and before.kind == "PIL":
            return None  # Pillow rounds in other places
        return [self] if isinstance(self, Transform) else []

    def state_after(self, state: State) -> State:
        """Return what the image is afterwards."""
        return state

    def shape_after(self, shape: BatchShape) -> BatchShape:
        """Return the shape of a batch afterwards."""
        return shape

    def size_after(self, height: int, width: int) -> tuple[int, int]:
        """Return the size of an image afterwards: height and width."""
        after = self.shape_after(BatchShape(1, 0, height, width))
        return after.height, after.width

    @property
    def changes_size(self) -> bool:
        """Whether the size of an image may change."""
        return type(self).shape_after not in (Transform.shape_after, SampleTransform.shape_after)

    @property
    def is_random(self) -> bool:
        """Whether parameters are drawn."""
        return isinstance(self, Transform) and type(self).draw is not Transform.draw

    def draw_samples(self, draws: Draws, name: str, sizes: Sizes) -> Drawn:
        """Return parameters of N samples, of the stream ``name``; here those of ``draw`` where no size matters."""
        assert isinstance(self, Transform)
        return _arrays(self.draw(draws.stream(name), BatchShape(len(draws), sizes.channels, 1, 1)))

    def _draw_by_size(
        self, draws: Draws, name: str, sizes: Sizes, draw: Callable[[Stream, BatchShape], Params]
    ) -> Drawn:
        """Return the parameters where they depend on the size of an image: images of one size are drawn together."""
        common = sizes.common()
        if common is not None:
            return _arrays(draw(draws.stream(name), BatchShape(len(draws), sizes.channels, *common)))
        drawn: Drawn = {}
        for rows, (height, width) in sizes.groups():
            some = draws.of(rows)
            params = draw(some.stream(name), BatchShape(len(some), sizes.channels, height, width))
            for key, values in _arrays(params).items():
                drawn.setdefault(key, np.empty((len(draws), *values.shape[1:]), dtype=values.dtype))[rows] = values
        return drawn

    def params_of_each(self, drawn: Drawn, count: int) -> list[Any]:
        """Return the parameters of each of N samples: the value if there is one, else a tuple of all."""
        columns = [values.tolist() for values in drawn.values()]
        if not columns:
            return [None] * count
        return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))

    @property
    def functional(self) -> ModuleType:
        """Torchvision's functions, of the version of this transform."""
        return _functional(self.version)

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells this transform from others: class, version and arguments. Can be compared and hashed."""
        return type(self), self.version, *(value for _, value, _ in self._arguments())

    @property
    def shown(self) -> str:
        """The transform as the plan's table prints it: arguments that are not the defaults."""
        texts = []
        for name, value, default in self._arguments():
            square = name in ("size", "padding") and isinstance(value, tuple) and len(set(value)) == 1
            if square or (isinstance(value, tuple) and len(value) == 1):
                value = value[0]
            if default is inspect.Parameter.empty:
                texts.append(shown_value(value))
            elif value != default and value != (default or 0):
                texts.append(f"{name}={shown_value(value)}")
        return f"{type(self).__name__}({', '.join(texts)})"

    def _arguments(self) -> list[tuple[str, Any, Any]]:
        parameters = inspect.signature(type(self)).parameters
        return [(name, getattr(self, name), parameters[name].default) for name in parameters if name in vars(self)]


class Unchanged(SampleTransform):
    """A transform of torchvision's that changes nothing in images of this state."""

    role = "value"

    def __init__(self, name: str) -> None:
        self.name = name

    @classmethod
    def of(cls, given: Any, state: State, version: Version) -> Unchanged:
        """Return it for a transform that v2 skips; v1 refuses it, which is a NotRecognised."""
        if version == "v1":
            raise NotRecognised(f"{type(given).__name__} does not take a {state}")
        return cls(type(given).__name__)

    @property
    def shown(self) -> str:
        return f"{self.name}()"

    def transform_sample(self, image: Any, params: Any) -> Any:
        return image


class Sizes(NamedTuple):
    """Heights and widths of N images, in pixels."""

    height: Integers
    width: Integers
    channels: int = 3
    """Of each image."""

    @classmethod
    def of(cls, sizes: list[tuple[int, int]], channels: int = 3) -> Sizes:
        """Return these (height, width)."""
        both = np.array(sizes, dtype=np.int64).reshape(-1, 2)
        return cls(both[:, 0], both[:, 1], channels)

    @classmethod
    def all_of(cls, size: tuple[int, int], count: int, channels: int = 3) -> Sizes:
        """Return this (height, width) ``count`` times."""
        height, width = (np.full(count, side, dtype=np.int64) for side in size)
        return cls(height, width, channels)

    def common(self) -> tuple[int, int] | None:
        """Return the size that all of them have; None if they differ."""
        height, width = int(self.height[0]), int(self.width[0])
        alike = (self.height == height).all() and (self.width == width).all()
        return (height, width) if alike else None

    def groups(self) -> list[tuple[Any, tuple[int, int]]]:
        """Return which samples have which size."""
        pairs, which = np.unique(np.stack(self[:2], axis=1), axis=0, return_inverse=True)
        which = which.reshape(-1)
        return [(np.flatnonzero(which == place), (int(h), int(w))) for place, (h, w) in enumerate(pairs)]

    def after(self, step: SampleTransform) -> Sizes:
        """Return the sizes after a transform that changes them."""
        common = self.common()
        if common is not None:
            size = step.size_after(*common)
            return self if size == common else Sizes.all_of(size, len(self.height), self.channels)
        height, width = self.height.copy(), self.width.copy()
        for rows, size in self.groups():
            height[rows], width[rows] = step.size_after(*size)
        return Sizes(height, width, self.channels)


def _arrays(params: Params) -> Drawn:
    return {key: values.numpy() for key, values in params.items() if not key.startswith("rows")}


@functools.cache
def _functional(version: Version) -> ModuleType:
    return importlib.import_module(f"torchvision.transforms{'' if version == 'v1' else '.v2'}.functional")


def torchvision_mode(interpolation: str) -> Any:
    """Return torchvision's ``InterpolationMode`` of a name."""
    return _functional("v1").InterpolationMode(interpolation)


def numbers_argument(given: Any) -> tuple[float, ...]:
    """Return a number, a sequence of numbers or a tensor as floats."""
    if isinstance(given, torch.Tensor):
        given = given.tolist()
    return tuple(map(float, given)) if hasattr(given, "__len__") else (float(given),)


def of_state(given: dict[Any, Any], state: State) -> Any:
    """Return what a dict of v2's, by the types of images, has for images of a state; a KeyError if it has nothing."""
    from PIL import Image
    from torchvision import tv_tensors

    kind: Any = {"PIL": Image.Image, "tensor": torch.Tensor, "Image": tv_tensors.Image}[state.kind]
    return given[kind] if kind in given else given["others"]


def fill_argument(fill: Any, state: State, version: Version) -> Any:
    """Return torchvision's ``fill``: None, a number, or a tuple with one for each channel."""
    if version == "v2" and isinstance(fill, dict):
        try:
            fill = of_state(fill, state)
        except KeyError:
            fill = None
    if fill is None or isinstance(fill, (int, float)):
        return fill
    return tuple(map(float, fill)) if version == "v2" else tuple(fill)


def interpolation_argument(given: Any, state: State) -> str:
    """Return the name of torchvision's ``interpolation``."""
    return check_interpolation(given, _PIL_INTERPOLATIONS if state.kind == "PIL" else _TENSOR_INTERPOLATIONS)


def shown_value(value: Any) -> str:
    """Return a value as a table prints it."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"({', '.join(map(shown_value, value))})"
    return str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else repr(value)
