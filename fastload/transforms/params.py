"""The parameters of a batch on their way to its images: all of them in one page-locked copy.

In: tensors of the host, [N, ...] each, nested as the transforms that drew them are. Out: the same nest, with its
tensors on the images' device. Nothing here waits for the device.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ParamSpec, TypeAlias, TypeVar

import torch
from torch import Tensor

Params: TypeAlias = dict[str, Tensor]
"""The parameters of one transform for a batch: tensors of the CPU, or of the images' device, [N, ...] each."""

# Of each tensor in the buffer, in bytes: what the widest loads ask for, and Triton compiles for.
_ALIGNMENT = 16


_P = ParamSpec("_P")
_T = TypeVar("_T")


def uncompiled(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Return a function that ``torch.compile`` does not look into, as ``torch.compiler.disable`` does.

    That one loads the compiler: a second and 80 MB of every process. Where none is loaded, none is recording.
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
    """Return parameters, nested as they may be, on a device. Does not wait for it.

    To CUDA all that is on the host goes in one copy. ``torch.compile`` does not look into that: it compiles what comes
    before and what comes after; with ``fullgraph=True`` give parameters that are on the device.
    """
    if device.type != "cuda":
        return _mapped(params, lambda leaf: leaf.to(device, non_blocking=True))
    waiting = [leaf for leaf in leaves_of(params) if leaf.device.type == "cpu"]
    if not waiting:
        return _mapped(params, lambda leaf: leaf.to(device, non_blocking=True))
    moved = iter(_in_one_copy(waiting, device))
    return _mapped(
        params, lambda leaf: next(moved) if leaf.device.type == "cpu" else leaf.to(device, non_blocking=True)
    )


@uncompiled
def _in_one_copy(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    # From memory that is not page-locked, the copy would be finished before this returns.
    buffer = _page_locked(places_of(tensors)[-1])
    pack(tensors, buffer)
    return unpack(_sent(buffer, device), tensors)


def _page_locked(size: int) -> Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)


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


def check_params(owner: str, given: Any, wanted: Any, num: int) -> None:
    """Check parameters that the caller gives: names, nesting, kinds of dtypes and shapes. Does not synchronise.

    Of those on the CPU also that floats are finite, and that indices of samples, under a name that begins with "rows",
    are of samples that there are. How many such indices there are depends on the draws, and is not compared.

    Args:
        owner: the transform's name, for the error.
        given: the parameters.
        wanted: what the transform draws for as many images; the values do not matter.
        num: of images.

    Raises:
        TypeError: another nesting, or tensors of another kind of dtype.
        ValueError: other names, shapes, or values as said above.
    """
    _check(f"{owner} got params", given, wanted, num, False)


def _check(place: str, given: Any, wanted: Any, num: int, rows: bool) -> None:
    """Check a part of a nest; ``rows``: of indices of samples."""
    if isinstance(wanted, Mapping):
        if not isinstance(given, Mapping):
            raise TypeError(f"{place} of {type(given).__name__}, and takes a dict of {_names(wanted)}: {_REMEDY}")
        if given.keys() != wanted.keys():
            raise ValueError(f"{place} with {_names(given)}, and takes {_names(wanted)}: {_REMEDY}")
        for name, value in wanted.items():
            _check(f"{place}[{name!r}]", given[name], value, num, rows or str(name).startswith("rows"))
    elif isinstance(wanted, (list, tuple)):
        if not isinstance(given, (list, tuple)):
            raise TypeError(f"{place} of {type(given).__name__}, and takes a list of {len(wanted)}: {_REMEDY}")
        if len(given) != len(wanted):
            raise ValueError(f"{place} of {len(given)} parts, and takes a list of {len(wanted)}: {_REMEDY}")
        for number, (one, other) in enumerate(zip(given, wanted, strict=True)):
            _check(f"{place}[{number}]", one, other, num, rows)
    elif isinstance(wanted, Tensor):
        _check_tensor(place, given, wanted, num, rows)


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


_REMEDY = "give what return_params=True gave for as many images"


def _names(params: Mapping[Any, Any]) -> str:
    return ", ".join(repr(name) for name in params) or "nothing in it"


def _mapped(params: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(params, Tensor):
        return function(params)
    if isinstance(params, Mapping):
        return {name: _mapped(value, function) for name, value in params.items()}
    if isinstance(params, (list, tuple)):
        return type(params)(_mapped(value, function) for value in params)
    return params


def leaves_of(params: Any) -> Iterator[Tensor]:
    """Yield the tensors of a nest, in its order."""
    if isinstance(params, Tensor):
        yield params
    elif isinstance(params, Mapping):
        for value in params.values():
            yield from leaves_of(value)
    elif isinstance(params, (list, tuple)):
        for value in params:
            yield from leaves_of(value)
