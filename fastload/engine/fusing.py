"""What ``fuse=True`` makes of a loader's dataset.

The library of C functions is used where it is there, Pillow and torch elsewhere: the samples are the same.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset

from .. import native
from ..arguments import FusingArguments
from ..base import compat, overrides
from ..base.users_line import warn_at_users_line
from ..device.streams import device_of
from ..late.samples import late_module

if TYPE_CHECKING:
    from ..fusion import FusedDataset, FusedTail, Plan
    from .kept import Kept


@functools.cache
def _fusion() -> ModuleType:
    """Return :mod:`fastload.fusion`, which takes seconds to import, with torchvision."""
    from .. import fusion

    return fusion


def plan_of(arguments: FusingArguments) -> Plan | None:
    """Return the plan of a dataset: of the workers, where the device does a part; None: ``fuse`` is not True."""
    return _planned(arguments)[0] if arguments.fuse is True else None


def possible_plan(arguments: FusingArguments) -> Plan | str:
    """Return the plan that ``fuse=True`` would carry out, asked for or not; or why there is none."""
    if arguments.seeding == "torch":
        return "seeding='torch' draws from torch's streams"
    return _why_not_by_index(arguments) or _planned(arguments)[0]


def named_plan(dataset: Any) -> Plan:
    """Return the plan of a dataset, with what would make its rows and blocks here."""
    makers = _makers()
    blocks = "the native library" if makers["native_blocks"] else "torch"
    plan: Plan = _fusion().recognise(dataset)
    return replace(plan, rows=makers["rows"].name, blocks=blocks)


def fused_of(arguments: FusingArguments, kept: Kept, seed: int) -> tuple[FusedDataset | None, FusedTail | None]:
    """Return what loads the samples in the dataset's place, and what the device does with whole batches of them.

    Returns:
        None, None where the dataset loads its samples itself. The second, a transform of batches or None, is the same
        object as before, as long as it does the same.

    Warns:
        UserWarning: nothing of the dataset can be fused; once for each reason.
    """
    plan, tail = _planned(arguments)
    if not plan.fused:
        if kept.no_fusion_told != plan.reason:
            kept.no_fusion_told = plan.reason
            warn_at_users_line(
                f"fuse=True changes nothing: {plan.reason}; images are decoded late, as with fuse='auto'; "
                "loader.explain() shows what was recognised"
            )
        return None, None
    if tail is not None:
        if kept.tail is None or kept.tail[0] != plan.tails:
            kept.tail = plan.tails, tail
        tail = kept.tail[1]
    fused = _fusion().FusedDataset(arguments.dataset, plan, seed, **_makers(), cache=kept.cache)
    return fused, tail


def images_in_words(arguments: FusingArguments) -> Iterator[str]:
    """Yield how the images are decoded that the dataset opens itself, in words; nothing where it has no library."""
    libraries = {"PIL.Image", *overrides.MODULES}
    if sys.modules.keys().isdisjoint(libraries) or (arguments.fuse is True and _planned(arguments)[0].fused):
        return
    if arguments.fuse is False:
        yield "decoded at once, as fuse=False asks"
        return
    if "PIL.Image" in sys.modules:
        reason = late_module("opener").why_not()
        late = "JPEG and PNG files that a sample opens through Pillow are decoded late, as far as their pixels are used"
        yield late if reason is None else f"decoded at once: {reason}"
    if not sys.modules.keys().isdisjoint(overrides.MODULES):
        yield from late_module("arrays").in_words(arguments.dataset)
        yield from overrides.in_words()


def _planned(arguments: FusingArguments) -> tuple[Plan, FusedTail | None]:
    """Return the plan of the workers, and what the device does after them."""
    reason = _why_not_by_index(arguments)
    if reason is not None:
        return _fusion().Plan(dataset=type(arguments.dataset).__name__, parts=(), reason=reason), None
    plan = named_plan(arguments.dataset)
    has_device = arguments.device is not None and does_steps(device_of(arguments.device))
    return plan.split(device=has_device and why_not_split(arguments) is None)


def _why_not_by_index(arguments: FusingArguments) -> str | None:
    """Return why samples are not asked for one by one; None if they are."""
    if isinstance(arguments.dataset, IterableDataset):
        return "an IterableDataset has no indices"
    return None if arguments.auto_collation else "batch_size=None leaves batching to the dataset"


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


def _makers() -> dict[str, Any]:
    """Return what makes rows of files, and whether the native library makes blocks of arrays: by argument."""
    from ..images import choice

    return {"rows": choice.make_decoder(), "native_blocks": native.available()}
