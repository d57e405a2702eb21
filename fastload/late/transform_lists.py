"""Recognises lists of transforms: torchvision's ``Compose`` of both versions and ``nn.Sequential``, nested in any way.

Late decoding, fusion, the profiler's stages and ``fastload verify`` ask here. Attributes are looked at, nothing of the
user's is called, and torchvision is not imported: an object of its classes exists only where it is.

* :func:`items_of`: the list that a container holds, as it is now.
* :func:`recognise`: a pipeline's transforms in order, containers opened, each as a :class:`Member`: its name, the
  transform, the version of torchvision that it is of, and the reason why it may do something else than its class.
* :func:`instance_override`: that reason, as far as the object itself shows it: cheap enough to be asked for each
  sample.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from torch import nn

from ..base.overrides import is_written_in

V1, V2 = "torchvision.transforms.transforms", "torchvision.transforms.v2"
V2_FUNCTIONAL = f"{V2}.functional"
CONTAINERS = ((V1, "Compose", "__call__"), (f"{V2}._container", "Compose", "forward"))
"""torchvision's containers: module, class, and the method that calls the transforms."""

METHODS = ("__call__", "forward", "transform", "make_params", "get_params", "_call_kernel", "check_inputs")
"""The methods that torchvision's transforms run."""
_OF_ITS_OWN = (*METHODS, "_transformed_types")
"""Attributes that change a transform, if it has one of its own."""


class Member(NamedTuple):
    """One transform of a list."""

    name: str
    transform: Any
    version: Literal["v1", "v2"] | None
    """The version of torchvision; None: it is not of torchvision."""
    change: str | None
    """Why it may do something else than others of its class: hooks, or replaced methods; None: it does the same."""


def recognise(transform: Any) -> list[Member]:
    """Return the transforms that a transform (None: none) is made of; a container that was changed is one itself."""
    if transform is None:
        return []
    change = instance_override(transform) or _replaced_method(transform)
    items = items_of(transform) if change is None and is_container(type(transform)) else None
    if not isinstance(items, (Sequence, nn.Sequential, nn.ModuleList)):
        return [Member(name_of(transform), transform, version_of(type(transform)), change)]
    nothing = Member("None", None, None, None)
    return [member for item in items for member in (recognise(item) or [nothing])]


def is_container(kind: type) -> bool:
    """Return whether instances of a class do nothing but call their transforms in order; subclasses may do anything."""
    return kind is nn.Sequential or any(kind is _class_of(module, name) for module, name, _ in CONTAINERS)


def items_of(container: Any) -> Any:
    """Return the sequence that a container holds its transforms in, as it is now; None for what has none.

    Albumentations' and Kornia's containers are known by their attribute too.
    """
    return container if isinstance(container, nn.Sequential) else getattr(container, "transforms", None)


def instance_override(transform: Any) -> str | None:
    """Return what makes a transform differ from others of its class: its own hooks, methods or types; None: nothing."""
    own = getattr(transform, "__dict__", {})
    if own.get("_forward_hooks") or own.get("_forward_pre_hooks"):
        return "it has hooks"
    if own.keys().isdisjoint(_OF_ITS_OWN):
        return None
    return f"its {next(name for name in _OF_ITS_OWN if name in own)} was replaced"


def version_of(kind: type) -> Literal["v1", "v2"] | None:
    """Return the version of torchvision's transforms that a class is written in; None: in none."""
    if f"{kind.__module__}.".startswith(f"{V2}."):
        return "v2"
    return "v1" if f"{kind.__module__}.".startswith("torchvision.transforms.") else None


def name_of(transform: Any) -> str:
    """Return what a transform is called in a table: a function's own name, else its class's."""
    named = getattr(transform, "__qualname__", None)
    return (named if isinstance(named, str) else type(transform).__qualname__).rpartition("<locals>.")[2]


def _replaced_method(transform: Any) -> str | None:
    """Return which of a torchvision class's methods somebody has replaced. fastload's own do the same."""
    if version_of(type(transform)) is None and type(transform) is not nn.Sequential:
        return None
    methods = [name for name in METHODS if hasattr(transform, name)]
    own = ("torch", "torchvision", "fastload")
    replaced = next((name for name in methods if not is_written_in(getattr(transform, name), *own)), None)
    return None if replaced is None else f"its {replaced} was replaced"


def _class_of(module: str, name: str) -> Any:
    return getattr(sys.modules.get(module), name, None)


def registry() -> dict[Any, dict[type, Any]]:
    """Return version 2's kernels, by function and class of images; empty if it is not imported."""
    return getattr(sys.modules.get(f"{V2_FUNCTIONAL}._utils"), "_KERNEL_REGISTRY", {})
