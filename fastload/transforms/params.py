"""Moves the parameters of a batch to the device of its images, in one page-locked copy, and checks given ones."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeAlias, TypeVar

import torch
from torch import Tensor

from ..base.nesting import leaves_of, map_leaves

Params: TypeAlias = dict[str, Tensor]
"""The parameters of one transform for a batch: tensors of the CPU, or of the images' device, [N, ...] each."""

# Of each tensor in the buffer, in bytes: for the widest loads, and as Triton assumes.
_ALIGNMENT = 16


_P = ParamSpec("_P")
_T = TypeVar("_T")


def uncompiled(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Return a function that ``torch.compile`` does not look into, as ``torch.compiler.disable`` does.

    That function loads the compiler: a second and 80 MB of every process. Without the compiler nothing is recorded.
    """
    disabled: list[Callable[_P, _T]] = []

    @functools.wraps(function)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        if not disabled:
            disabled.append(torch.compiler.disable(function))
        return disabled[0](*args, **kwargs)

    return called


def params_to(params: Any, device: torch.device) -> Any:
    """Return parameters, nested as they may be, on a device, without a synchronisation.

    To CUDA all that is on the host goes in one copy. ``torch.compile`` breaks the graph there; with ``fullgraph=True``
    give parameters that are on the device.
    """
    to_cuda = device.type == "cuda"
    leaves = (leaf for _, leaf in leaves_of(params, _is_tensor))
    waiting = [leaf for leaf in leaves if to_cuda and _is_tensor(leaf) and leaf.device.type == "cpu"]
    moved = iter(_in_one_copy(waiting, device) if waiting else ())

    def on_device(leaf: Tensor) -> Tensor:
        return next(moved) if to_cuda and leaf.device.type == "cpu" else leaf.to(device, non_blocking=True)

    return map_leaves(params, on_device, is_leaf=_is_tensor)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


@uncompiled
def _in_one_copy(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    # From memory that is not page-locked, the copy would be finished before this returns.
    buffer = _page_locked(offsets_of(tensors)[-1])
    for tensor, target in zip(tensors, views_of(buffer, tensors), strict=True):
        target.copy_(tensor)
    return views_of(_sent(buffer, device), tensors)


def _page_locked(size: int) -> Tensor:
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "parameters of a transform were drawn on the host while a CUDA graph is captured: each replay would read "
            "them from memory that is gone; draw them before, copy them to the device, and give them as params="
        )
    return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)


def _sent(buffer: Tensor, device: torch.device) -> Tensor:
    return buffer.to(device, non_blocking=True)


def offsets_of(tensors: Sequence[Tensor]) -> list[int]:
    """Return the aligned offset of each tensor in a buffer, in bytes, and the size of the buffer."""
    offsets = [0]
    for tensor in tensors:
        offsets.append(offsets[-1] + -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT)
    return offsets


def views_of(buffer: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Return the parts of a buffer of bytes as contiguous views, with the dtypes and shapes of other tensors."""
    return [
        buffer[offset : offset + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for offset, tensor in zip(offsets_of(like), like, strict=False)  # the last offset is the end
    ]


def check_params(place: str, given: Any, wanted: Any, num: int, rows: bool = False) -> None:
    """Raise a TypeError or ValueError unless the parameters given are like those wanted, drawn for as many images.

    Names, nesting, kinds of dtypes and shapes are compared, without a synchronisation. On the CPU floats must be
    finite, and indices of samples, under a name that begins with "rows", in the batch; how many there are depends on
    the draws. ``place``: of these parameters, for the error.
    """
    parts, theirs = _parts(wanted), _parts(given)
    if parts is None:
        if isinstance(wanted, Tensor):
            _check_tensor(place, given, wanted, num, rows)
        return
    takes = f"a {'list' if isinstance(wanted, (list, tuple)) else 'dict'} with {_names(parts)}"
    if theirs is None:
        raise TypeError(f"{place} of {type(given).__name__}, and takes {takes}: {_REMEDY}")
    if theirs.keys() != parts.keys():
        raise ValueError(f"{place} with {_names(theirs)}, and takes {takes}: {_REMEDY}")
    for name, value in parts.items():
        check_params(f"{place}[{name!r}]", theirs[name], value, num, rows or str(name).startswith("rows"))


def _parts(nest: Any) -> Mapping[Any, Any] | None:
    if isinstance(nest, (list, tuple)):
        return dict(enumerate(nest))
    return nest if isinstance(nest, Mapping) else None


def _check_tensor(place: str, given: Any, wanted: Tensor, num: int, rows: bool) -> None:
    if not isinstance(given, Tensor):
        raise TypeError(f"{place} of {type(given).__name__}, and takes a tensor of {wanted.dtype}: {_REMEDY}")
    if given.dtype != wanted.dtype and not (given.is_floating_point() and wanted.is_floating_point()):
        raise TypeError(f"{place} of {given.dtype}, and takes {wanted.dtype}: {_REMEDY}")
    if rows:
        if given.ndim != 1 or len(given) > num:
            raise ValueError(f"{place} of shape {tuple(given.shape)}, and takes [K], of {num} samples: {_REMEDY}")
    elif given.shape != wanted.shape:
        raise ValueError(
            f"{place} of shape {tuple(given.shape)}, and takes {tuple(wanted.shape)} for these images: {_REMEDY}"
        )
    if given.device.type != "cpu" or not given.numel():
        return
    if given.is_floating_point():
        finite = given.isfinite()
        if not finite.all():
            raise ValueError(f"{place} with {given[~finite][0].item()} in it, and takes finite numbers")
    elif rows and (given.min() < 0 or given.max() >= num):
        raise ValueError(f"{place} of samples {given.min()} to {given.max()}, and there are 0 to {num - 1}")


_REMEDY = "use what return_params=True returned for as many images"


def _names(params: Mapping[Any, Any]) -> str:
    return ", ".join(map(repr, params)) or "nothing in it"
