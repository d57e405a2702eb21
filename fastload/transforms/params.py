"""The parameters of a batch on their way to its images: all of them in one page-locked copy.

In: tensors of the host, [N, ...] each, nested as the transforms that drew them are. Out: the same nest, with its
tensors on the images' device. Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

Params: TypeAlias = dict[str, Tensor]
"""The parameters of one transform for a batch: tensors of the CPU, or of the images' device, [N, ...] each."""

# Of each tensor in the buffer, in bytes: what the widest loads ask for, and Triton compiles for.
_ALIGNMENT = 16


def params_to(params: Any, device: torch.device) -> Any:
    """Return parameters, nested as they may be, on a device. Does not wait for it.

    To CUDA all that is on the host goes in one copy. ``torch.compile`` does not look into that: it compiles what comes
    before and what comes after; with ``fullgraph=True`` give parameters that are on the device.
    """
    if device.type != "cuda":
        return _mapped(params, lambda leaf: leaf.to(device, non_blocking=True))
    waiting = [leaf for leaf in _leaves(params) if leaf.device.type == "cpu"]
    if not waiting:
        return _mapped(params, lambda leaf: leaf.to(device, non_blocking=True))
    moved = iter(_in_one_copy(waiting, device))
    return _mapped(
        params, lambda leaf: next(moved) if leaf.device.type == "cpu" else leaf.to(device, non_blocking=True)
    )


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _in_one_copy(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    # From memory that is not page-locked, the copy would be finished before this returns.
    buffer = _page_locked(places_of(tensors)[-1])
    pack(tensors, buffer)
    return unpack(_sent(buffer, device), tensors)


def _page_locked(size: int) -> Tensor:
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


def _sent(buffer: Tensor, device: torch.device) -> Tensor:
    return buffer.to(device, non_blocking=True)


def places_of(tensors: Sequence[Tensor]) -> list[int]:
    """Return at which byte of a buffer each tensor begins, aligned, and how long the buffer is."""
    places = [0]
    for tensor in tensors:
        places.append(places[-1] + -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT)
    return places


def pack(tensors: Sequence[Tensor], buffer: Tensor) -> None:
    """Write tensors into a buffer of bytes, each at its place."""
    for tensor, target in zip(tensors, unpack(buffer, tensors), strict=True):
        target.copy_(tensor)


def unpack(buffer: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Return the parts of a buffer of bytes as tensors of the dtypes and shapes of others: contiguous views."""
    return [
        buffer[place : place + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for place, tensor in zip(places_of(like), like, strict=False)  # the last place is the end
    ]


def _mapped(params: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(params, Tensor):
        return function(params)
    if isinstance(params, Mapping):
        return {name: _mapped(value, function) for name, value in params.items()}
    if isinstance(params, (list, tuple)):
        return type(params)(_mapped(value, function) for value in params)
    return params


def _leaves(params: Any) -> Iterator[Tensor]:
    if isinstance(params, Tensor):
        yield params
    elif isinstance(params, Mapping):
        for value in params.values():
            yield from _leaves(value)
    elif isinstance(params, (list, tuple)):
        for value in params:
            yield from _leaves(value)


__all__ = ["Params", "pack", "params_to", "places_of", "unpack"]
