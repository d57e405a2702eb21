"""What ``fuse=True`` makes of a loader's dataset.

In: a loader. Out: the plan of its dataset, and what loads its samples by that plan. The library of C functions is used
where it is there, Pillow and torch elsewhere: the samples are the same.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset

from . import native
from .errors import ConfigError
from .native.rows import pillow_order

if TYPE_CHECKING:
    from .fusion import FusedDataset, Plan


def check_can_fuse(loader: Any) -> None:
    """Check that a loader's arguments leave room for fusing.

    Raises:
        ConfigError: they do not.
    """
    if not isinstance(loader.fuse, bool):
        raise ConfigError(f"fuse must be True or False, got fuse={loader.fuse!r}")
    if loader.fuse and loader.seeding == "torch":
        raise ConfigError(
            "fuse=True draws parameters from each sample's key, and seeding='torch' from torch's streams; leave one out"
        )


def plan_of(loader: Any) -> Plan | None:
    """Return the plan of a loader's dataset; None for one that does not ask for it."""
    if not loader.fuse:
        return None
    from .fusion import Plan, recognise

    reason = None
    if isinstance(loader.dataset, IterableDataset):
        reason = "an IterableDataset has no indices"
    elif not loader._auto_collation:
        reason = "batch_size=None leaves batching to the dataset"
    if reason is not None:
        return Plan(dataset=type(loader.dataset).__name__, parts=(), reason=reason)
    named = {name: maker.name for name, maker in _makers().items()}
    return replace(recognise(loader.dataset), **named)


def fused_of(loader: Any, seed: int) -> FusedDataset | None:
    """Return what loads the samples in the dataset's place; None where it loads them itself.

    Warns:
        UserWarning: nothing of the dataset can be fused.
    """
    plan = plan_of(loader)
    if plan is None:
        return None
    if not plan.fused:
        warnings.warn(
            f"fuse=True changes nothing: {plan.reason}; loader.explain() shows what was recognised", stacklevel=6
        )
        return None
    from .fusion import FusedDataset

    return FusedDataset(loader.dataset, plan, seed, **_makers())


def _makers() -> dict[str, Any]:
    """Return what the native library makes here, by the argument's name; the rest is made by Pillow and torch."""
    from .fusion.native_makers import NativeBlocks, NativeRows

    made: dict[str, Any] = {}
    # A Pillow that resizes in a way that the library does not know is followed by itself alone.
    if native.available("jpeg") and pillow_order() is not None:
        made["rows"] = NativeRows()
    if native.available("arrays"):
        made["blocks"] = NativeBlocks()
    return made


__all__ = ["check_can_fuse", "fused_of", "plan_of"]
