"""Pinning without an accelerator: a copy, by the thread and the queues that pin on one."""

from typing import Any

import pytest
import torch
from torch.utils import _pytree

from fastload.base import compat, compat_features


def pin_by_copies(monkeypatch: pytest.MonkeyPatch, named: str | None = "cpu") -> list[Any]:
    """Let loaders pin; return the list of devices that they pin for. ``named``: the device of torch's base class."""
    begin = compat.BaseIterator.__init__

    def begin_pinned(iterator: Any, loader: Any) -> None:
        begin(iterator, loader)
        if loader.pin_memory:
            iterator._pin_memory, iterator._pin_memory_device = True, named

    pinned: list[Any] = []

    def pin(data: Any, device: Any, index: int) -> Any:
        pinned.append(device)
        return _pytree.tree_map(torch.clone, data)

    monkeypatch.setattr(compat.BaseIterator, "__init__", begin_pinned)
    monkeypatch.setattr(compat_features, "accelerator_index", lambda: 0)
    monkeypatch.setattr(compat_features, "pin_on_device", pin)
    return pinned
