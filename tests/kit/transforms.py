"""Transforms of batches whose doing can be read off their results."""

from __future__ import annotations

import torch
from torch import Tensor

from fastload.transforms.base import BatchShape, Params, Transform, tensor_of
from fastload.transforms.draws import Stream


class Shifted(Transform):
    """Adds a random number to each image, which tells its parameters."""

    def draw(self, stream: Stream, shape: BatchShape) -> Params:
        return {"by": tensor_of(stream.uniform(), torch.float64)}

    def transform(self, images: Tensor, params: Params) -> Tensor:
        return images.double() + params["by"][:, None, None, None]
