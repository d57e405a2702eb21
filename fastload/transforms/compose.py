"""``Compose``: transforms one after the other, with as few passes over the images as their neighbours allow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

from torch import Tensor, nn

from ..errors import ConfigError
from .base import BatchShape, Layout, Transform
from .draws import Draws
from .stages import parts_of, stages_of


class Compose(Transform):
    """Transforms of batches, one after the other.

    Each member draws what it would draw alone, under its own name, so that adding or leaving out one changes no
    parameter of another. Neighbours that can be one are: see :func:`fastload.transforms.chain.compose`; and ``ToDtype``
    from uint8 with ``Normalize`` behind it, which is :class:`ToNormalized` then, with its tolerance. On CUDA, with
    Triton, crops and flips and what converts or normalises behind them are one launch, and so are resized crops: see
    :class:`fastload.transforms.stages.OnePass` and :class:`fastload.transforms.stages.OneResize`.

    Args:
        transforms: at least one; of this package; another Compose counts as what it is made of. Mixing ones
            (:class:`MixUp` and so on) need labels.
        layout: None: that of the transforms.

    ``print`` shows what became one. Parameters, as :meth:`forward` returns and takes them: a dict with the name of each
    member, numbered where there are several of a kind (``RandomCrop``, ``RandomCrop 2``).

    Raises:
        ConfigError: no list, something in it is none of this package's transforms, or the layouts differ.
    """

    def __init__(self, transforms: Sequence[Transform], *, layout: Layout | None = None) -> None:
        if not isinstance(transforms, Iterable):
            raise ConfigError(f"Compose takes a list of transforms, got {transforms!r}; put it in brackets")
        members: list[Transform] = []
        for place, member in enumerate(transforms):
            if not isinstance(member, Transform):
                raise ConfigError(
                    f"Compose takes batched transforms of fastload's, got {member!r} at place {place}; torchvision's "
                    "draw one set of parameters for a whole batch. What is not random can be done in a function given "
                    "as batch_transform"
                )
            members += list(member._members()) if isinstance(member, Compose) else [member]
        if not members:
            raise ConfigError("Compose needs at least one transform, got none")
        layouts = {member.layout for member in members}
        if layout is None and len(layouts) > 1:
            raise ConfigError(f"the transforms of a Compose must be of one layout, got {sorted(layouts)}")
        super().__init__(layout=members[0].layout if layout is None else layout)
        self.transforms = nn.ModuleList(members)
        count: Counter[str] = Counter()
        self._names = []
        for member in members:
            name = type(member).__name__
            count[name] += 1
            self._names.append(name if count[name] == 1 else f"{name} {count[name]}")
        self._stages = stages_of(members)
        self.mixes = any(member.mixes for member in members)

    def draw_for(self, draws: Draws, shape: BatchShape) -> dict[str, Any]:
        """Return the parameters of each member."""
        params = {}
        for name, member in zip(self._names, self._members(), strict=True):
            params[name] = member.draw(draws.stream(name), shape)
            shape = member.shape_after(shape)
        return params

    def shape_after(self, shape: BatchShape) -> BatchShape:
        """Return the shape of the result."""
        for member in self._members():
            shape = member.shape_after(shape)
        return shape

    def transform(self, images: Tensor, params: dict[str, Any]) -> Tensor:
        """Return the transformed images, [N, C, H, W]. Labels are not touched."""
        names = iter(self._names)
        for stage in self._stages:
            images = stage.transform(images, [params[name] for name in islice(names, len(stage))])
        return images

    def transform_labels(self, labels: Tensor, params: Any) -> Tensor:
        """See :class:`Transform`."""
        for name, member in zip(self._names, self._members(), strict=True):
            if member.mixes:
                labels = member.transform_labels(labels, params[name])
        return labels

    def check_labels(self, labels: object, num_images: int) -> None:
        """Check that there are labels where a member mixes them.

        Raises:
            TypeError: there are none.
        """
        if self.mixes and labels is None:
            names = [name for name, member in zip(self._names, self._members(), strict=True) if member.mixes]
            raise TypeError(f"{', '.join(names)} mixes labels as it mixes images: call with (images, labels)")

    def _members(self) -> Iterator[Any]:
        return iter(self.transforms)

    def extra_repr(self) -> str:
        """Return what is done in one pass."""
        names = iter(self._names)
        everywhere: list[str] = []
        together: dict[str, list[str]] = {}
        for stage in self._stages:
            parts = [list(islice(names, len(part))) for part in parts_of(stage)]
            everywhere += [" + ".join(part) for part in parts if len(part) > 1]
            if len(parts) > 1:
                together.setdefault(stage.where, []).append(" + ".join(chain.from_iterable(parts)))
        lines = []
        if everywhere:
            lines.append(f"in one pass: {'; '.join(everywhere)}")
        lines += [f"{where}: {'; '.join(chains)}" for where, chains in together.items()]
        return "\n".join(lines)


__all__ = ["Compose"]
