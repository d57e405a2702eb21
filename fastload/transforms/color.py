"""Changes of colours and blurs of batches [N, C, H, W], each sample with its own factor.

Each sample equals the result of ``torchvision.transforms.v2.functional`` with its factor:

* uint8: bit for bit on the CPU, unless a function says otherwise: every step is rounded as there. Compiled, or on
  another device, a product and a sum may be rounded once or twice, and truncated results differ by at most 1.
* float32, float64: within 1e-5 (``adjust_hue`` works in float32, as torchvision's does).
* float16, bfloat16: computed in float32 and rounded once, where torchvision rounds every step: within 8 units in the
  last place of 1.0.

Factors are not checked, since that would wait for the device: they must be finite, and in torchvision's range.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812 - the name that torch's own code gives it
from torch import Tensor

from .tensors import in_parts, narrowed, wide_dtype

_TINY = torch.finfo(torch.float32).tiny


@in_parts
def blend(images: Tensor, kinds: Tensor, factors: Tensor) -> Tensor:
    """Adjust brightness, contrast and saturation of each sample, one after the other.

    Brightness is a product, contrast a blend with the mean of the grey levels, saturation one with the grey levels. A
    factor of 1 leaves values as they are, but for those of floats outside of [0, 1], which are clipped. Contrast of
    uint8 images of more than 65,000 pixels: at most 1 apart from torchvision, whose sum of so many is rounded.

    ``kinds``: [N, T] in their order, int64: 0 for brightness, 1 for contrast, 2 for saturation; ``factors``: [N, T], at
    least 0.
    """
    if images.shape[1] == 1:  # which have no saturation
        factors = torch.where(kinds == 2, 1.0, factors)
    blended = _widened(images)
    for turn in range(kinds.shape[1]):
        kind = kinds[:, turn]
        if turn > 0 and images.dtype == torch.uint8:
            blended = blended.floor_()  # as the conversion to uint8 would truncate them
        grey = _grey_of(images, blended)
        # Black for brightness: 1 - factor is multiplied by zero, and a sum with zero is exact.
        other = (grey * _column(kind == 2, grey)).add_(_mean_of(grey) * _column(kind == 1, grey))
        inplace = blended is not images and images.shape[1] == 3
        blended = _mixed(images, blended, other, factors[:, turn], inplace=inplace)
    return narrowed(blended, images.dtype)


@in_parts
def adjust_hue(images: Tensor, factors: Tensor) -> Tensor:
    """Turn the hue by factors, [N], in [-0.5, 0.5], of a whole turn. Floats must not be negative.

    Images with 1 channel are returned as they are.
    """
    if images.shape[1] == 1:
        return images
    turn = factors.to(torch.float32).view(-1, 1, 1)
    rgb = images.to(torch.float32)
    if images.dtype == torch.uint8:
        rgb.mul_(1.0 / 255)  # a copy
    hue, saturation, value = _to_hsv(rgb)
    hue = hue.add_(turn)
    hue = hue.sub_(hue.floor())
    turned = _to_rgb(hue, saturation, value)
    if images.dtype == torch.uint8:
        turned = turned.mul_(256 - 1e-3)
    return narrowed(turned, images.dtype)


def _to_hsv(rgb: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return hue in [0, 1), saturation and value, [N, H, W] each, of float32 [N, 3, H, W]."""
    red, green, blue = rgb.unbind(1)
    high = torch.maximum(torch.maximum(red, green), blue)
    low = torch.minimum(torch.minimum(red, green), blue)
    spread = high - low
    # Where the spread is 0, all numerators are too; only the divisor must not be 0.
    saturation = spread / high.clamp_min(_TINY)
    spread = spread.clamp_min_(_TINY)
    red, green, blue = ((high - colour).div_(spread) for colour in (red, green, blue))
    # The distance of each from the largest, which is 0; the hue is relative to the largest. With a weight of 0 or 1
    # lerp selects one of the two exactly.
    red_leads, green_leads = (colour.clone().eq_(0.0) for colour in (red, green))  # a bool would be slow to convert
    from_blue, from_green = (green + 4.0).sub_(red), (red + 2.0).sub_(blue)
    hue = torch.lerp(torch.lerp(from_blue, from_green, green_leads), blue - green, red_leads)
    hue = hue.mul_(1.0 / 6.0).add_(1.0)
    return hue.sub_(hue.floor()), saturation, high


def _to_rgb(hue: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    """Return [N, 3, H, W] of hue, saturation and value; changes the hue."""
    hue = hue.mul_(6.0)
    sector = hue.floor()  # 0 to 6; 6, where a hue was rounded up, is 0
    part = hue.sub_(sector).mul_(saturation)
    rest = 1.0 - saturation
    half = sector * 0.5
    odd = half.sub_(half.floor()).mul_(2.0)
    # Of the three channels one is the value, one the lowest, and one rises or falls between them.
    middle = torch.lerp(part + rest, 1.0 - part, odd).mul_(value).clamp_(0.0, 1.0)
    lowest = rest.mul_(value).clamp_(0.0, 1.0)
    # Red is the value in sectors 5 and 0, the middle in 1 and 4, the lowest in 2 and 3: by the distance from 2.5. The
    # others likewise. In sector 6 the middle is the lowest.
    out = value.new_empty((len(value), 3, *value.shape[1:]))
    for channel, (centre, inner, outer) in enumerate(
        ((2.5, lowest, value), (1.5, value, lowest), (3.5, value, lowest))
    ):
        distance = (sector - centre).abs_().sub_(1.5)  # -1 inside, 0 between, 1 or more outside
        outside = torch.lerp(middle, outer, distance.clamp(0.0, 1.0))
        out[:, channel] = torch.lerp(outside, inner, distance.neg_().clamp_(0.0, 1.0))
    return out


def to_grey(images: Tensor) -> Tensor:
    """Return the grey levels of 1 or 3 channels in as many channels."""
    return narrowed(_grey_of(images, _widened(images)), images.dtype).expand_as(images)


@in_parts
def gaussian_blur(images: Tensor, sigmas: Tensor, *, kernel_size: tuple[int, int]) -> Tensor:
    """Blur as ``torchvision.transforms.v2.functional.gaussian_blur`` does, with reflection at the borders.

    The two directions are done one after the other, where torchvision multiplies their kernels first: uint8 may be 1
    apart where a mean is within 1e-4 of half an integer, floats are within 1e-5 (float16 and bfloat16 are computed in
    float32 and rounded once: within 8 units in the last place of 1.0).

    ``sigmas``: [N], above 0, in pixels; ``kernel_size``: (x, y), odd. A kernel that reaches beyond the reflected image
    is a ValueError.
    """
    size_x, size_y = kernel_size
    height, width = images.shape[2:]
    if size_x // 2 >= width or size_y // 2 >= height:
        raise ValueError(
            f"a kernel must be narrower than twice the image, got {kernel_size=} for images of {height} x {width}; "
            "use a smaller kernel_size"
        )
    wide = _widened(images)
    sigmas = sigmas.to(wide.dtype)
    padded = F.pad(wide, [size_x // 2, size_x // 2, size_y // 2, size_y // 2], mode="reflect")
    blurred = _along(_along(padded, 2, _taps(size_y, sigmas)), 3, _taps(size_x, sigmas))
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


def check_channels(images: Tensor, name: str) -> None:
    """Raise a TypeError unless images have 1 or 3 channels."""
    if images.shape[1] not in (1, 3):
        raise TypeError(f"{name} takes images of 1 or 3 channels, got {images.shape[1]}: shape {tuple(images.shape)}")


def _bound(images: Tensor) -> float:
    return 255.0 if images.dtype == torch.uint8 else 1.0


def _widened(images: Tensor) -> Tensor:
    """Return the images in the dtype to compute in: float64 if they are, else float32."""
    return images.to(wide_dtype(images.dtype))


def _column(factors: Tensor, wide: Tensor) -> Tensor:
    return factors.to(wide.dtype).view(-1, 1, 1, 1)


def _luma(wide: Tensor) -> Tensor:
    red, green, blue = (wide[:, channel : channel + 1] for channel in range(3))
    return red.mul(0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114)


def _grey_of(images: Tensor, wide: Tensor) -> Tensor:
    """Return the grey levels, [N, 1, H, W], whole numbers for uint8."""
    if images.shape[1] == 1:
        return wide
    grey = _luma(wide)
    return grey.floor_() if images.dtype == torch.uint8 else grey


def _mean_of(grey: Tensor) -> Tensor:
    """Return the mean of [N, 1, H, W], as [N, 1, 1, 1]; independent of the other samples."""
    # Whole numbers are summed without an error: float32 holds the sum of a row, float64 that of all rows.
    rows = grey.sum(3, keepdim=True)
    total = rows if grey.device.type == "mps" else rows.double()  # which knows no float64
    # A tensor, since a GPU multiplies by the inverse of a number.
    num = torch.full((), grey.shape[2] * grey.shape[3], dtype=grey.dtype, device=grey.device)
    return total.sum(2, keepdim=True).to(grey.dtype) / num


def _mixed(images: Tensor, wide: Tensor, other: Tensor, factors: Tensor, *, inplace: bool) -> Tensor:
    """Return factor * wide + (1 - factor) * other, clipped to the range of the images."""
    factor = _column(factors, wide)
    mixed = wide.mul_(factor) if inplace else wide * factor
    # One rounding for product and sum, as with a number in place of the tensor.
    return mixed.addcmul_(other, _column(1 - factors, wide)).clamp_(0, _bound(images))
