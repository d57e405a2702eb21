"""Resizing boxes of images, another box for each sample, in two ways that agree.

On the CPU torch's own kernel resizes one box after the other. On other devices, and where ``torch.compile`` records,
the boxes cannot be read: each makes two matrices of weights, and two batched products with them resize the batch.
"""

# N samples, C channels, H and W of the source, h and w of the result.

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.nn import functional

from .boxes import Boxes, places_of, whole_box
from .tensors import memory_format_of, wide_dtype

# Values of float32 in one tensor: 128 MiB. Larger batches are resized in parts.
_CHUNK = 2**25


def nearest_places(lengths: Tensor, size: int, exact: bool) -> Tensor:
    """Return [N, size]: the nearest of ``lengths`` pixels, by torch's rule for "nearest" or "nearest-exact".

    In float32, as torch computes it, so that ties are the same. For float64 images on the CPU torch computes in
    float64: there one size in 3,000 has a pixel whose neighbour is taken.
    """
    scale = _scale(lengths, size, torch.float32)[:, None]
    places = torch.arange(size, dtype=torch.float32, device=lengths.device)
    source = (places + 0.5) * scale if exact else places * scale
    return torch.minimum(source.floor().to(torch.int64), lengths[:, None] - 1)


def _scale(lengths: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """Return how many pixels of a box one of the result stands for."""
    # By a tensor, since a GPU multiplies by the inverse of a number.
    return lengths.to(dtype) / torch.full((), size, dtype=dtype, device=lengths.device)


def resize_natively(images: Tensor, size: tuple[int, int], interpolation: str, antialias: bool) -> Tensor:
    """Return the images resized by torch's kernel.

    float16, bfloat16, and uint8 where torchvision does it, are converted to float32.
    """
    if images.shape[2:] == size:
        return images
    if 1 in (images.shape[3], size[1]):
        # Here torch 2.13, and torchvision with it, is wrong: antialiased results one pixel wide repeat their first row,
        # and the integer kernel misreads the strides of images one pixel wide, and takes bytes from beside them.
        return resample(
            images, whole_box(images.shape[2], images.shape[3], images.device), size, interpolation, antialias
        )
    whole = images.dtype == torch.uint8
    wide = images.dtype in (torch.float16, torch.bfloat16) or (whole and not _in_integers(interpolation))
    resized = functional.interpolate(
        images.float() if wide else images,
        size,
        mode=interpolation,
        align_corners=False,
        antialias=antialias,
    )
    return (resized.round_() if whole and wide else resized).to(images.dtype)


@functools.cache
def _in_integers(interpolation: str) -> bool:
    """Return whether torchvision lets torch resize uint8 in integers; compared, since its versions differ in where."""
    from torchvision.transforms.v2 import InterpolationMode
    from torchvision.transforms.v2.functional import resize

    levels = (torch.arange(3 * 33 * 40, device="cpu") * 7919 % 256).to(torch.uint8).reshape(1, 3, 33, 40)
    made = functional.interpolate(levels, (20, 24), mode=interpolation, align_corners=False, antialias=True)
    return torch.equal(made, resize(levels, [20, 24], InterpolationMode(interpolation), antialias=True))


def resize_boxes(images: Tensor, boxes: Boxes, size: tuple[int, int], interpolation: str, antialias: bool) -> Tensor:
    """Return what is in the boxes, resized sample by sample on the CPU. For the arguments see ``resample``.

    Equal to torchvision's ``resized_crop`` on this machine bit for bit: uint8 in integers or in floats, as it does
    there. Boxes and results one pixel wide, for which torch's kernels are wrong, are computed as in ``resample``.

    A box that is not within the images is a ValueError. The first call for uint8 imports torchvision.
    """
    found = torch.empty(
        (*images.shape[:2], *size), dtype=images.dtype, device="cpu", memory_format=memory_format_of(images)
    )
    places = places_of(boxes, images)
    if len(places) < len(images):
        raise ValueError("these parameters have a box without pixels, of which nothing can be resized")
    for sample, top, left, height, width in places:
        box = images[sample : sample + 1, :, top : top + height, left : left + width]
        found[sample] = resize_natively(box, size, interpolation, antialias)[0]
    return found


def resample(images: Tensor, boxes: Boxes, size: tuple[int, int], interpolation: str, antialias: bool) -> Tensor:
    """Return what is in the boxes, resized by products with matrices of weights. Does not read a value.

    Boxes are within the images. "bilinear" and "bicubic" are as torch defines them: with antialiasing after Pillow
    (bicubic with a = -0.5), without it a = -0.75.

    Tolerance, against ``resize_boxes``: for floats, computed in float32 or float64, what rounding leaves, 1e-5 and
    1e-12 times the largest value; in half precision one unit in the last place. For uint8 the columns' result is
    rounded to whole levels before the rows are weighted, as torch's integer kernel does it: one level remains in a few
    pixels. Where both sums lie halfway between levels, which happens in small images, it is two, once in some 40,000 of
    them, and may be three in "bicubic". torchvision on CUDA does not round in between and may be one level off, in
    "bicubic", where rounding also clips, by more. Products have the precision that is chosen by
    ``torch.set_float32_matmul_precision``: in TF32 floats are within 1e-3, and one level more remains. The library that
    multiplies may choose another order of summation for another size of the batch: then the last place depends on it.
    Infinities and NaN spread to the whole row and column, also from outside the box.

    Cost:
        C (H W w + H w h) multiplications for each sample, and memory for C H (W + w) + H h + W w numbers of float32
        beside the result, of a part of the batch at a time.
    """
    num, channels, height, width = images.shape
    work = wide_dtype(images.dtype)
    whole = images.dtype == torch.uint8
    per_sample = max(channels * height * max(width, size[1]), size[0] * height, size[1] * width)
    step = max(1, _CHUNK // per_sample)
    parts = []
    for begin in range(0, num, step):
        part = slice(begin, begin + step)
        box = Boxes(*(values if len(values) == 1 else values[part] for values in boxes))
        by_row = weights(box.top, box.height, size[0], height, interpolation, antialias, work)
        by_col = weights(box.left, box.width, size[1], width, interpolation, antialias, work)
        source = images[part].to(work).reshape(-1, channels * height, width)
        by_row, by_col = (matrix.expand(len(source), -1, -1) for matrix in (by_row, by_col))
        cols = _levels(torch.bmm(source, by_col.transpose(1, 2)), whole).view(-1, channels, height, size[1])
        both = torch.stack([torch.bmm(by_row, channel) for channel in cols.unbind(1)], dim=1)
        parts.append(_levels(both, whole).to(images.dtype))
    resized = parts[0] if len(parts) == 1 else torch.cat(parts)
    return resized.contiguous(memory_format=memory_format_of(images))


def _levels(values: Tensor, whole: bool) -> Tensor:
    # Halves upwards, as torch's integer kernel has them.
    return (values + 0.5).floor().clamp(0, 255) if whole else values


def weights(
    start: Tensor,
    length: Tensor,
    size: int,
    side: int,
    interpolation: str,
    antialias: bool,
    dtype: torch.dtype,
) -> Tensor:
    """Return [N, size, side]: how much of each source pixel is in each of the result's, along one axis.

    Boxes begin at ``start``, [N], are ``length`` long, [N], in images of ``side`` pixels. For the rest see
    :func:`resample`; in float32 or float64.
    """
    places = torch.arange(size, dtype=dtype, device=start.device)
    length = length[:, None, None]
    scale = _scale(length, size, dtype)
    # Positions in the box: of pixels, and where the middle of each pixel of the result falls.
    pixels = (torch.arange(side, device=start.device) - start[:, None])[:, None, :]
    middles = scale * (places[:, None] + 0.5)
    inside = (pixels >= 0) & (pixels < length)
    if antialias:
        distance = (pixels - middles + 0.5) / scale.clamp(min=1)
        shares = (1 - distance.abs()).clamp(min=0) if interpolation == "bilinear" else _cubic(distance, -0.5)
        shares = torch.where(inside, shares, 0)
        return shares / shares.sum(dim=2, keepdim=True)
    if interpolation == "bilinear":
        source = torch.minimum((middles - 0.5).clamp(min=0), length.to(dtype) - 1)
        return torch.where(inside, (1 - (pixels - source).abs()).clamp(min=0), 0)
    # The four neighbours; those outside the box count for its outermost pixel.
    source = middles - 0.5
    first = source.floor()
    shares = torch.zeros((), dtype=dtype, device=start.device)
    for neighbour in range(-1, 3):
        place = torch.minimum((first + neighbour).clamp(min=0), length.to(dtype) - 1)
        shares = shares + torch.where(pixels == place, _cubic(first + neighbour - source, -0.75), 0)
    return shares


def _cubic(distance: Tensor, a: float) -> Tensor:
    """Return Keys' kernel (1981)."""
    x = distance.abs()
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * x * a - 4 * a
    return torch.where(x < 1, near, torch.where(x < 2, far, 0))
