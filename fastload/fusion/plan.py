"""The plan of a dataset: what runs where, or why nothing is fused. Nothing is read for it, and nothing drawn."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from PIL import Image
from torch import nn
from torch.utils.data import IterableDataset

from ..base.overrides import is_written_in
from ..cache.records import Records
from ..late.image import PATCH_GUARD
from ..late.patch_guard import PatchGuard
from .sources import Arrays, Source, source_of
from .transforms import NotFused, Pipeline, read_transform

# Columns that the name of a stage may take.
_WIDEST = 54


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """Which transforms are fused, or why none is."""

    dataset: str
    """The dataset's class."""
    reason: str | None = None
    """Why it is not fused; None if it is."""
    found: tuple[list[Any], Source, Pipeline] | None = None
    """The indices of its Subsets, its images, and what its transform does; None if it is not fused."""

    @property
    def fused(self) -> bool:
        """True if the dataset is fused."""
        return self.found is not None

    @property
    def reads_files(self) -> bool:
        """True if files are decoded."""
        return self.found is not None and not isinstance(self.found[1], Arrays)

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield each stage, and where it runs."""
        if self.found is None:
            yield self.dataset, f"as it is: {self.reason}"
            return
        _, source, pipeline = self.found
        words = {"moves": "in one pass, into the batch", "values": "in the same pass", "erases": "in the batch"}
        yield f"{self.dataset}: {source.shown}", ""
        if self.reads_files:
            yield "  read, decode", words["moves"]
        yield from ((f"  {shown}", words[what]) for shown, what in pipeline.shown)
        dtype = str(pipeline.table.dtype).removeprefix("torch.")
        yield f"  = {pipeline.kind} of {dtype} {[pipeline.channels, *(pipeline.size or ())]}", ""

    def __str__(self) -> str:
        lines = [
            (f"{stage[: _WIDEST - 3]}..." if runs and len(stage) > _WIDEST else stage, runs)
            for stage, runs in (("stage", "done"), *self.lines())
        ]
        widest = max(len(stage) for stage, runs in lines if runs)
        return "\n".join(f"{stage:<{widest}}  {runs}".rstrip() for stage, runs in lines)


def recognise(dataset: Any, cache: Records | None = None) -> Plan:
    """Return the plan of a dataset, of which nothing is called: known or not, it can be printed."""
    name, reason = type(dataset).__name__, _replaced()
    if isinstance(dataset, IterableDataset):
        reason = "an IterableDataset has no indices"
    if reason is not None:
        return Plan(dataset=name, reason=reason)
    try:
        leaf, chosen, source = source_of(dataset, cache)
        pipeline = read_transform(leaf.transform, source.channels, source.size)
    except NotFused as why:
        return Plan(dataset=name, reason=str(why))
    return Plan(dataset=type(leaf).__name__, found=(chosen, source, pipeline))


_PACKAGES = ("torch", "torchvision", "PIL", "typing", "fastload")
_PILLOW = ("PIL.Image", "PIL.ImageFile", "PIL.ImageOps")


@functools.cache
def _functions() -> PatchGuard:
    """Return the functions of torchvision and Pillow that fused steps stand in for."""
    guard = PatchGuard(*_PACKAGES)
    transforms = [name for name in sys.modules if name.startswith("torchvision.transforms.")]
    for module in map(sys.modules.get, (*transforms, "torchvision.datasets.folder", *_PILLOW)):
        if module is not None:
            items = vars(module).items()
            guard.add(module, [name for name, value in items if callable(value) and not isinstance(value, type)])
    return guard


def _replaced() -> str | None:
    """Return what makes torchvision or Pillow do something else than they say; None if nothing does."""
    name = _functions().replaced() or PATCH_GUARD.replaced()
    if name is not None:
        return f"{name} was replaced"
    opener = Image.OPEN.get("JPEG")
    if opener is not None and not is_written_in(opener[0], *_PACKAGES):
        return "Pillow's opener of JPEG files was replaced"
    hooks = nn.modules.module
    if any(getattr(hooks, name, True) for name in ("_global_forward_hooks", "_global_forward_pre_hooks")):
        return "all modules have hooks (torch.nn.modules.module)"
    return None
