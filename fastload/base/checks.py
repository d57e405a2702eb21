"""Checks of single arguments. Imports nothing that takes time: the command line reads some of them."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection
from typing import Any

from ..errors import ConfigError


def as_integer(value: Any) -> Any:
    """Convert an integer of another type (NumPy's, a tensor of one element) to Python's; return others unchanged."""
    return value if isinstance(value, bool) or not hasattr(type(value), "__index__") else operator.index(value)


def is_integer(value: object, low: int, end: int) -> bool:
    """Return whether a value is an integer, not a bool, from ``low`` to below ``end``."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value < end


def check_epoch(epoch: Any) -> int:
    """Return the epoch as a Python integer; raise a ConfigError unless it is one from 0 to 2**63 - 1."""
    number: int = as_integer(epoch)
    if not is_integer(number, 0, 1 << 63):
        raise ConfigError(f"epoch must be an integer from 0 to 2**63 - 1, got {epoch=}")
    return number


def check_seed(name: str, seed: Any, *, bits: int = 128) -> int:
    """Return a seed, or raise a ConfigError if it is no signed integer of so many bits."""
    number: int = as_integer(seed)
    if not is_integer(number, -(1 << (bits - 1)), 1 << (bits - 1)):
        raise ConfigError(f"{name} must be an integer of at most {bits} bits, signed, got {name}={seed!r}")
    return number


def check_number(name: str, value: Any, *, least: int = 0) -> int:
    """Return a number, or raise a ConfigError if it is no integer of at least ``least``."""
    number: int = as_integer(value)
    if not is_integer(number, least, 1 << 63):
        raise ConfigError(f"{name} must be an integer of at least {least}, got {name}={value!r}")
    return number


check_count = functools.partial(check_number, least=1)
"""Return a number of things, or raise a ConfigError if it is no integer of at least 1."""


def check_flag(name: str, value: Any) -> bool:
    """Return True or False, or raise a ConfigError if it is neither."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False, got {name}={value!r}")
    return value


def check_paths(name: str, paths: Any) -> tuple[str | int, ...]:
    """Return paths into a batch, or raise a ConfigError if these are not keys and places."""
    if isinstance(paths, str) or not isinstance(paths, Collection):
        raise ConfigError(f"{name} must be a collection of keys or places, as ('lengths',), got {name}={paths!r}")
    for path in paths:
        if isinstance(path, bool) or not isinstance(path, (str, int)):
            raise ConfigError(f"{name} must hold keys or places, as 'lengths' or 1, got {path!r}")
    return tuple(paths)


def check_transform(name: str, transform: Any) -> Any:
    """Return a function of a batch, or raise a ConfigError if it is none."""
    if isinstance(transform, type):
        raise ConfigError(
            f"{name} must be an instance, got the class {transform.__name__}: call it with its arguments first"
        )
    if transform is not None and not callable(transform):
        raise ConfigError(f"{name} must be callable with a batch, got {transform!r}")
    return transform


def one_of(*values: str | bool | None) -> Callable[[str, Any], Any]:
    """Return a check that an argument is one of these."""
    *most, last = map(repr, values)

    def check(name: str, value: Any) -> Any:
        if not any(isinstance(value, type(one)) and value == one for one in values):
            raise ConfigError(f"{name} must be {', '.join(most)} or {last}, got {name}={value!r}")
        return value

    return check
