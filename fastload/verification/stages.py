"""Finds the transforms of a dataset, and takes some of them out of a copy of it.

Its stages come in the order in which they are applied. A stage is replaced by the identity, so that a
container that counts its stages, or draws to choose one, works as before.

Known: attributes named like a transform; objects with a list ``transforms`` (torchvision's Compose, v1 and v2,
RandomApply, albumentations); ``torch.nn.Sequential``; datasets inside of datasets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Dataset

from ..base.copies import copy_with_replacements
from ..base.objects import find
from ..late.transform_lists import items_of, name_of

_DEPTH = 6
_NAMES = ("transform", "augment", "preprocess")
_LIBRARIES = ("torchvision", "albumentations", "kornia")


class _Identity(torch.nn.Module):
    def forward(self, *inputs: Any, **named: Any) -> Any:
        if not inputs:
            return named
        return inputs[0] if len(inputs) == 1 else inputs


@dataclass(frozen=True, slots=True)
class TransformStage:
    """One transform."""

    label: str
    """Its repr, in one line."""
    place: str
    """For a person: ``dataset.transform, stage 2 of 4``."""
    transform: Any


def find_stages(dataset: Any) -> list[TransformStage]:
    """Return the stages of a dataset, each once, in the order in which they are applied."""
    found: dict[int, TransformStage] = {}
    for holder, where in _datasets(dataset, "dataset", 0):
        for name, value in _attributes(holder):
            for stage in _stages_of(value, f"{where}.{name}") if _is_transform(name, value) else ():
                found.setdefault(id(stage.transform), stage)
    return list(found.values())


def without(dataset: Any, stages: Sequence[TransformStage]) -> Any:
    """Return a dataset with the identity in the places of stages: a copy of what holds them, which shares the rest.

    Raises:
        TypeError: what holds them cannot be copied.
    """
    others = {id(stage.transform): _Identity() for stage in stages}
    found = find(dataset, lambda thing: id(thing) in others, inside=False, is_library=lambda _: True) if others else []
    return copy_with_replacements(found, others) if found else dataset


def _datasets(dataset: Any, where: str, depth: int) -> Iterator[tuple[Any, str]]:
    """Yield a dataset and those inside of it; inner ones first, as their transforms are applied first."""
    if depth > _DEPTH:
        return
    for name, value in _attributes(dataset):
        if isinstance(value, Dataset) or (name == "dataset" and hasattr(value, "__getitem__")):
            yield from _datasets(value, f"{where}.{name}", depth + 1)
        elif isinstance(value, (list, tuple)) and value and all(isinstance(one, Dataset) for one in value[:100]):
            for number, one in enumerate(value[:100]):
                yield from _datasets(one, f"{where}.{name}[{number}]", depth + 1)
    yield dataset, where


def _attributes(holder: Any) -> list[tuple[str, Any]]:
    """Return the attributes of an object; those named ``transform`` first, as they are applied first."""
    held = dict(getattr(holder, "__dict__", {}))
    held |= held.pop("_modules", None) or {}
    order = {"transform": -3, "transforms": -2, "target_transform": -1}
    return sorted(held.items(), key=lambda item: order.get(item[0], 0))


def _is_transform(name: str, value: Any) -> bool:
    if not callable(value) or isinstance(value, (type, Dataset)):
        return False
    named = any(word in name.lower() for word in _NAMES)
    return named or _items(value) is not None or type(value).__module__.split(".")[0] in _LIBRARIES


def _items(value: Any) -> Any:
    """Return the sequence of a container's stages; None if it is no container."""
    held = items_of(value)
    is_known = isinstance(held, (list, torch.nn.ModuleList, torch.nn.Sequential))
    return held if is_known and all(callable(one) for one in held) else None


def _stages_of(value: Any, where: str) -> Iterator[TransformStage]:
    items = _items(value)
    if items is not None:
        for number, one in enumerate(items):
            if _items(one) is not None:
                yield from _stages_of(one, f"{where}[{number}]")
            else:
                yield TransformStage(label_of(one), f"{where}, stage {number + 1} of {len(items)}", one)
        return
    pair = [name for name in ("transform", "target_transform") if callable(getattr(value, name, None))]
    if type(value).__name__ == "StandardTransform" and pair:  # torchvision's pair of both
        for name in pair:
            yield from _stages_of(getattr(value, name), f"{where}.{name}")
        return
    yield TransformStage(label_of(value), where, value)


def label_of(value: Any) -> str:
    """Return the repr of an object, or its class if the repr shows an address; at most 100 characters."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # whatever the user's __repr__ raises
        text = ""
    name = name_of(value)
    if not text or " at 0x" in text:
        text = name if hasattr(value, "__qualname__") else f"{name}()"
    return text if len(text) <= 100 else text[:97] + "..."
