"""A batched transform on a loader's batches, which may have more than images: labels are mixed where images are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from torch import Tensor

from ..base.nesting import map_leaves
from ..errors import ConfigError
from .base import Transform
from .draws import Draws, using_draws

# Keys of images and labels in dicts, as datasets and processors name them.
_IMAGES = ("image", "images", "pixel_values", "img", "x", "input", "inputs")
_LABELS = ("label", "labels", "target", "targets", "y")


OnBatch: TypeAlias = Callable[[Any, Draws | None], Any]
"""Applies a transform to a batch, with the draws of its samples."""


def on_batches(transform: Callable[[Any], Any]) -> OnBatch:
    """Return a function of (batch, draws) that applies a transform to the images of a batch.

    A callable that is no ``Transform`` gets the whole batch, under the caller's ``torch.autocast``; transforms of
    fastload's that it calls use the batch's draws.
    """
    if not isinstance(transform, Transform):

        def call(batch: Any, draws: Draws | None) -> Any:
            with using_draws(draws):
                return transform(batch)

        return call

    def apply(batch: Any, draws: Draws | None) -> Any:
        place = _place_of_images(batch)
        images = batch if place is None else batch[place]
        own = None if draws is None else draws.for_images(len(images))
        if transform.mixes:
            labels = batch[_place_of_labels(batch, transform)]
            changed = dict(zip((id(images), id(labels)), transform(images, labels, draws=own), strict=True))
        else:
            changed = {id(images): transform(images, draws=own)}
        if draws is not None and own is not None:
            draws.shape = own.shape
        if place is None:
            return changed[id(images)]
        return map_leaves(batch, lambda part: changed.get(id(part), part), is_leaf=lambda part: part is not batch)

    return apply


def params_of(transform: Callable[[Any], Any] | None, draws: Any) -> Any:
    """Return the parameters that a transform drew for a batch, by drawing them again."""
    if not isinstance(transform, Transform):
        raise ConfigError(
            f"batch_params needs a batch_transform of fastload.transforms, got {transform!r}; your own function can "
            "call transforms with return_params=True and add the parameters to the batch"
        )
    if not isinstance(draws, Draws) or draws.shape is None:
        raise ConfigError("batch_params are those of the last batch, and the loader has not returned one yet")
    return transform.draw_for(draws.for_images(draws.shape.num), draws.shape)


def images_of(batch: Any) -> Tensor:
    """Return the images of a batch."""
    place = _place_of_images(batch)
    images: Tensor = batch if place is None else batch[place]
    return images


def _place_of_images(batch: Any) -> Any:
    """Return the index or key of the images in a batch; None: the batch is the images."""
    if isinstance(batch, Tensor):
        return None
    if isinstance(batch, (list, tuple)) and batch and isinstance(batch[0], Tensor):
        return 0
    if isinstance(batch, Mapping):
        found = [name for name, value in batch.items() if isinstance(value, Tensor) and value.ndim == 4]
        named = [name for name in _IMAGES if name in found]
        if named or len(found) == 1:
            return (named or found)[0]
    raise ConfigError(
        "batch_transform looks for images in the batch itself, at the first place of a list or tuple, or in a dict "
        f"under {', '.join(_IMAGES)} or as the only tensor of four dimensions, and the batch is {_describe(batch)}; "
        "give a function that takes the batch and applies the transform where the images are"
    )


def _place_of_labels(batch: Any, transform: Transform) -> Any:
    if isinstance(batch, (list, tuple)) and len(batch) > 1 and isinstance(batch[1], Tensor):
        return 1
    if isinstance(batch, Mapping):
        named = [name for name in _LABELS if isinstance(batch.get(name), Tensor)]
        if named:
            return named[0]
    raise ConfigError(
        f"{type(transform).__name__} mixes labels too, and looks for them at the second place of a list or tuple, or "
        f"in a dict under {', '.join(_LABELS)}, and the batch is {_describe(batch)}; give a function that takes the "
        "batch and applies the transform to both"
    )


def _describe(batch: Any) -> str:
    if isinstance(batch, Mapping):
        return "a dict of " + ", ".join(f"{name!r} ({_describe(value)})" for name, value in batch.items())
    if isinstance(batch, Tensor):
        return f"a tensor {tuple(batch.shape)}"
    return f"a {type(batch).__name__}"
