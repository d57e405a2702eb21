"""torchvision's transforms -> steps, as far as they are known.

Objects are looked at: nothing of the user's is called, nothing drawn. Only exact classes are known, with the methods
and without the hooks that torchvision gave them: a subclass, or an instance whose ``forward`` was replaced, may do
anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torchvision import transforms as v1
from torchvision.transforms import v2
from torchvision.transforms._presets import ImageClassification

from .. import transforms
from ..errors import ConfigError
from ..late.originals import is_written_in
from ..late.transform_lists import METHODS, change_of
from ..transforms.sample import NotRecognised, SampleTransform, State, Version
from .conversions import CONVERSIONS, check_conversion

_CONTAINERS = (v1.Compose, v2.Compose, nn.Sequential)


@dataclass(frozen=True, eq=False)
class Pipeline:
    """A dataset's ``transform``, as far as it is known. Two are equal if their steps do the same."""

    steps: tuple[SampleTransform, ...]
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

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pipeline) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return tuple(step.key for step in self.steps), self.states, self.rest, self.reason


def recognise_transform(transform: Any, state: State) -> Pipeline:
    """Return the steps that a dataset's ``transform`` is, None for none; it gets images of this state."""
    members = members_of(transform)
    steps: list[SampleTransform] = []
    states = [state]
    for place, member in enumerate(members):
        count = len(steps)
        try:
            for part in _parts_of(member, states[-1]):
                steps.append(_step_of(part, states[-1]))
                states.append(steps[-1].state_after(states[-1]))
        except (NotRecognised, ConfigError) as why:
            reason = str(why)
        except (TypeError, ValueError, AttributeError, LookupError) as error:  # torchvision will raise at the call
            reason = f"its arguments are not understood: {error}"
        else:
            continue
        rest = tuple(map(name_of, members[place:]))
        return Pipeline(tuple(steps[:count]), tuple(states[: count + 1]), rest, reason)
    return Pipeline(tuple(steps), tuple(states), (), None)


def members_of(transform: Any) -> list[Any]:
    """Return the transforms that a transform is made of, in order; containers of torchvision's are opened."""
    if transform is None:
        return []
    if type(transform) not in _CONTAINERS or _changed(transform):
        return [transform]
    members = transform if isinstance(transform, nn.Sequential) else transform.transforms
    if not isinstance(members, (Sequence, nn.Sequential, nn.ModuleList)):
        return [transform]
    return [inner for member in members for inner in ([None] if member is None else members_of(member))]


def is_looked_into(transform: Any) -> bool:
    """Return whether a transform is of a class whose attributes recognition looks at."""
    return _recognised_as(type(transform)) is not None or type(transform) in (
        *_CONTAINERS,
        nn.ModuleList,
        ImageClassification,
    )


def _parts_of(transform: Any, state: State) -> list[Any]:
    """Return the transforms that one does: those of a preset of torchvision's weights, or itself."""
    if type(transform) is not ImageClassification or state.kind != "PIL":
        return [transform]
    changed = _changed(transform)
    if changed is not None:
        raise NotRecognised(changed)
    return [
        v1.Resize(transform.resize_size, transform.interpolation, antialias=transform.antialias),
        v1.CenterCrop(transform.crop_size),
        v1.PILToTensor(),
        v1.ConvertImageDtype(torch.float32),
        v1.Normalize(transform.mean, transform.std),
    ]


def name_of(transform: Any) -> str:
    """Return what a transform is called in a table."""
    named = getattr(transform, "__qualname__", None)
    return named if isinstance(named, str) else type(transform).__qualname__


def _changed(transform: Any) -> str | None:
    """Return what makes an object do something else than its class in torchvision; None if nothing does."""
    methods = [name for name in METHODS if hasattr(transform, name)]
    # Late decoding replaces some in torchvision's containers, which do the same.
    torchs = ("torch", "torchvision", "fastload")
    replaced = next((name for name in methods if not is_written_in(getattr(transform, name), *torchs)), None)
    return change_of(transform) if replaced is None else f"its {replaced} was replaced"


def _recognised_as(kind: type) -> type[SampleTransform] | None:
    """Return what replaces a class of transforms: of conversions, or of batched transforms with a form for samples."""
    name = kind.__name__
    if kind not in (getattr(v1, name, None), getattr(v2, name, None), getattr(nn, name, None)):
        return None
    found = CONVERSIONS.get(name) or (getattr(transforms, name) if name in transforms.__all__ else None)
    return found if isinstance(found, type) and issubclass(found, SampleTransform) else None


def _step_of(transform: Any, state: State) -> SampleTransform:
    kind = type(transform)
    known = _recognised_as(kind)
    if known is None:
        base = next((parent for parent in kind.__mro__ if _recognised_as(parent)), None)
        if base is not None:
            raise NotRecognised(f"a subclass of {base.__name__}, which may do anything")
        raise NotRecognised("not one of the known transforms")
    changed = _changed(transform)
    if changed is not None:
        raise NotRecognised(changed)
    version: Version = "v2" if kind.__module__.startswith("torchvision.transforms.v2") else "v1"
    if version == "v1" and state.kind == "Image" and kind is not nn.Identity:
        raise NotRecognised(f"{kind.__name__} of v1 on a tv_tensors.Image of v2")
    step = known.from_torchvision(transform, state, version)
    step.version = version
    check_conversion(step, state)
    return step
