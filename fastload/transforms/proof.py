"""A kernel proves itself on the user's device: its first result of each kind is compared with torch's.

If it differs, does not compile, or raises, torch's operations serve from then on, for the device and the kind of call.
The first time there is a warning, and ``DataLoader.explain`` gives the reason.

A kernel is compiled on the user's machine, for a device and by versions of Triton that no test may have seen. The first
call of a kind costs the compilation, one pass of torch's operations, and a wait for the device.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from ..errors import one_line

_reasons: dict[tuple[torch.device, Hashable], str | None] = {}
"""Why torch's operations serve, by device and kind of call; None: the kernel has proved itself."""
_warned: set[torch.device] = set()


def served(
    device: torch.device,
    kind: Hashable,
    launch: Callable[[], Tensor],
    by_torch: Callable[[], Tensor],
    difference: Callable[[Tensor, Tensor], str | None],
) -> Tensor:
    """Return the result of a kernel that has proved itself, else that of torch's operations.

    While a CUDA graph is captured nothing can be compared: then a kernel that is still to prove itself does not serve.
    ``kind`` tells calls apart for which other code is compiled; ``difference`` says how the kernel's result differs
    from torch's beyond the tolerance.
    """
    key = device, kind
    is_new = key not in _reasons
    if _reasons.get(key) is not None or (is_new and _is_capturing(device)):
        return by_torch()
    expected = by_torch() if is_new else None
    reason: str | None
    try:
        found = launch()
        reason = None if expected is None else difference(found, expected)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # of Triton, the compilers that it calls, and the device
        reason = f"it raised {one_line(error)}"
    else:
        if reason is None:
            _reasons[key] = None
            return found
    _reasons[key] = reason
    if device not in _warned:
        _warned.add(device)
        warnings.warn(
            f"torch's operations replace fastload's Triton kernel on {device}, since {reason}; they take more passes "
            "over the batch. FASTLOAD_TRITON=0 in the environment turns the kernel off",
            RuntimeWarning,
            stacklevel=2,
        )
    return by_torch()


def refusals(device: torch.device) -> list[str]:
    """Return why the kernel does not serve some calls on a device; once for each reason."""
    found = [reason for (where, _), reason in list(_reasons.items()) if reason and where == device]
    return list(dict.fromkeys(found))


def in_words(device: torch.device) -> list[str]:
    """Return what became of the kernel on a device so far, in lines."""
    proved = any(where == device and reason is None for (where, _), reason in list(_reasons.items()))
    lines = ["crops, flips and values: by Triton, whose first results were those of torch's operations"] * proved
    return lines + [f"torch's operations replace the Triton kernel: {reason}" for reason in refusals(device)]


def far_apart(found: Tensor, expected: Tensor, limit: Tensor | float) -> str | None:
    """Return how many values differ by more than a limit, in words; None: none. Waits for the device.

    NaN equals NaN. ``limit`` broadcasts to the tensors, which have one shape and dtype.
    """
    apart = (found.double() - expected.double()).abs()
    near = (found == expected) | (found.isnan() & expected.isnan())
    if isinstance(limit, Tensor) or limit:
        near |= (apart <= limit) & expected.isfinite()
    far = ~near
    count = int(far.sum())
    if not count:
        return None
    most = float(apart[far].nan_to_num(float("inf")).max())
    return f"{count:,} of its {found.numel():,} values differ from torch's, by up to {most:g}"


def _is_capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
