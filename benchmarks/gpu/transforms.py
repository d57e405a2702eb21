"""Transforms of whole batches: uint8 in, normalised bfloat16 out, channels-last, on the device.

Claim: the kernels of the crop pipelines read and write at 0.8 of the rate of a copy on the device.

The sides: "copy": ``copy_`` within the device of as many bytes as the pipeline reads and writes; "kernels": fastload's
transform with its parameters already on the device, all calls in one CUDA graph, as the copies are; "fastload": the
call as a script makes it, which draws the parameters on the host.

Bytes: the uint8 pixels that the result is made of (of ``RandomResizedCrop`` the whole image, although it reads less),
and two for each value that is written. Inputs and outputs rotate, so that no call finds its own in a cache.

Meaningless if: the inputs of a round fit into the device's cache; their bytes stand in the JSON line's arguments.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.made_data import MEAN, STD, noise
from benchmarks.gpu.measuring import CannotMeasure, captured, measuring, seconds_of
from benchmarks.loops import kept
from benchmarks.spec import Measurement, Side
from fastload import transforms as T  # noqa: N812  (as the documentation has it)
from fastload.transforms import proof

_DTYPE = torch.bfloat16


_FIRST: dict[str, Callable[[int], T.Transform]] = {
    "pad-crop": lambda size: T.RandomCrop(size, padding=4),
    "crop": T.RandomCrop,
    "resized-crop": T.RandomResizedCrop,
}


@measuring
def calls(
    side: Side, *, device: str, recipe: str, num: int, size: int, crop: int, num_inputs: int, num_calls: int
) -> Measurement:
    """Time ``num_calls`` calls on batches of ``num`` images of ``size`` pixels, of which ``crop`` come out."""
    where = torch.device(device)
    inputs = kept("inputs", lambda: _inputs(num, size, num_inputs, where))
    bytes_read = 3 * (size if recipe == "resized-crop" else min(size, crop)) ** 2
    bytes_moved = num * (bytes_read + 3 * crop**2 * _DTYPE.itemsize)
    work = kept(side.name, lambda: _work(side, recipe, inputs, crop, bytes_moved, num_calls, where))
    seconds = seconds_of(work, where)
    return {"images/s": num * num_calls / seconds, "GB/s": bytes_moved * num_calls / seconds / 1e9}


def _inputs(num: int, size: int, num_inputs: int, device: torch.device) -> list[Tensor]:
    """Return batches that take turns: [N, 3, size, size] uint8 each, channels-last, on the device."""
    made = [noise(num, 3, size, size, seed=seed) for seed in range(num_inputs)]
    return [batch.to(device).contiguous(memory_format=torch.channels_last) for batch in made]


def _work(
    side: Side, recipe: str, inputs: list[Tensor], crop: int, bytes_moved: int, num_calls: int, device: torch.device
) -> Callable[[], object]:
    num_inputs = len(inputs)
    if side.name == "copy":
        # Half of the bytes are read, and half written.
        places = [torch.zeros(bytes_moved // 2, dtype=torch.uint8, device=device) for _ in range(2 * num_inputs)]

        def copy() -> None:
            for number in range(num_calls):
                source = number % num_inputs
                places[num_inputs + source].copy_(places[source])

        return captured(copy, device)

    one = _ours(side, recipe, inputs[0], crop)
    _check(one(inputs[0]), (len(inputs[0]), 3, crop, crop))
    refusals = proof.refusals(inputs[0].device)
    if side.name == "kernels" and refusals:
        raise CannotMeasure(f"torch's operations serve: {'; '.join(refusals)}")
    made: deque[Tensor] = deque(maxlen=num_inputs)

    def transform() -> None:
        for number in range(num_calls):
            made.append(one(inputs[number % num_inputs]))

    return captured(transform, device) if side.name == "kernels" else transform


def _ours(side: Side, recipe: str, example: Tensor, crop: int) -> Callable[[Tensor], Tensor]:
    pipeline = T.Compose([_FIRST[recipe](crop), T.RandomHorizontalFlip(), T.ToNormalized(MEAN, STD, _DTYPE)])
    given: dict[str, Any] = {}
    if side.name == "kernels":
        _, drawn = pipeline(example, return_params=True)
        given["params"] = _on(drawn, example.device)

    def one(images: Tensor) -> Tensor:
        changed: Tensor = pipeline(images, **given)
        return changed

    return one


def _on(params: Any, device: torch.device) -> Any:
    if isinstance(params, Tensor):
        return params.to(device)
    if isinstance(params, dict):
        return {name: _on(value, device) for name, value in params.items()}
    if isinstance(params, (list, tuple)):
        return type(params)(_on(value, device) for value in params)
    return params


def _check(images: Tensor, shape: tuple[int, ...]) -> None:
    """Check that this is what was to be made, or the sides would be compared for different things."""
    last = images.is_contiguous(memory_format=torch.channels_last)
    if (tuple(images.shape), images.dtype, last) != (shape, _DTYPE, True):
        raise RuntimeError(
            f"the result must be {shape}, {_DTYPE}, channels-last, got {tuple(images.shape)}, {images.dtype}, strides "
            f"{images.stride()}"
        )
