"""Builds the fused dataset for ``fuse=True``.

Where nothing can be fused, the dataset loads its samples itself, and images are decoded late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..base.users_line import warn_at_users_line

if TYPE_CHECKING:
    from ..fusion import FusedDataset, Plan
    from .runtime import LoaderRuntime


def plan_of(dataset: Any, reason: str | None) -> Plan:
    """Return the plan that ``fuse=True`` carries out, or would; ``reason``: why the loader can have none."""
    from .. import fusion  # takes seconds, with torchvision

    if reason is not None:
        return fusion.Plan(dataset=type(dataset).__name__, reason=reason)
    return fusion.recognise(dataset)


def fused_of(dataset: Any, reason: str | None, runtime: LoaderRuntime, seed: int) -> FusedDataset | None:
    """Return what loads the samples in the dataset's place; None where the dataset loads them itself.

    ``reason``: why the loader can have none. ``seed``: of the samples' keys.

    Warns:
        UserWarning: nothing of the dataset can be fused; once for each reason.
    """
    plan = plan_of(dataset, reason)
    if plan.fused:
        from ..fusion import FusedDataset

        return FusedDataset(dataset, seed, cache=runtime.cache)
    if runtime.last_fusion_warning != plan.reason:
        runtime.last_fusion_warning = plan.reason
        warn_at_users_line(
            f"fuse=True changes nothing: {plan.reason}; images are decoded late, as with fuse='auto'; "
            "loader.explain() shows what was recognised"
        )
    return None
