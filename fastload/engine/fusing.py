"""What ``fuse=True`` makes of a loader's dataset.

Where nothing can be fused, the dataset loads its samples itself, and images are decoded late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..arguments import FusingArguments
from ..base.users_line import warn_at_users_line

if TYPE_CHECKING:
    from ..fusion import FusedDataset, Plan
    from .kept import Kept


def plan_of(arguments: FusingArguments) -> Plan:
    """Return the plan that ``fuse=True`` carries out, or would."""
    from .. import fusion  # takes seconds, with torchvision

    reason = None if arguments.auto_collation else "batch_size=None leaves batching to the dataset"
    if arguments.seeding == "torch":
        reason = "seeding='torch' draws from torch's streams"
    if reason is not None:
        return fusion.Plan(dataset=type(arguments.dataset).__name__, reason=reason)
    return fusion.recognise(arguments.dataset)


def fused_of(arguments: FusingArguments, kept: Kept, seed: int) -> FusedDataset | None:
    """Return what loads the samples in the dataset's place; None where the dataset loads them itself.

    Warns:
        UserWarning: nothing of the dataset can be fused; once for each reason.
    """
    plan = plan_of(arguments)
    if plan.fused:
        from ..fusion import FusedDataset

        return FusedDataset(arguments.dataset, seed, cache=kept.cache)
    if kept.no_fusion_told != plan.reason:
        kept.no_fusion_told = plan.reason
        warn_at_users_line(
            f"fuse=True changes nothing: {plan.reason}; images are decoded late, as with fuse='auto'; "
            "loader.explain() shows what was recognised"
        )
    return None
