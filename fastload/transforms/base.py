"""Base of the batched transforms: parameters are drawn on the host, and applied wherever the images are.

::

    keys of the samples ─> draw ─parameters [N, ...]─┐
                                       images [N, C, H, W] ─> transform ─> images

``draw`` needs the shape of the batch and no pixels, so parameters can be made before the images are there, and travel
with them. ``transform`` depends on images and parameters alone: it draws nothing, and reads no tensor's value on the
host. So the CPU is the reference for every other device.
"""

from __future__ import annotations

import contextlib
import inspect
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from .draws import Draws, Stream, draws_for
from .params import Params as Params
from .params import check_params, params_to, uncompiled
from .tensors import memory_format_of

Layout: TypeAlias = Literal["NCHW", "NHWC"]

DTYPES = (torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float64)

# Of draws whose values do not matter.
_ANY_KEY = bytes(16)


class BatchShape(NamedTuple):
    """The shape of a batch of images, in either layout."""

    num: int
    channels: int
    height: int
    width: int


class Transform(nn.Module):
    """The base class of batched transforms: images [N, C, H, W], uint8 or float in [0, 1], on any device.

    For images [N, H, W, C] see ``Compose``. An argument that is out of its range or of another type is a ConfigError.

    Random parameters are drawn for each sample. The docstrings of transforms name them after "Drawn:", as
    ``return_params=True`` returns them and ``params=`` takes them.

    A subclass implements ``transform``, ``draw`` if it is random, and ``shape_after`` if it changes the shape.
    """

    mixes: bool = False
    """True if samples are mixed, and their labels with them: then ``forward`` needs (images, labels)."""

    layout: Layout = "NCHW"
    """Layout of the images that are given and returned."""

    def __init__(self) -> None:
        super().__init__()
        self.purpose = type(self).__name__
        """Keeps the draws of this transform apart from others'. ``Compose`` numbers those of one name."""

    def draw(self, stream: Stream, shape: BatchShape) -> Params:
        """Return the parameters of a batch of this shape, on the CPU; {} where there is nothing to draw."""
        return {}

    def transform(self, images: Tensor, params: Params) -> Tensor:
        """Return [N, C, H, W], transformed by what ``draw`` returned, on their device. Does not change ``images``."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        """Return the arguments that this was made with, as far as they are its attributes."""
        names = [name for name in inspect.signature(type(self).__init__).parameters if name in vars(self)]
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)

    def shape_after(self, shape: BatchShape) -> BatchShape:
        """Return the shape of the result."""
        return shape

    def draw_for(self, draws: Draws, shape: BatchShape) -> Any:
        """Return the parameters of a batch, given the draws of its samples."""
        return self.draw(draws.stream(self.purpose), shape)

    @uncompiled
    def _drawn(self, images: Tensor, generator: torch.Generator | None, draws: Draws | None) -> Any:
        name = type(self).__name__
        if generator is not None and not isinstance(generator, torch.Generator):
            raise TypeError(f"{name} takes a torch.Generator as generator, got {type(generator).__name__}")
        if draws is None:
            draws = draws_for(len(images), generator)
        elif not isinstance(draws, Draws):
            raise TypeError(f"{name} takes fastload.transforms.Draws as draws, got {type(draws).__name__}")
        elif len(draws) != len(images):
            raise ValueError(f"{name} got draws for {len(draws)} samples, and {len(images)} images")
        draws.shape = shape_of(images, self.layout)
        return self.draw_for(draws, draws.shape)

    def _check_given(self, images: Tensor, params: Any) -> None:
        """Check parameters that the caller gave, against those drawn for such images, without a synchronisation."""
        if torch.compiler.is_compiling() or hasattr(images, "fake_mode"):
            return
        draws = Draws(_ANY_KEY, np.arange(len(images), dtype=np.int64), epochs=(0, _ANY_KEY))
        wanted = self.draw_for(draws, shape_of(images, self.layout))
        check_params(f"{type(self).__name__} got params", params, wanted)

    def forward(
        self,
        images: Tensor,
        labels: Tensor | None = None,
        *,
        generator: torch.Generator | None = None,
        draws: Draws | None = None,
        params: Any = None,
        return_params: bool = False,
    ) -> Any:
        """Transform a batch.

        Args:
            images: see the class.
            labels: [N] classes or [N, num_classes] probabilities. Transforms that mix samples need them; others return
                them unchanged.
            generator: the CPU generator to draw parameters from; None: torch's global one.
            draws: the draws of these samples, as ``fastload.DataLoader`` makes them, instead of a generator.
            params: parameters that were drawn for a batch of this shape.
            return_params: return the parameters, too; they are tensors of the CPU, or as they were given.

        Returns:
            The images; with labels (images, labels). The parameters come last. Images, labels or parameters that are
            not as described are a TypeError or ValueError.
        """
        check_images(images, self, self.layout)
        if labels is not None or self.mixes:
            self.check_labels(labels, len(images))
        if params is None:
            params = self._drawn(images, generator, draws)
        else:
            self._check_given(images, params)
        moved = params_to(params, images.device)
        results = [self._applied(images, moved)]
        if labels is not None:
            if self.mixes and labels.device != images.device:
                moved = params_to(params, labels.device)
            results.append(self.transform_labels(labels, moved))
        if return_params:
            results.append(params)
        return results[0] if len(results) == 1 else tuple(results)

    def check_labels(self, labels: object, num_images: int) -> None:
        """Raise a TypeError or ValueError for labels that the transform does not take."""

    def transform_labels(self, labels: Tensor, params: Any) -> Tensor:
        """Return the labels, mixed as the images are, given the parameters on their device."""
        return labels

    def _applied(self, images: Tensor, params: Any) -> Tensor:
        """Return the transformed images, lying as these do, in either layout, given parameters on their device."""
        last = self.layout == "NHWC"
        images = images.permute(0, 3, 1, 2) if last else images
        with _without_autocast(images.device):
            found = self.transform(images, params).contiguous(memory_format=memory_format_of(images))
        return found.permute(0, 2, 3, 1) if last else found


def _without_autocast(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Return a context without the caller's ``torch.autocast``: transforms choose their own dtypes."""
    if torch.compiler.is_compiling():  # torch 2.11 would leave the graph to ask
        known = device.type in ("cpu", "cuda", "mps", "xpu")
    else:
        known = torch.amp.is_autocast_available(device.type)
    if not known or not torch.is_autocast_enabled(device.type):
        return contextlib.nullcontext()
    return torch.autocast(device.type, enabled=False)


def shape_of(images: Tensor, layout: Layout = "NCHW") -> BatchShape:
    """Return the shape of a batch in either layout."""
    if layout == "NHWC":
        num, height, width, channels = images.shape
        return BatchShape(num, channels, height, width)
    return BatchShape(*images.shape)


def check_images(images: object, owner: nn.Module, layout: Layout) -> None:
    """Raise a TypeError or ValueError unless these are images as ``Transform`` says."""
    name = type(owner).__name__
    if not isinstance(images, Tensor):
        raise TypeError(f"{name} transforms a batch of images, a tensor of {layout}, got {type(images).__name__}")
    if images.layout != torch.strided:
        raise TypeError(f"{name} transforms dense images, got a tensor of layout {images.layout}; use to_dense()")
    if images.dtype not in DTYPES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise TypeError(f"{name} transforms images of {known}, got {images.dtype}")
    if images.ndim != 4:
        raise ValueError(
            f"{name} transforms batches of {layout}, got shape {tuple(images.shape)}; add the missing dimension, with "
            "images[None] for a single image"
        )
    if 0 in images.shape:
        raise ValueError(f"{name} got an empty batch: shape {tuple(images.shape)}")


def tensor_of(values: Any, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return host parameters as a tensor."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(dtype)
