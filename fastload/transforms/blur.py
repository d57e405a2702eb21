"""Gaussian blur of batches, each sample with a standard deviation of its own."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own code gives it
from torch import Tensor

from .parts import in_parts
from .steps import narrowed


@in_parts
def gaussian_blur(images: Tensor, sigmas: Tensor, *, kernel_size: tuple[int, int]) -> Tensor:
    """Blur as ``torchvision.transforms.v2.functional.gaussian_blur`` does, with reflection at the borders.

    The two directions are done one after the other, where torchvision multiplies their kernels first: uint8 may be 1
    apart where a mean is within 1e-4 of half an integer, floats are within 1e-5 (float16 and bfloat16 are computed in
    float32 and rounded once: within 8 units in the last place of 1.0).

    Args:
        images: any number of channels.
        sigmas: [N], or [N, 2] for x and y; above 0, in pixels. Not looked at, since that would wait for the device.
        kernel_size: (x, y), odd, in pixels.

    Raises:
        ValueError: an even kernel, or one that reaches beyond the reflected image.
    """
    size_x, size_y = kernel_size
    height, width = images.shape[2:]
    if min(kernel_size) < 1 or size_x % 2 == 0 or size_y % 2 == 0:
        raise ValueError(f"kernel_size must be odd and positive, got {kernel_size=}")
    if size_x // 2 >= width or size_y // 2 >= height:
        raise ValueError(
            f"a kernel must be narrower than twice the image, got {kernel_size=} for images of {height} x {width}; "
            "use a smaller kernel_size"
        )
    wide = images.to(torch.float64 if images.dtype == torch.float64 else torch.float32)
    both = sigmas.to(wide.dtype).view(len(images), -1).expand(-1, 2)
    padded = F.pad(wide, [size_x // 2, size_x // 2, size_y // 2, size_y // 2], mode="reflect")
    # One channel alone would be convolved by cuDNN, which rounds float32 to TF32 unless that is forbidden.
    by_convolution = images.device.type == "cuda" and len(images) * images.shape[1] > 1
    along = _along_by_convolution if by_convolution else _along
    blurred = along(along(padded, 2, _taps(size_y, both[:, 1])), 3, _taps(size_x, both[:, 0]))
    return narrowed(blurred.round_() if images.dtype == torch.uint8 else blurred, images.dtype)


def _taps(size: int, sigmas: Tensor) -> Tensor:
    """Return the weights of each sample: [N, size], their sum 1."""
    # torchvision's: the exponent is (x / sigma) ** 2 for x up to size / (2 * sqrt(2)), which is half of the usual.
    reach = (size - 1) / (2 * math.sqrt(2))
    places = torch.linspace(-reach, reach, size, dtype=sigmas.dtype, device=sigmas.device)
    return (places / sigmas[:, None]).square().neg().softmax(dim=1)


def _along(images: Tensor, dim: int, taps: Tensor) -> Tensor:
    """Return weighted sums along a dimension, shorter by the number of taps less one."""
    size = taps.shape[1]
    length = images.shape[dim] - size + 1
    weights = taps.view(-1, size, 1, 1, 1)
    total = images.narrow(dim, 0, length) * weights[:, 0]
    for place in range(1, size):
        total = total.addcmul_(images.narrow(dim, place, length), weights[:, place])
    return total


def _along_by_convolution(images: Tensor, dim: int, taps: Tensor) -> Tensor:
    """Return the same by one kernel: a convolution of N * C channels that have nothing to do with each other."""
    num, channels, height, width = images.shape
    shape = (num * channels, 1, -1, 1) if dim == 2 else (num * channels, 1, 1, -1)
    weights = taps.repeat_interleave(channels, dim=0).view(shape)
    # Contiguous, so that a single channels-last image is not given to cuDNN either.
    together = images.reshape(1, num * channels, height, width).contiguous()
    found = F.conv2d(together, weights, groups=num * channels)
    return found.view(num, channels, *found.shape[2:])


__all__ = ["gaussian_blur"]
