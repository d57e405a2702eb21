"""Settings of torch's that a user may have made, for the time of a ``with``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch


@contextlib.contextmanager
def _set(get: Callable[[], Any], put: Callable[[Any], None], value: Any) -> Iterator[None]:
    before = get()
    put(value)
    try:
        yield
    finally:
        put(before)


def default_dtype(dtype: torch.dtype) -> contextlib.AbstractContextManager[None]:
    return _set(torch.get_default_dtype, torch.set_default_dtype, dtype)


def default_device(device: str) -> contextlib.AbstractContextManager[None]:
    return _set(lambda: None, torch.set_default_device, device)


def deterministic() -> contextlib.AbstractContextManager[None]:
    return _set(torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True)
