"""Read and replace the tensors of a batch of nested containers.

Containers are dicts, lists, tuples, named tuples and the like, and keep their types. Pure.
"""

from __future__ import annotations

import copy
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from types import FunctionType, ModuleType
from typing import Any, TypeAlias

from torch import Tensor

from .walking import attributes_of

Key: TypeAlias = str | int
"""A mapping's key, a sequence's index, or a field's name. Paths are joined by dots."""


_PLAIN = (str, bytes, int, float, complex, type(None), type, ModuleType, FunctionType)
_MAX_DEPTH = 16


def moves(value: Any) -> bool:
    """Return whether an object is a tensor or has its own ``to()``, as PackedSequence, a named tuple, has."""
    if isinstance(value, Tensor):
        return True
    return not isinstance(value, (str, bytes, list, dict, UserDict)) and callable(getattr(value, "to", None))


def tensors_in(value: Any, seen: set[int] | None = None, depth: int = 0) -> Iterator[Tensor]:
    """Yield the tensors that any object holds, in containers and attributes."""
    seen = set() if seen is None else seen
    if isinstance(value, _PLAIN) or id(value) in seen or depth > _MAX_DEPTH:
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        yield value
        return
    parts = _parts(value)
    if parts is None:
        parts = list(attributes_of(value))
    for _, part in parts:
        yield from tensors_in(part, seen, depth + 1)


def tensors_at(value: Any, kept: frozenset[str], path: str = "") -> Iterator[Tensor]:
    """Yield the tensors of the parts at these paths."""
    if path in kept:
        yield from tensors_in(value)
    elif not moves(value):
        for key, part in _parts(value) or ():
            yield from tensors_at(part, kept, f"{path}.{key}" if path else str(key))


def map_leaves(
    value: Any,
    change: Callable[[Any], Any],
    kept: frozenset[str] = frozenset(),
    path: str = "",
    *,
    is_leaf: Callable[[Any], bool] = moves,
) -> Any:
    """Apply ``change`` to the leaves of a batch. Containers keep their types."""
    if path and path in kept:
        return value
    if is_leaf(value):
        return change(value)
    parts = _parts(value)
    if parts is None:
        return value
    prefix = f"{path}." if path else ""
    changed = [map_leaves(part, change, kept, f"{prefix}{key}", is_leaf=is_leaf) for key, part in parts]
    if isinstance(value, Mapping):
        return _mapping_of(value, dict(zip(value, changed, strict=True)))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*changed)
    return _sequence_of(value, changed)


def _parts(value: Any) -> list[tuple[Any, Any]] | None:
    """Return the parts of a container with their keys; None for other objects."""
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    if isinstance(value, (list, tuple)) or (
        isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray, range, memoryview))
    ):
        return list(enumerate(value))
    return None


def paths_of(value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of all parts of a batch."""
    if path:
        yield path
    if not moves(value):
        for key, part in _parts(value) or ():
            yield from paths_of(part, f"{path}.{key}" if path else str(key))


def leaves_of(value: Any, is_leaf: Callable[[Any], bool], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a batch with their paths, in the order of :func:`map_leaves`.

    Objects that are neither leaf nor container are yielded too.
    """
    parts = None if is_leaf(value) else _parts(value)
    if parts is None:
        yield path, value
    for key, part in parts or ():
        yield from leaves_of(part, is_leaf, f"{path}.{key}" if path else str(key))


def _mapping_of(value: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    if type(value) is dict:  # torch.compile knows no copy of it
        return items
    try:
        if isinstance(value, MutableMapping):
            # A class may have other attributes, and another constructor.
            made = copy.copy(value)
            made.update(items)
            return made
        return type(value)(items)  # type: ignore[call-arg]
    except TypeError:
        return items


def _sequence_of(value: Sequence[Any], parts: list[Any]) -> Any:
    if type(value) is tuple:
        return tuple(parts)
    if type(value) is list:
        return parts
    try:
        return type(value)(parts)  # type: ignore[call-arg]
    except TypeError:
        return parts
