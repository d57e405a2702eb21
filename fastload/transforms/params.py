"""Moves the parameters of a batch to the device of its images, and checks given ones."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeAlias, TypeVar

import torch
from torch import Tensor

from ..base.nesting import map_leaves

Params: TypeAlias = dict[str, Tensor]
"""The parameters of one transform for a batch: tensors of the CPU, or of the images' device, [N, ...] each."""

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

    Raises:
        RuntimeError: a CUDA graph is captured, and parameters are on the host.
    """

    def on_device(leaf: Tensor) -> Tensor:
        if device.type == "cuda" and leaf.device.type == "cpu":
            leaf = _page_locked(leaf)  # else the copy would be finished before this returns
        return leaf.to(device, non_blocking=True)

    return map_leaves(params, on_device, is_leaf=_is_tensor)


@uncompiled
def _page_locked(leaf: Tensor) -> Tensor:
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "parameters of a transform were drawn on the host while a CUDA graph is captured: each replay would read "
            "them from memory that is gone; draw them before, copy them to the device, and give them as params="
        )
    return leaf.pin_memory()


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def check_params(place: str, given: Any, wanted: Any) -> None:
    """Raise a TypeError or ValueError unless the parameters given are like those wanted, drawn for as many images.

    Names, kinds of dtypes and shapes are compared, without a synchronisation. On the CPU floats must be finite.
    ``place``: of these parameters, for the error.
    """
    if isinstance(wanted, Tensor):
        _check_tensor(place, given, wanted)
        return
    takes = f"a dict with {_names(wanted)}"
    if not isinstance(given, Mapping):
        raise TypeError(f"{place} of {type(given).__name__}, and takes {takes}: {_REMEDY}")
    if given.keys() != wanted.keys():
        raise ValueError(f"{place} with {_names(given)}, and takes {takes}: {_REMEDY}")
    for name, value in wanted.items():
        check_params(f"{place}[{name!r}]", given[name], value)


def _check_tensor(place: str, given: Any, wanted: Tensor) -> None:
    if not isinstance(given, Tensor):
        raise TypeError(f"{place} of {type(given).__name__}, and takes a tensor of {wanted.dtype}: {_REMEDY}")
    if given.dtype != wanted.dtype and not (given.is_floating_point() and wanted.is_floating_point()):
        raise TypeError(f"{place} of {given.dtype}, and takes {wanted.dtype}: {_REMEDY}")
    if given.shape != wanted.shape:
        raise ValueError(
            f"{place} of shape {tuple(given.shape)}, and takes {tuple(wanted.shape)} for these images: {_REMEDY}"
        )
    if given.device.type == "cpu" and given.is_floating_point() and not (finite := given.isfinite()).all():
        raise ValueError(f"{place} with {given[~finite][0].item()} in it, and takes finite numbers")


_REMEDY = "use what return_params=True returned for as many images"


def _names(params: Mapping[Any, Any]) -> str:
    return ", ".join(map(repr, params)) or "nothing in it"
