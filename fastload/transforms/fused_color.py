"""Colours in at most two launches, on CUDA: ColorJitter, or a policy's step, and the change of values after it.

In: images, the parameters that were drawn, and an Arithmetic. Out: the images that torch's operations would give, one
after the other; but NaN becomes the least value of the range. The first kernel sums the grey levels of the images that
a contrast meets, the second does all else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import fused
from .arithmetic import Arithmetic, Operation
from .tensors import memory_format_of

_DTYPES = (torch.uint8, torch.float16, torch.bfloat16, torch.float32)
_BLOCK = 1024
_MOST_PARTS = 16
# As the kernels are written: see there.
_OPTIONS = {"enable_fp_fusion": False}


def takes(images: Tensor) -> bool:
    """Return whether the kernels take these images."""
    if not fused.takes(images) or images.dtype not in _DTYPES or images.shape[1] not in (1, 3):
        return False
    return images[0].numel() < 2**31


def jittered(images: Tensor, params: Any, arithmetic: Arithmetic) -> Tensor:
    """Return images after ColorJitter and an arithmetic that ``fused.computes``; ``params``: the jitter's, there."""
    blends = ("brightness", "contrast", "saturation", "hue")
    steps = (params["order"], params["before_hue"], *(params.get(name) for name in blends))
    num_blends = params["order"].shape[1]
    turns = num_blends + ("hue" in params)
    return _changed(images, steps, (num_blends, turns), "contrast" in params, arithmetic)


def stepped(images: Tensor, operations: Tensor, magnitudes: Tensor) -> Tensor:
    """Return images after a step of a policy: operations, [N], by their number, and magnitudes, [N].

    Operations that are no colours, AutoContrast and Equalize do nothing.
    """
    arithmetic = Arithmetic(Operation.CAST, images.dtype)
    return _changed(images, (operations, magnitudes), (-1, 1), True, arithmetic)


def _changed(
    images: Tensor,
    steps: Sequence[Tensor | None],
    kinds: tuple[int, int],
    contrast: bool,
    arithmetic: Arithmetic,
) -> Tensor:
    """Return the changed images.

    Args:
        images: [N, C, H, W]; those that are neither contiguous nor channels-last are copied first.
        steps: parameters of the steps, on the device of the images.
        kinds: how many steps there are without hue, or -1 for a policy; and with it.
        contrast: whether a sample may have it.
        arithmetic: what is done afterwards.

    Tolerance: uint8 as torch's operations on CUDA, which round once what the CPU may round twice: levels may be 1 apart
    after a step, and the steps after it may enlarge that. Floats within 1e-5, float16 and bfloat16 rounded once.

    Raises:
        ValueError: the parameters are for another number of images.
        Exception: whatever Triton raises, with a note; there is no fallback.

    Cost:
        One launch that reads the images, if there is contrast, and one that reads them and writes the result.
    """
    num, channels, height, width = images.shape
    memory_format = memory_format_of(images)
    images = images.contiguous(memory_format=memory_format)
    out = torch.empty_like(images, dtype=arithmetic.dtype, memory_format=memory_format)
    pixels = height * width
    distances = (channels, 1) if memory_format == torch.channels_last else (1, pixels)
    blocks = -(-pixels // _BLOCK)
    parts = min(_MOST_PARTS, 1 << (blocks - 1).bit_length())
    kernels = _kernels()
    given = tuple(fused._plain(values, num) for values in steps)
    config = (*kinds, channels, _BLOCK, parts, int(arithmetic.operation), kernels.TYPES[arithmetic.via or images.dtype])
    sums = torch.empty((num, parts), dtype=torch.float64, device=images.device) if contrast else None
    with fused._explained(), torch.cuda.device_of(images):
        if sums is not None:
            kernels.grey_sums[(num * parts,)](images, sums, given, (pixels, *distances), config[:5], **_OPTIONS)
        kernels.changed[(num * blocks,)](
            images,
            out,
            sums,
            given,
            (pixels, *distances, height, width),
            (arithmetic.factors, arithmetic.summands),
            config,
            **_OPTIONS,
        )
    return out


def _kernels() -> Any:
    return fused.kernels().color
