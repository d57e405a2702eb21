"""A device that works later than it is told to: its streams and events, and the copies to it.

See NOTE [Three streams] in moving.py.

NOTE [Forked processes]
CUDA does not work in a forked process. If such a process frees a tensor that several streams used, torch's allocator
asks CUDA for an event, gets an error inside a destructor, and ends the process; an event's destructor calls CUDA too.
So what holds tensors and events of a device says so (:func:`keep_in_children`), and a forked process never frees what
it held at the fork. The memory is the parent's: it costs the child nothing.
"""

from __future__ import annotations

import contextlib
import functools
import os
import weakref
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from ..base.nesting import tensors_in
from ..errors import ConfigError


class Streams:
    """The streams of a device that works asynchronously: for copies, for transforms, and the user's current one.

    All loaders share those of a device (:func:`streams_of`): torch's allocator keeps freed memory for the stream that
    it was allocated on, so that new streams would leave it unused.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._module: Any = torch.get_device_module(device)
        # A host that waits for such an event sleeps: the workers need its core.
        self._sleeping = {"blocking": True} if device.type == "cuda" else {}
        self.copies: Any = self._module.Stream(device=device)
        self.transforms: Any = self._module.Stream(device=device)

    def holds(self, leaf: Tensor) -> bool:
        """Return whether a tensor is on the device."""
        return leaf.device == self.device

    @property
    def compute(self) -> Any:
        """The user's current stream, to be compared."""
        return self._module.current_stream(self.device)

    def on(self, stream: Any) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which work goes to a stream."""
        context: contextlib.AbstractContextManager[Any] = self._module.stream(stream)
        return context

    def to_device(self, leaf: Tensor) -> Tensor:
        """Return a copy on the device, made on the current stream. Does not block.

        What is not page-locked is copied through page-locked memory of torch's allocator.
        """
        if leaf.device.type == "cpu" and leaf.layout is torch.strided:
            ready = leaf
            turned = leaf.ndim == 4 and leaf.is_contiguous(memory_format=torch.channels_last)
            if not (turned or leaf.is_contiguous()):
                ready = ready.contiguous()  # else the copy would make it so, in memory that it waits for
            if not ready.is_pinned():
                ready = ready.pin_memory()
            # BoundingBoxes, for one, become a plain tensor by these, but not by `to()`.
            if type(ready) is type(leaf):
                leaf = ready
        return leaf.to(self.device, non_blocking=True)

    def object_to_device(self, leaf: Any) -> Any:
        """Return a copy of an object (see :func:`copies_async`) on the device, made on the current stream."""
        if not any(map(self.holds, tensors_in(leaf))):
            leaf = leaf.pin_memory()
        return leaf.to(self.device, non_blocking=True)

    def copy_into(self, place: Tensor, leaf: Tensor) -> None:
        """Copy within the device, on the current stream."""
        place.copy_(leaf, non_blocking=True)

    def mark(self, stream: Any) -> torch.Event:
        """Return an event behind the work of a stream so far."""
        event = self._module.Event(**self._sleeping)
        event.record(stream)
        marked: torch.Event = event
        return marked

    def wait(self, stream: Any, event: Any) -> None:
        """Let a stream wait for an event."""
        stream.wait_event(event)

    def note_use(self, leaf: Any, stream: Any) -> None:
        """Tell the allocator that a stream reads a tensor, or an object's tensors, of another stream."""
        for part in _strided_parts(leaf):
            part.record_stream(stream)


def copies_async(leaf: Any) -> bool:
    """Return whether an object with ``to()`` can be copied like a tensor: from page-locked memory, on any stream.

    It has ``pin_memory()`` and ``record_stream()``, as PyG's ``Data``. PackedSequence lacks the second, but its tensors
    are at hand.
    """
    if isinstance(leaf, PackedSequence):
        return True
    return not isinstance(leaf, Tensor) and has_record_stream(leaf) and callable(getattr(leaf, "pin_memory", None))


def has_record_stream(leaf: Any) -> bool:
    """Return whether an object, or a tensor, can tell the allocator which stream reads it."""
    return callable(getattr(leaf, "record_stream", None))


def _strided_parts(leaf: Any) -> list[Any]:
    """Return the tensors that a tensor is made of, since the allocator knows no others; an object itself."""
    if not isinstance(leaf, Tensor):
        return [leaf]
    if leaf.is_nested:
        return [leaf.values()] if leaf.layout is torch.jagged else list(leaf.unbind())
    if leaf.layout is torch.sparse_coo:
        return [leaf._indices(), leaf._values()]
    if leaf.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [leaf.crow_indices(), leaf.col_indices(), leaf.values()]
    if leaf.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [leaf.ccol_indices(), leaf.row_indices(), leaf.values()]
    return [leaf]


@functools.cache
def streams_of(device: torch.device) -> Streams | None:
    """Return the streams of a device; None for the CPU, and for devices that have none."""
    if device.type == "cpu":
        return None
    module = torch.get_device_module(device)
    if not all(hasattr(module, name) for name in ("Stream", "Event", "stream", "current_stream")):
        return None
    return Streams(device)


_holders: weakref.WeakSet[Any] = weakref.WeakSet()
_kept_in_child: list[Any] = []


def keep_in_children(holder: object) -> None:
    """Keep what an object's attributes hold at a fork for the life of the forked process. See NOTE [Forked processes].

    The object may assign other values to its attributes there, but not empty the containers that they hold.
    """
    _holders.add(holder)


def _after_fork_in_child() -> None:
    _kept_in_child.extend(vars(holder).copy() for holder in list(_holders))


os.register_at_fork(after_in_child=_after_fork_in_child)


def device_of(device: torch.device | str | int) -> torch.device:
    """Return a device with its index; a ConfigError if it is none, or not there."""
    try:
        found: torch.device = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"device must name a device of torch's, as 'cuda' or 'cpu', got {device=}: {error}") from None
    if found.type == "cpu":
        return torch.device("cpu")
    try:
        module: Any = torch.get_device_module(found)
        count: int = module.device_count()
    except (RuntimeError, AttributeError):
        module, count = None, 0
    index: Any = found.index  # None where it was not given
    if index is None:
        index = module.current_device() if count and hasattr(module, "current_device") else 0
    if count <= index:
        raise ConfigError(
            f"device={device!r} is not there: torch {torch.__version__} sees {count} devices of the type {found.type}; "
            "device='cpu' runs the same stages without a copy"
        )
    return torch.device(found.type, index)


def device_or_cpu(device: Any) -> torch.device:
    """Return a loader's device; the CPU where it was given none."""
    return torch.device("cpu") if device is None else device_of(device)
