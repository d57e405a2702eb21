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
    """Return the plan of a loader's dataset; None for one that does not ask for it, or loads no single samples."""
    if not loader.fuse or isinstance(loader.dataset, IterableDataset) or not loader._auto_collation:
        return None
    from .fusion import recognise

    plan = recognise(loader.dataset)
    if not native.available():
        return plan
    from .fusion.native_makers import NativeBlocks, NativeRows

    return replace(plan, rows=NativeRows.name, blocks=NativeBlocks.name)


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

    if not native.available():
        return FusedDataset(loader.dataset, plan, seed)
    from .fusion.native_makers import NativeBlocks, NativeRows

    return FusedDataset(loader.dataset, plan, seed, rows=NativeRows(), blocks=NativeBlocks())


__all__ = ["check_can_fuse", "fused_of", "plan_of"]
