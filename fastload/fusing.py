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
    """Return the plan of a loader's dataset; None for one that does not ask for it, or loads no single samples."""
    plan = possible_plan(loader) if loader.fuse else None
    return None if isinstance(plan, str) else plan


def possible_plan(loader: Any) -> Plan | str:
    """Return the plan that ``fuse=True`` would carry out, asked for or not; or why there is none."""
    if loader.seeding == "torch":
        return "seeding='torch' draws from torch's streams"
    if isinstance(loader.dataset, IterableDataset):
        return "an IterableDataset gives its samples by itself"
    if not loader._auto_collation:
        return "the loader makes no batches (batch_size=None)"
    return named_plan(loader.dataset)


def named_plan(dataset: Any) -> Plan:
    """Return the plan of a dataset, with what would make its rows and blocks here."""
    from .fusion import recognise

    named = {name: maker.name for name, maker in _makers().items()}
    return replace(recognise(dataset), **named)


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


def why_not_native() -> str | None:
    """Return why files are decoded and resized by Pillow here, not by the native library; None where they are not."""
    reason = native.why_not("jpeg")
    if reason is None and pillow_order() is None:
        # It is followed by itself alone.
        from PIL import __version__

        reason = f"PIL {__version__} resizes to other values than the native library, which follows Pillow's own"
    return reason


def _makers() -> dict[str, Any]:
    """Return what the native library makes here, by the argument's name; the rest is made by Pillow and torch."""
    from .fusion.native_makers import NativeBlocks, NativeRows

    made: dict[str, Any] = {}
    if why_not_native() is None:
        made["rows"] = NativeRows()
    if native.available("arrays"):
        made["blocks"] = NativeBlocks()
    return made


__all__ = ["check_can_fuse", "fused_of", "named_plan", "plan_of", "possible_plan", "why_not_native"]
