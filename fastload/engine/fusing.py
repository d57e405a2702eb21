"""What ``fuse=True`` makes of a loader's dataset.

In: a spec. Out: the plan of its dataset, what loads its samples by that plan, and what the device does with whole
batches of them. The library of C functions is used where it is there, Pillow and torch elsewhere, or the decoder that
the user names: the samples are the same.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import ConcatDataset, IterableDataset, Subset

from .. import native
from ..base import compat
from ..base.users_line import warn_at_users_line
from ..device.streams import device_of
from ..errors import ConfigError
from ..spec import Spec

if TYPE_CHECKING:
    from ..fusion import FusedDataset, FusedTail, Plan


def check_can_fuse(spec: Spec) -> None:
    """Check that a loader's arguments leave room for fusing.

    Raises:
        ConfigError: they do not.
    """
    if not isinstance(spec.fuse, bool) and spec.fuse != "auto":
        raise ConfigError(f"fuse must be 'auto', True or False, got fuse={spec.fuse!r}")
    if spec.fuse is True and spec.seeding == "torch":
        raise ConfigError(
            "fuse=True draws parameters from each sample's key, and seeding='torch' from torch's streams; leave one out"
        )
    if isinstance(spec.decoder, str) and spec.decoder == "auto":
        return
    from ..images import chosen

    chosen(spec.decoder)
    if spec.fuse is not True:
        raise ConfigError(
            f"decoder={spec.decoder!r} is what fuse=True decodes files with, got fuse={spec.fuse!r}; use "
            f"fuse=True, or give the dataset loader=fastload.images.Loader({spec.decoder!r})"
        )


def decoder_of(spec: Spec) -> str:
    """Return what decodes files for a spec that fuses, in words."""
    from ..images import chosen

    name, library = chosen(spec.decoder)
    return f"{name}: {library}"


def plan_of(spec: Spec) -> Plan | None:
    """Return the plan of a dataset: of the workers, where the device does a part; None: ``fuse`` is not True."""
    return _planned(spec)[0] if spec.fuse is True else None


def possible_plan(spec: Spec) -> Plan | str:
    """Return the plan that ``fuse=True`` would carry out, asked for or not; or why there is none."""
    if spec.seeding == "torch":
        return "seeding='torch' draws from torch's streams"
    return _why_not_by_index(spec) or _planned(spec)[0]


def named_plan(dataset: Any, decoder: str = "auto") -> Plan:
    """Return the plan of a dataset, with what would make its rows and blocks here."""
    from ..fusion import recognise

    makers = _makers(decoder)
    blocks = "the native library" if makers["native_blocks"] else "torch"
    return replace(recognise(dataset), rows=makers["rows"].name, blocks=blocks)


def fused_of(spec: Spec, runtime: Any, seed: int) -> tuple[FusedDataset | None, FusedTail | None]:
    """Return what loads the samples in the dataset's place, and what the device does with whole batches of them.

    Args:
        spec: how the loader is served.
        runtime: of the loader.
        seed: of the samples' keys.

    Returns:
        None, None where the dataset loads its samples itself. The second, a transform of batches or None, is the same
        object as before, as long as it does the same.

    Warns:
        UserWarning: nothing of the dataset can be fused; once for each reason.
    """
    plan, tail = _planned(spec)
    if not plan.fused:
        if runtime.no_fusion_told != plan.reason:
            runtime.no_fusion_told = plan.reason
            warn_at_users_line(
                f"fuse=True changes nothing: {plan.reason}; images are decoded late, as with fuse='auto'; "
                "loader.explain() shows what was recognised"
            )
        return None, None
    from ..fusion import FusedDataset

    if tail is not None:
        if runtime.tail is None or runtime.tail[0] != plan.tails:
            runtime.tail = plan.tails, tail
        tail = runtime.tail[1]
    return FusedDataset(spec.dataset, plan, seed, **_makers(spec.decoder)), tail


def images_in_words(spec: Spec) -> str | None:
    """Return how the images are decoded that the dataset opens itself, in words; None where Pillow is not used."""
    if "PIL.Image" not in sys.modules:
        return None
    if spec.fuse is False:
        return "decoded at once, as fuse=False asks"
    if spec.fuse is True and _planned(spec)[0].fused:
        return None
    from ..late.opener import why_not

    reason = why_not()
    if reason is not None:
        return f"decoded at once: {reason}"
    packed = "packed coefficients and " if _has_coefficients(spec.dataset) else ""
    return f"{packed}JPEG files that a sample opens through Pillow are decoded late, as far as their pixels are used"


def _has_coefficients(dataset: Any) -> bool:
    """Return whether images of a dataset are packed as coefficients."""
    if isinstance(dataset, Subset):
        return _has_coefficients(dataset.dataset)
    if isinstance(dataset, ConcatDataset):
        return any(map(_has_coefficients, dataset.datasets))
    packs = sys.modules.get("fastload.pack.dataset")
    return packs is not None and isinstance(dataset, packs.PackedImages) and dataset.coefficients


def _planned(spec: Spec) -> tuple[Plan, FusedTail | None]:
    """Return the plan of the workers, and what the device does after them."""
    from ..fusion import Plan

    reason = _why_not_by_index(spec)
    if reason is not None:
        return Plan(dataset=type(spec.dataset).__name__, parts=(), reason=reason), None
    plan = named_plan(spec.dataset, spec.decoder)
    has_device = spec.device is not None and does_steps(device_of(spec.device))
    return plan.split(device=has_device and why_not_split(spec) is None)


def _why_not_by_index(spec: Spec) -> str | None:
    """Return why samples are not asked for one by one; None if they are."""
    if isinstance(spec.dataset, IterableDataset):
        return "an IterableDataset has no indices"
    return None if spec.auto_collation else "batch_size=None leaves batching to the dataset"


def why_not_split(spec: Spec) -> str | None:
    """Return why a device would not get the images as the workers make them; None if it would."""
    if spec.resident is not None:
        return f"resident={spec.resident!r} keeps what the whole transform makes"
    if not compat.collates_by_default(spec.collate_fn):
        return "collate_fn gets what the whole transform makes"
    if "0" in map(str, spec.keep_on_host):  # where torch's collation puts them
        return "keep_on_host keeps the images"
    return None


def does_steps(device: torch.device) -> bool:
    """Whether steps are better done by a device than by the workers."""
    return device.type != "cpu"


def _makers(decoder: str) -> dict[str, Any]:
    """Return what makes rows of files, and whether the native library makes blocks of arrays: by argument."""
    from ..images import make_decoder

    return {"rows": make_decoder(decoder), "native_blocks": native.available()}
