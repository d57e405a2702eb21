"""torchvision's transforms -> steps, as far as they are known.

In: a dataset's ``transform``, whatever it is, and what the dataset hands it. Out: the steps from the first transform
on, and why the first one that is not known is not. Objects are looked at: nothing of the user's is called, nothing
drawn.

Only exact classes are known, with the methods and without the hooks that torchvision gave them: a subclass, or an
instance whose ``forward`` was replaced, may do anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import PIL.Image
import torch
from torch import nn
from torchvision import tv_tensors
from torchvision.transforms import autoaugment, v2
from torchvision.transforms import transforms as v1
from torchvision.transforms._presets import ImageClassification

from ..errors import ConfigError
from ..late.origin import is_written_in
from ..transforms.arguments import check_interpolation
from . import color_steps as color
from . import geometry_steps as geometry
from . import value_steps as values
from .step import State, Step, Version

_CONTAINERS = (v1.Compose, v2.Compose, nn.Sequential)
_METHODS = ("__call__", "forward", "transform", "make_params", "get_params", "_call_kernel", "check_inputs")
_PIL_MODES = ("nearest", "nearest-exact", "bilinear", "bicubic", "box", "hamming", "lanczos")
_TYPES = {"PIL": PIL.Image.Image, "tensor": torch.Tensor, "Image": tv_tensors.Image}


class Pipeline(NamedTuple):
    """A dataset's ``transform``, as far as it is known."""

    steps: tuple[Step, ...]
    states: tuple[State, ...]
    """What the image is before the first step, and after each."""
    rest: tuple[str, ...]
    """Names of the transforms that run as they are: the first that is not known, and all after it."""
    reason: str | None
    """Why that one is not known; None if all are."""

    @property
    def state(self) -> State:
        """What the image is after the last known step."""
        return self.states[-1]


class _Unknown(Exception):
    """Why a transform is not known."""


def recognise_transform(transform: Any, state: State) -> Pipeline:
    """Return the steps that a transform is.

    Args:
        transform: a dataset's; None for none.
        state: what the dataset hands it.
    """
    members = members_of(transform)
    steps: list[Step] = []
    states = [state]
    for place, member in enumerate(members):
        count = len(steps)
        try:
            for part in _parts_of(member, states[-1]):
                steps.append(_step_of(part, states[-1]))
                states.append(steps[-1].after(states[-1]))
        except (_Unknown, ConfigError) as why:
            rest = tuple(map(name_of, members[place:]))
            return Pipeline(tuple(steps[:count]), tuple(states[: count + 1]), rest, str(why))
    return Pipeline(tuple(steps), tuple(states), (), None)


def members_of(transform: Any) -> list[Any]:
    """Return the transforms that a transform is made of, in order; containers of torchvision's are opened."""
    return [] if transform is None else list(_flattened(transform))


def _flattened(transform: Any) -> Iterator[Any]:
    if type(transform) not in _CONTAINERS or _changed(transform):
        yield transform
        return
    members = transform if isinstance(transform, nn.Sequential) else transform.transforms
    if not isinstance(members, (Sequence, nn.Sequential, nn.ModuleList)):
        yield transform
        return
    for member in members:
        yield from _flattened(member)


def is_looked_into(transform: Any) -> bool:
    """Return whether a transform is of a class whose attributes recognition looks at."""
    return type(transform) in _KNOWN or type(transform) in (*_CONTAINERS, nn.ModuleList, ImageClassification)


def _parts_of(transform: Any, state: State) -> list[Any]:
    """Return the transforms that one does: those of a preset of torchvision's weights, or itself.

    Raises:
        _Unknown: the preset was changed, or torchvision would refuse its arguments.
    """
    if type(transform) is not ImageClassification or state.kind != "PIL":
        return [transform]
    changed = _changed(transform)
    if changed is not None:
        raise _Unknown(changed)
    try:
        return [
            v1.Resize(transform.resize_size, transform.interpolation, antialias=transform.antialias),
            v1.CenterCrop(transform.crop_size),
            v1.PILToTensor(),
            v1.ConvertImageDtype(torch.float32),
            v1.Normalize(transform.mean, transform.std),
        ]
    except (TypeError, ValueError) as error:
        raise _Unknown(f"its arguments are not understood: {error}") from error


def name_of(transform: Any) -> str:
    """Return what a transform is called in a table."""
    named = getattr(transform, "__qualname__", None)
    return named if isinstance(named, str) else type(transform).__qualname__


def _changed(transform: Any) -> str | None:
    """Return what makes an instance do something else than its class in torchvision; None if nothing does."""
    own = vars(transform) if hasattr(transform, "__dict__") else {}
    methods = [(name, getattr(transform, name)) for name in _METHODS if hasattr(transform, name)]
    replaced = next((name for name, method in methods if name in own or not _is_torchs(method)), None)
    if replaced is not None:
        return f"its {replaced} was replaced"
    hooked = any(own.get(name) for name in ("_forward_hooks", "_forward_pre_hooks"))
    return "it has hooks" if hooked else None


def _is_torchs(function: Any) -> bool:
    return is_written_in(function, "torch", "torchvision", "fastload")  # ours: late.containers


def _step_of(transform: Any, state: State) -> Step:
    kind = type(transform)
    if kind not in _KNOWN:
        base = next((parent for parent in kind.__mro__ if parent in _KNOWN), None)
        if base is not None:
            raise _Unknown(f"a subclass of {base.__name__}, which may do anything")
        raise _Unknown("not one of the known transforms")
    changed = _changed(transform)
    if changed is not None:
        raise _Unknown(changed)
    version: Version = "v2" if kind.__module__.startswith("torchvision.transforms.v2") else "v1"
    if version == "v1" and state.kind == "Image" and kind is not nn.Identity:
        raise _Unknown(f"{kind.__name__} of v1 on a tv_tensors.Image of v2")
    try:
        step = _KNOWN[kind](transform, state, version)
        step.twin()  # checks the arguments
        return step
    except (TypeError, ValueError, AttributeError, IndexError, KeyError) as error:  # what torchvision will say at call
        raise _Unknown(f"its arguments are not understood: {error}") from error


def _random_crop(transform: Any, state: State, version: Version) -> Step:
    size = _size(transform.size)
    padding = transform.padding
    if padding is not None and version == "v2":  # parsed already: left, right, top, bottom
        left, right, top, bottom = padding
        padding = (left, top, right, bottom)
    elif padding is not None:
        sides = [padding] if isinstance(padding, int) else list(padding)
        padding = tuple(sides * (4 // len(sides)))
    step = geometry.RandomCrop(
        version=version,
        size=size,
        padding=padding,
        pad_if_needed=bool(transform.pad_if_needed),
        fill=_fill(transform, state, version) or 0,
        padding_mode=transform.padding_mode,
    )
    step.batched(state)  # checks the arguments
    if isinstance(step.fill, tuple) and len(step.fill) not in (1, state.channels):
        raise _Unknown(f"fill for {len(step.fill)} channels, and the image has {state.channels}")
    if isinstance(step.fill, tuple) and step.padding_mode != "constant" and state.kind != "PIL":
        raise _Unknown(f"fill for each channel, and padding_mode={step.padding_mode!r}")
    return step


def _center_crop(transform: Any, state: State, version: Version) -> Step:
    return geometry.CenterCrop(version=version, size=_size(transform.size))


def _resized_crop(transform: Any, state: State, version: Version) -> Step:
    return geometry.RandomResizedCrop(
        version=version,
        size=_size(transform.size),
        scale=_pair(transform.scale),
        ratio=_pair(transform.ratio),
        interpolation=_interpolation(transform.interpolation, state),
        antialias=transform.antialias,
    )


def _resize(transform: Any, state: State, version: Version) -> Step:
    given = transform.size
    size: Any = given
    if isinstance(given, Sequence):
        size = tuple(map(int, given)) if len(given) == 2 else int(given[0])
    step = geometry.Resize(
        version=version,
        size=size,
        interpolation=_interpolation(transform.interpolation, state),
        max_size=transform.max_size,
        antialias=transform.antialias,
    )
    step.size_after(100, 100)  # checks the arguments
    return step


def _horizontal_flip(transform: Any, state: State, version: Version) -> Step:
    return geometry.RandomHorizontalFlip(version=version, p=float(transform.p))


def _vertical_flip(transform: Any, state: State, version: Version) -> Step:
    return geometry.RandomVerticalFlip(version=version, p=float(transform.p))


def _color_jitter(transform: Any, state: State, version: Version) -> Step:
    ranges = {name: getattr(transform, name) for name in ("brightness", "contrast", "saturation", "hue")}
    return color.ColorJitter(version=version, **{name: one and _pair(one) for name, one in ranges.items()})


def _grayscale(transform: Any, state: State, version: Version) -> Step:
    return color.RandomGrayscale(version=version, p=float(transform.p))


def _rand_augment(transform: Any, state: State, version: Version) -> Step:
    return color.RandAugment(
        version=version,
        interpolation=_interpolation(transform.interpolation, state),
        fill=_fill(transform, state, version),
        num_ops=transform.num_ops,
        magnitude=transform.magnitude,
        num_magnitude_bins=transform.num_magnitude_bins,
    )


def _trivial_augment(transform: Any, state: State, version: Version) -> Step:
    return color.TrivialAugmentWide(
        version=version,
        interpolation=_interpolation(transform.interpolation, state),
        fill=_fill(transform, state, version),
        num_magnitude_bins=transform.num_magnitude_bins,
    )


def _to_tensor(transform: Any, state: State, version: Version) -> Step:
    if state.kind == "PIL":
        return values.ToTensor(version=version)
    return _passed_by(transform, state, version)


def _pil_to_tensor(transform: Any, state: State, version: Version) -> Step:
    if state.kind == "PIL":
        return values.PILToTensor(version=version)
    return _passed_by(transform, state, version)


def _to_image(transform: Any, state: State, version: Version) -> Step:
    return values.ToImage() if state.kind != "Image" else values.Nothing(name="ToImage")


def _to_pure_tensor(transform: Any, state: State, version: Version) -> Step:
    return values.ToPureTensor() if state.kind == "Image" else values.Nothing(name="ToPureTensor")


def _to_dtype(transform: Any, state: State, version: Version) -> Step:
    if state.kind == "PIL":
        return _passed_by(transform, state, version)
    dtype = transform.dtype
    if isinstance(dtype, dict):
        kind = _TYPES[state.kind]
        if kind not in dtype and "others" not in dtype:
            raise _Unknown(f"no dtype is given for {kind.__name__}")
        dtype = dtype.get(kind, dtype.get("others"))
    if dtype is None:
        return _passed_by(transform, state, version)
    return _converting(values.ToDtype(dtype=dtype, scale=bool(transform.scale)), state)


def _convert_dtype(transform: Any, state: State, version: Version) -> Step:
    if state.kind == "PIL":
        return _passed_by(transform, state, version)
    return _converting(values.ConvertImageDtype(version=version, dtype=transform.dtype), state)


def _converting(step: Any, state: State) -> Step:
    """Return the step, if torchvision does not refuse the conversion."""
    try:
        step.apply(torch.zeros((state.channels, 1, 1), dtype=state.dtype, device="cpu"), None)
    except (RuntimeError, TypeError) as error:
        raise _Unknown(f"torchvision refuses it: {error}") from error
    return step  # type: ignore[no-any-return]  # a Step, of two classes


def _normalize(transform: Any, state: State, version: Version) -> Step:
    if state.kind == "PIL":
        raise _Unknown("Normalize takes a tensor, and gets a PIL image")
    if not state.dtype.is_floating_point:
        raise _Unknown(f"Normalize takes floats, and gets {str(state.dtype).removeprefix('torch.')}")
    step = values.Normalize(version=version, mean=_numbers(transform.mean), std=_numbers(transform.std))
    step.batched(state)
    if {len(step.mean), len(step.std)} - {1, state.channels}:
        raise _Unknown(f"mean and std for {len(step.mean)} channels, and the image has {state.channels}")
    return step


def _erasing(transform: Any, state: State, version: Version) -> Step:
    if state.kind == "PIL":
        raise _Unknown("RandomErasing of a PIL image")
    value = transform.value
    if isinstance(value, str):
        value = None
    elif value is not None:
        value = _numbers(value)
        if len(value) not in (1, state.channels):
            raise _Unknown(f"values for {len(value)} channels, and the image has {state.channels}")
    if value is None and not state.dtype.is_floating_point:
        raise _Unknown("RandomErasing with noise, of integers")
    return values.RandomErasing(
        version=version, p=float(transform.p), scale=_pair(transform.scale), ratio=_pair(transform.ratio), value=value
    )


def _identity(transform: Any, state: State, version: Version) -> Step:
    return values.Nothing(version=version, name="Identity")


def _passed_by(transform: Any, state: State, version: Version) -> Step:
    """Return a step for what v2 passes by, and v1 refuses."""
    if version == "v1":
        raise _Unknown(f"{type(transform).__name__} does not take a {state}")
    return values.Nothing(name=type(transform).__name__)


def _size(size: Any) -> tuple[int, int]:
    sides = [size] if isinstance(size, int) else list(size)
    return int(sides[0]), int(sides[-1])


def _pair(pair: Any) -> tuple[float, float]:
    low, high = pair
    return float(low), float(high)


def _numbers(given: Any) -> tuple[float, ...]:
    if isinstance(given, torch.Tensor):
        given = given.tolist()
    return tuple(map(float, given)) if hasattr(given, "__len__") else (float(given),)


def _fill(transform: Any, state: State, version: Version) -> Any:
    fill = transform.fill
    if version == "v2" and isinstance(fill, dict):
        fill = fill.get(_TYPES[state.kind], fill.get("others"))
    if fill is None or isinstance(fill, (int, float)):
        return fill
    return tuple(map(float, fill)) if version == "v2" else tuple(fill)


def _interpolation(given: Any, state: State) -> str:
    numbers = {1: "lanczos", 4: "box", 5: "hamming"}  # Pillow's
    given = numbers.get(given, given) if isinstance(given, int) else given
    return check_interpolation(given, _PIL_MODES if state.kind == "PIL" else geometry.BATCHED_INTERPOLATIONS)


_Maker = Callable[[Any, State, Version], Step]

_BOTH: dict[str, _Maker] = {
    "CenterCrop": _center_crop,
    "ColorJitter": _color_jitter,
    "ConvertImageDtype": _convert_dtype,
    "Normalize": _normalize,
    "PILToTensor": _pil_to_tensor,
    "RandomCrop": _random_crop,
    "RandomErasing": _erasing,
    "RandomGrayscale": _grayscale,
    "RandomHorizontalFlip": _horizontal_flip,
    "RandomResizedCrop": _resized_crop,
    "RandomVerticalFlip": _vertical_flip,
    "Resize": _resize,
    "ToTensor": _to_tensor,
}

_KNOWN: dict[type, _Maker] = {
    **{getattr(module, name): make for module in (v1, v2) for name, make in _BOTH.items()},
    autoaugment.RandAugment: _rand_augment,
    autoaugment.TrivialAugmentWide: _trivial_augment,
    v2.RandAugment: _rand_augment,
    v2.TrivialAugmentWide: _trivial_augment,
    v2.ToDtype: _to_dtype,
    v2.ToImage: _to_image,
    v2.ToPureTensor: _to_pure_tensor,
    v2.Identity: _identity,
    nn.Identity: _identity,
}


__all__ = ["Pipeline", "is_looked_into", "members_of", "name_of", "recognise_transform"]
