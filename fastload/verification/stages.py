"""Finds the transforms of a dataset, and takes some of them out of a copy of it.

Its stages come in the order in which they are applied. A stage is replaced by the identity, so that a
container that counts its stages, or draws to choose one, works as before.

Known: attributes named like a transform; objects with a list ``transforms`` (torchvision's Compose, v1 and v2,
RandomApply, albumentations); ``torch.nn.Sequential``; datasets inside of datasets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.data import Dataset

from ..late.transform_lists import items_of, name_of

Path = tuple[str | int, ...]
"""From the dataset on: names of attributes, numbers of items."""

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

    paths: tuple[Path, ...]
    """Where it is held; torchvision's datasets hold each transform twice."""
    label: str
    """Its repr, in one line."""
    place: str
    """For a person: ``dataset.transform, stage 2 of 4``."""
    transform: Any


def find_stages(dataset: Any) -> list[TransformStage]:
    """Return the stages of a dataset, in the order in which they are applied."""
    found: dict[int, TransformStage] = {}
    for holder, path in _datasets(dataset, (), 0):
        for name, value in _attributes(holder):
            for stage in _stages_of(value, (*path, name)) if _is_transform(name, value) else ():
                known = found.get(id(stage.transform))
                found[id(stage.transform)] = replace(known, paths=known.paths + stage.paths) if known else stage
    return list(found.values())


def without(dataset: Any, stages: Sequence[TransformStage]) -> Any:
    """Replace stages of a dataset by the identity, in place, and return it.

    Raises:
        Exception: the dataset, or a container, cannot be changed.
    """
    for path in (path for stage in stages for path in stage.paths):
        holder, last = dataset, path[-1]
        for step in path[:-1]:
            holder = getattr(holder, step) if isinstance(step, str) else _indexed(holder)[step]
        if isinstance(last, int):
            _indexed(holder)[last] = _Identity()
        else:
            setattr(holder, last, _Identity())
    return dataset


def _indexed(holder: Any) -> Any:
    items = _items(holder)
    return holder if items is None else items


def _datasets(dataset: Any, path: Path, depth: int) -> Iterator[tuple[Any, Path]]:
    """Yield a dataset and those inside of it; inner ones first, as their transforms are applied first."""
    if depth > _DEPTH:
        return
    for name, value in _attributes(dataset):
        if isinstance(value, Dataset) or (name == "dataset" and hasattr(value, "__getitem__")):
            yield from _datasets(value, (*path, name), depth + 1)
        elif isinstance(value, (list, tuple)) and value and all(isinstance(one, Dataset) for one in value[:100]):
            for number, one in enumerate(value[:100]):
                yield from _datasets(one, (*path, name, number), depth + 1)
    yield dataset, path


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
    """Return the sequence of a container's stages, which can be assigned to; None if it is no container."""
    held = items_of(value)
    is_known = isinstance(held, (list, torch.nn.ModuleList, torch.nn.Sequential))
    return held if is_known and all(callable(one) for one in held) else None


def _stages_of(value: Any, path: Path) -> Iterator[TransformStage]:
    items = _items(value)
    where = "dataset" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    if items is not None:
        for number, one in enumerate(items):
            if _items(one) is not None:
                yield from _stages_of(one, (*path, number))
            else:
                place = f"{where}, stage {number + 1} of {len(items)}"
                yield TransformStage(((*path, number),), label_of(one), place, one)
        return
    pair = [name for name in ("transform", "target_transform") if callable(getattr(value, name, None))]
    if type(value).__name__ == "StandardTransform" and pair:  # torchvision's pair of both
        for name in pair:
            yield from _stages_of(getattr(value, name), (*path, name))
        return
    yield TransformStage((path,), label_of(value), where, value)


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
