"""Batches of images as tensors: memory layout, computation in parts, changes of some samples, faster CPU operations.

On the CPU a batch is processed in parts that fit into the caches: the intermediate results of colour operations are
floats, four times as large as uint8 images, and a whole batch of them would go through main memory in each operation.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, cast

import torch
from torch import Tensor

P = ParamSpec("P")

# Values in a part, for each thread: measured on a core with 1 MB of second-level cache, where half and twice as many
# are as fast.
PART_SIZE = 1 << 19

# To copy bits: NumPy has no bfloat16, and integers have fast paths.
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def eager_on_cpu(images: Tensor) -> bool:
    """Return whether torch's CPU kernels run, and no compiler records them."""
    return images.device.type == "cpu" and not torch.compiler.is_compiling()


def on_host(images: Tensor) -> bool:
    """Return whether a loop over samples on the host is possible: parameters can be read, and nothing is recorded."""
    return eager_on_cpu(images) and not images.requires_grad


def memory_format_of(images: Tensor) -> torch.memory_format:
    """Return channels-last if the images are that, and not contiguous too; else contiguous."""
    last = images.is_contiguous(memory_format=torch.channels_last) and not images.is_contiguous()
    return torch.channels_last if last else torch.contiguous_format


def wide_dtype(*dtypes: torch.dtype) -> torch.dtype:
    """Return the dtype to compute in: float64 if one of these is, else float32."""
    return torch.float64 if torch.float64 in dtypes else torch.float32


def narrowed(wide: Tensor, dtype: torch.dtype) -> Tensor:
    """Return floats in another dtype. uint8 truncates; the values must be in [0, 256)."""
    if dtype == torch.uint8 and eager_on_cpu(wide):
        return wide.to(torch.int16).to(torch.uint8)  # 0.14 ns a value, and 0.6 ns directly: AVX-512, torch 2.13
    return wide.to(dtype)


def in_parts(function: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Make a function of images process them in parts on the CPU.

    The function takes images [N, C, H, W] and tensors [N, ...] as positional arguments and returns [N, C, H, W]. The
    images of a part are contiguous, so a result does not depend on the memory layout.
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        images, *values = cast("tuple[Tensor, ...]", args)
        if not eager_on_cpu(images):
            return function(*args, **kwargs)
        out: Tensor | None = None
        part: Any = function
        for rows in slices(images):
            result = part(images[rows].contiguous(), *(value[rows] for value in values), **kwargs)
            if out is None:
                out = torch.empty_like(images, dtype=result.dtype)
            out[rows] = result
        assert out is not None  # a batch is not empty
        return out

    return run


def slices(images: Tensor) -> list[slice]:
    """Return the parts of a batch: an even number of samples each, so that pairs stay together."""
    step = part_of(images)
    return [slice(start, start + step) for start in range(0, len(images), step)]


def part_of(images: Tensor) -> int:
    """Return how many samples are a part: as many for each thread as fit into its cache, and an even number."""
    return max(2, PART_SIZE * torch.get_num_threads() // images[0].numel() // 2 * 2)


def choose(images: Tensor, chosen: Tensor, function: Callable[..., Tensor], *values: Tensor) -> Tensor:
    """Return the images, with a function of (images, *values) applied to the ``chosen`` ones; [N], bool.

    On the CPU it is applied to these alone. Elsewhere it is to all: how many there are would have to be known on the
    host. ``values``: [N, ...] each.
    """
    if not eager_on_cpu(images):
        return torch.where(chosen.view(-1, 1, 1, 1), function(images, *values), images)
    changed = images.clone()
    of_part = inspect.unwrap(function)  # these are parts already
    for rows in chosen.nonzero().flatten().split(part_of(images)):
        if len(rows):
            part = images.index_select(0, rows).contiguous()
            part = of_part(part, *(value.index_select(0, rows) for value in values))
            for row, sample in zip(rows.tolist(), part, strict=True):  # index_copy_ copies value by value
                changed[row] = sample
    return changed
