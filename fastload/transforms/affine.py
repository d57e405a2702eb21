"""Rotations and affine transforms, different for each sample: a matrix, a grid, one resampling of the batch.

::

    params, shape ─> matrix [N, 3, 3] ─(product with its neighbours')─> warp ─> images

A matrix says where a pixel of the result comes from: it takes (x, y, 1), in pixels from the middle of the image, x to
the right and y downwards, to the same in the source.
"""

# N samples, C channels, H and W of the images.

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ..errors import ConfigError
from .arguments import Fill, check_fill, check_interpolation, check_number, check_probability, check_range, fill_values
from .base import BatchShape, Params, Transform, shape_of, tensor_of
from .draws import Stream
from .tensors import in_parts, narrowed, wide_dtype

_RADIANS = math.pi / 180


class Resampled(Transform):
    """A transform that is a matrix for each sample, and a resampling.

    Tolerance, against torchvision's function for one image: the matrix of angles and so on, and the coordinates, are
    computed as it does, in float32 (float64 for float64), and may differ in the last place. So "nearest" may take the
    neighbour where a coordinate falls halfway between two pixels, and "bilinear" is one level off at most for uint8,
    1e-4 for values in [0, 1]. Turns by multiples of 90 degrees, which torchvision makes by copying, are exact with
    "nearest". float16 and bfloat16 are computed in float32, where torchvision computes coordinates in half precision,
    pixels off.

    At the border torchvision weights "bilinear" values by how much of them is inside twice, if there is a ``fill``, be
    it 0; so it is here.
    """

    def __init__(self, interpolation: Any, fill: Any, center: Any) -> None:
        super().__init__()
        self.interpolation = check_interpolation(interpolation, ("nearest", "bilinear"))
        self.fill = None if fill is None else check_fill("fill", fill)
        if center is not None and (not isinstance(center, (list, tuple)) or len(center) != 2):
            raise ConfigError(f"center must be (x, y), in pixels, got {center=}")
        self.center = None if center is None else tuple(check_number("center", number) for number in center)

    def matrix(self, params: Params, shape: BatchShape, device: torch.device) -> Tensor:
        """Return [N, 3, 3], float64: see the module."""
        raise NotImplementedError

    def transform(self, images: Tensor, params: Params) -> Tensor:
        matrix = self.matrix(params, shape_of(images), images.device)
        return warp(images, matrix, interpolation=self.interpolation, fill=self.fill)

    def _middle(self, shape: BatchShape) -> tuple[float, float]:
        if self.center is None:
            return 0.0, 0.0
        return self.center[0] - shape.width * 0.5, self.center[1] - shape.height * 0.5


class RandomRotation(Resampled):
    """Rotate each image by its own angle.

    Args:
        degrees: (min, max) of the angle, counter-clockwise; one number d: (-d, d).
        interpolation: ``"nearest"`` or ``"bilinear"``, or torchvision's enum.
        expand: must be False, since all images of a batch have one size.
        center: (x, y) of the point that stays, in pixels from the upper left corner; None: the middle.
        fill: the value of pixels from outside the image: a number, or one for each channel, in the images' units;
            None: 0.

    Drawn: ``angle``, [N], in degrees, uniform. Given it, the result equals torchvision's ``rotate`` within the
    tolerance of ``Resampled``.
    """

    def __init__(
        self, degrees: Any, interpolation: Any = "nearest", expand: bool = False, center: Any = None, fill: Any = 0
    ) -> None:
        super().__init__(interpolation, fill, center)
        self.degrees = check_range("degrees", degrees, around=0.0)
        if expand:
            raise ConfigError(
                "expand=True makes each image as large as its angle needs, and images of one batch have one size; "
                "rotate with expand=True in the dataset, or pad by RandomCrop before"
            )

    def draw(self, stream: Stream, shape: BatchShape) -> Params:
        return {"angle": tensor_of(stream.uniform(*self.degrees))}

    def matrix(self, params: Params, shape: BatchShape, device: torch.device) -> Tensor:
        none = torch.zeros_like(params["angle"])
        pair = torch.stack([none, none], dim=-1)
        # torchvision's two functions turn in opposite directions.
        return _inverse(-params["angle"], pair, none + 1, pair, self._middle(shape))


class RandomAffine(Resampled):
    """Rotate, move, scale and shear each image by its own amounts.

    Args:
        degrees: (min, max) of the angle, clockwise; one number d: (-d, d).
        translate: the largest shift to either side, as a share of the width and of the height, in [0, 1]; None: no
            shift.
        scale: (min, max) of the factor, above 0; None: 1.
        shear: in degrees. One number s: along x in (-s, s); (min, max): along x; four numbers: (min, max) along x and
            along y; None: no shear.
        interpolation: ``"nearest"`` or ``"bilinear"``, or torchvision's enum.
        fill: the value of pixels from outside the image: a number, or one for each channel, in the images' units;
            None: 0.
        center: (x, y) of the point that stays, in pixels from the upper left corner; None: the middle.

    Drawn, all uniform: ``angle``, [N], in degrees; ``translate``, [N, 2], whole pixels to the right and downwards;
    ``scale``, [N]; ``shear``, [N, 2], in degrees. Given them, the result equals torchvision's ``affine`` within the
    tolerance of ``Resampled``.
    """

    def __init__(
        self,
        degrees: Any,
        translate: Any = None,
        scale: Any = None,
        shear: Any = None,
        interpolation: Any = "nearest",
        fill: Any = 0,
        center: Any = None,
    ) -> None:
        super().__init__(interpolation, fill, center)
        self.degrees = check_range("degrees", degrees, around=0.0)
        self.translate = (0.0, 0.0)
        if translate is not None:
            if not isinstance(translate, (list, tuple)) or len(translate) != 2:
                raise ConfigError(f"translate must be two fractions, of width and of height, got {translate=}")
            across, down = (check_probability("translate", number) for number in translate)
            self.translate = across, down
        self.scale = (1.0, 1.0) if scale is None else check_range("scale", scale, above=0)
        self.shear = ((0.0, 0.0), (0.0, 0.0))
        if shear is not None:
            four = isinstance(shear, (list, tuple)) and len(shear) == 4
            along_x = check_range("shear", shear[:2] if four else shear, around=0.0)
            self.shear = along_x, check_range("shear", shear[2:]) if four else (0.0, 0.0)

    def draw(self, stream: Stream, shape: BatchShape) -> Params:
        farthest = self.translate[0] * shape.width, self.translate[1] * shape.height
        return {
            "angle": tensor_of(stream.uniform(*self.degrees)),
            "translate": tensor_of(np.stack([np.rint(stream.uniform(-most, most)) for most in farthest], axis=1)),
            "scale": tensor_of(stream.uniform(*self.scale)),
            "shear": tensor_of(np.stack([stream.uniform(*angles) for angles in self.shear], axis=1)),
        }

    def matrix(self, params: Params, shape: BatchShape, device: torch.device) -> Tensor:
        return _inverse(params["angle"], params["translate"], params["scale"], params["shear"], self._middle(shape))


def _inverse(angle: Tensor, translate: Tensor, scale: Tensor, shear: Tensor, middle: tuple[float, float]) -> Tensor:
    """Return the inverse of: shear along x, shear along y, scale, rotate, all around ``middle``; then move.

    In float64, in which torchvision computes it on the host.
    """
    dtype = torch.float32 if angle.device.type == "mps" else torch.float64  # which the former has not
    angle, shear, zoom, translate = (values.to(dtype) for values in (angle, shear, scale, translate))
    turn, across, down = (degrees * _RADIANS for degrees in (angle, shear[:, 0], shear[:, 1]))
    # The forward matrix without its scale is (a, b; c, d), of determinant 1.
    a = torch.cos(turn - down) / torch.cos(down)
    b = -(a * torch.tan(across) + torch.sin(turn))
    c = torch.sin(turn - down) / torch.cos(down)
    d = torch.cos(turn) - c * torch.tan(across)
    a, b, c, d = (number / zoom for number in (a, b, c, d))
    x, y = middle[0] + translate[:, 0], middle[1] + translate[:, 1]
    zero, one = torch.zeros_like(a), torch.ones_like(a)
    rows = [d, -b, middle[0] - d * x + b * y, -c, a, middle[1] + c * x - a * y, zero, zero, one]
    return torch.stack(rows, dim=-1).view(-1, 3, 3)


@in_parts
def warp(images: Tensor, matrix: Tensor, *, interpolation: str, fill: Fill | None) -> Tensor:
    """Return each image resampled where its matrix says; what lies outside is ``fill``, or 0 if that is None.

    ``matrix``: [N, 3, 3], see the module. Cost: one ``grid_sample``; for each pixel 8 bytes of coordinates, and
    4 (C + 1) of images in float32, with the mask that tells what lies outside.
    """
    num, _, height, width = images.shape
    work = wide_dtype(images.dtype)
    values = None if fill is None else fill_values("fill", fill, images, work)
    grid = _grid(matrix, height, width, work)
    source = images.to(work)
    # grid_sample fills with 0.
    masked = values is not None and not (interpolation == "nearest" and not any(fill or ()))
    if masked:
        source = torch.cat([source, source.new_ones((num, 1, height, width))], dim=1)
    found = functional.grid_sample(source, grid, mode=interpolation, padding_mode="zeros", align_corners=False)
    if masked and values is not None:
        found, share = found[:, :-1], found[:, -1:]
        # A share of the nearest is 0 or 1.
        found = found.addcmul(values, 1 - share) if interpolation == "nearest" else (found - values) * share + values
    return narrowed(found.round() if images.dtype == torch.uint8 else found, images.dtype)


def _grid(matrix: Tensor, height: int, width: int, dtype: torch.dtype) -> Tensor:
    """Return [N, H, W, 2]: coordinates as ``grid_sample`` takes them, -1 to 1 from edge to edge."""
    x = torch.arange(width, device=matrix.device, dtype=dtype) - (width - 1) * 0.5
    y = torch.arange(height, device=matrix.device, dtype=dtype)[:, None] - (height - 1) * 0.5
    # By a tensor, since a GPU multiplies by the inverse of a number.
    halves = [torch.full((1, 3), 0.5 * side, dtype=dtype, device=matrix.device) for side in (width, height)]
    scaled = matrix[:, :2].to(dtype) / torch.cat(halves)
    # A product, a product, a sum, a sum, each rounded: a product of matrices may round factors to TF32 on a GPU.
    by_x, by_y, constant = (scaled[:, None, None, :, place] for place in range(3))
    return x[:, None] * by_x + y[..., None] * by_y + constant
