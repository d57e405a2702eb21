"""What ``fuse=True`` makes of a loader's dataset.

Where nothing can be fused, the dataset loads its samples itself, and images are decoded late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..arguments import FusingArguments
from ..base import compat
from ..base.users_line import warn_at_users_line
from ..device.streams import device_of

if TYPE_CHECKING:
    from ..fusion import FusedDataset, Levels, Plan
    from .kept import Kept


def plan_of(arguments: FusingArguments) -> tuple[Plan, Levels | None]:
    """Return the plan that ``fuse=True`` carries out, or would: of the workers, and what the device does after them."""
    from .. import fusion  # takes seconds, with torchvision

    dataset = arguments.dataset
    reason = None if arguments.auto_collation else "batch_size=None leaves batching to the dataset"
    if arguments.seeding == "torch":
        reason = "seeding='torch' draws from torch's streams"
    if reason is not None:
        return fusion.Plan(dataset=type(dataset).__name__, reason=reason), None
    has_device = arguments.device is not None and does_steps(device_of(arguments.device))
    return fusion.recognise(dataset).split(device=has_device and why_not_split(arguments) is None)


def fused_of(arguments: FusingArguments, kept: Kept, seed: int) -> tuple[FusedDataset | None, Levels | None]:
    """Return what loads the samples in the dataset's place, and what the device does with whole batches of them.

    Returns:
        None, None where the dataset loads its samples itself. The second, a transform of batches or None, is the same
        object as before, as long as it does the same.

    Warns:
        UserWarning: nothing of the dataset can be fused; once for each reason.
    """
    plan, tail = plan_of(arguments)
    if not plan.fused:
        if kept.no_fusion_told != plan.reason:
            kept.no_fusion_told = plan.reason
            warn_at_users_line(
                f"fuse=True changes nothing: {plan.reason}; images are decoded late, as with fuse='auto'; "
                "loader.explain() shows what was recognised"
            )
        return None, None
    if tail is not None:
        if kept.tail is None or not torch.equal(kept.tail.table, tail.table):
            kept.tail = tail
        tail = kept.tail
    from ..fusion import FusedDataset

    moved = None if tail is None else tail.table
    return FusedDataset(arguments.dataset, seed, moved, cache=kept.cache), tail


def why_not_split(arguments: FusingArguments) -> str | None:
    """Return why a device would not get the images as the workers make them; None if it would."""
    if arguments.resident is not None:
        return f"resident={arguments.resident!r} keeps what the whole transform makes"
    if not compat.collates_by_default(arguments.collate_fn):
        return "collate_fn gets what the whole transform makes"
    if "0" in map(str, arguments.keep_on_host):  # where torch's collation puts them
        return "keep_on_host keeps the images"
    return None


def does_steps(device: torch.device) -> bool:
    """Whether steps are better done by a device than by the workers."""
    return device.type != "cpu"
