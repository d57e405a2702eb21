"""What ``fuse=True`` makes of a loader's dataset.

In: a loader. Out: the plan of its dataset, what loads its samples by that plan, and what the device does with whole
batches of them. The library of C functions is used where it is there, Pillow and torch elsewhere, or the decoder that
the user names: the samples are the same.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset

from . import compat, native
from .errors import ConfigError
from .streams import device_of
from .users_line import warn_at_users_line

if TYPE_CHECKING:
    from .fusion import FusedDataset, FusedTail, Plan


def check_can_fuse(loader: Any) -> None:
    """Check that a loader's arguments leave room for fusing.

    Raises:
        ConfigError: they do not.
    """
    if not isinstance(loader.fuse, bool) and loader.fuse != "auto":
        raise ConfigError(f"fuse must be 'auto', True or False, got fuse={loader.fuse!r}")
    if loader.fuse is True and loader.seeding == "torch":
        raise ConfigError(
            "fuse=True draws parameters from each sample's key, and seeding='torch' from torch's streams; leave one out"
        )
    if isinstance(loader.decoder, str) and loader.decoder == "auto":
        return
    from .images import chosen

    if loader.decoder != "nvjpeg":
        chosen(loader.decoder)
    if loader.fuse is not True:
        raise ConfigError(
            f"decoder={loader.decoder!r} is what fuse=True decodes files with, got fuse={loader.fuse!r}; use "
            f"fuse=True, or give the dataset loader=fastload.images.Loader({loader.decoder!r})"
        )
    if loader.decoder == "nvjpeg":
        _check_nvjpeg(loader)


def _check_nvjpeg(loader: Any) -> None:
    """Check that the device can decode for a loader.

    Raises:
        ConfigError: it cannot.
    """
    from .images import nvjpeg

    if loader.device is None or not decodes(device_of(loader.device)):
        reason: str | None = f"it decodes on a CUDA device, got device={loader.device!r}; give device='cuda'"
    elif loader.on_error != "raise":
        reason = f"that a file is damaged shows when its batch is made; use on_error='raise', got {loader.on_error!r}"
    else:
        reason = why_not_there(loader) or nvjpeg.why_not()
    if reason is not None:
        raise ConfigError(f"decoder='nvjpeg' cannot be used: {reason}, or decoder='auto'")


def decoder_of(loader: Any) -> str:
    """Return what decodes files for a loader that fuses, in words."""
    from .images import chosen

    if loader.decoder == "nvjpeg":
        return f"nvjpeg: whole batches on {loader.device}; what it cannot decode, Pillow does"
    name, library = chosen(loader.decoder)
    return f"{name}: {library}"


def plan_of(loader: Any) -> Plan | None:
    """Return the plan of a loader's dataset: of its workers, where the device does a part; None: it asks for none."""
    return _planned(loader)[0] if loader.fuse is True else None


def possible_plan(loader: Any) -> Plan | str:
    """Return the plan that ``fuse=True`` would carry out, asked for or not; or why there is none."""
    if loader.seeding == "torch":
        return "seeding='torch' draws from torch's streams"
    return _why_not_by_index(loader) or _planned(loader)[0]


def named_plan(dataset: Any, decoder: str = "auto") -> Plan:
    """Return the plan of a dataset, with what would make its rows and blocks here."""
    from .fusion import recognise

    named = {name: maker.name for name, maker in _makers(decoder).items()}
    if decoder == "nvjpeg":
        named["rows"] = "nvJPEG, on the device"
    return replace(recognise(dataset), **named)


def fused_of(loader: Any, seed: int, *, split: bool = True) -> tuple[FusedDataset | None, Any]:
    """Return what loads the samples in the dataset's place, and what the device does with whole batches of them.

    Args:
        loader: a :class:`fastload.DataLoader`.
        seed: of the samples' keys.
        split: leave a part to the device, where there is one. Else the first does all.

    Returns:
        None, None where the dataset loads its samples itself. The second, a transform of batches or None, is the same
        object as before, as long as it does the same.

    Raises:
        ConfigError: ``decoder="nvjpeg"``, and the device cannot decode this dataset's files.

    Warns:
        UserWarning: nothing of the dataset can be fused; once for each reason.
    """
    if loader.fuse is not True:
        return None, None
    plan, tail = _planned(loader, split=split)
    if loader.decoder == "nvjpeg" and split:
        return _decoded_there(loader, plan, tail, seed)
    if not plan.fused:
        if loader._runtime.no_fusion_told != plan.reason:
            loader._runtime.no_fusion_told = plan.reason
            warn_at_users_line(
                f"fuse=True changes nothing: {plan.reason}; images are decoded late, as with fuse='auto'; "
                "loader.explain() shows what was recognised"
            )
        return None, None
    from .fusion import FusedDataset

    if tail is not None:
        known = loader._runtime.tail
        if known is None or known[0] != plan.tails:
            loader._runtime.tail = known = plan.tails, tail
        tail = known[1]
    return FusedDataset(loader.dataset, plan, seed, **_makers(loader.decoder)), tail


def _decoded_there(loader: Any, plan: Plan, tail: FusedTail | None, seed: int) -> tuple[FusedDataset, Any]:
    """Return what reads the files of samples, and what decodes batches of them on the device."""
    from .fusion.encoded import DeviceDecoding, EncodedDataset

    dataset = EncodedDataset(loader.dataset, plan, seed, **_makers(loader.decoder))
    known = loader._runtime.tail
    if known is None or known[0] != plan:
        assert plan.yields is not None
        assert plan.yields.shape is not None
        decoding = DeviceDecoding(
            loader.dataset,
            plan.yields.shape[1:],
            device_of(loader.device),
            loader.channels_last,
            tail,
            loader._runtime.counts.count_decoded,
        )
        loader._runtime.tail = known = plan, decoding
    return dataset, known[1]


def images_in_words(loader: Any) -> str | None:
    """Return how the images are decoded that the dataset opens itself, in words; None where Pillow is not used."""
    if "PIL.Image" not in sys.modules:
        return None
    if loader.fuse is False:
        return "decoded at once, as fuse=False asks"
    if loader.fuse is True and _planned(loader)[0].fused:
        return None
    from .late.opener import why_not

    reason = why_not()
    if reason is not None:
        return f"decoded at once: {reason}"
    return "JPEG files that a sample opens through Pillow are decoded late, as far as their pixels are used"


def _planned(loader: Any, *, split: bool = True) -> tuple[Plan, FusedTail | None]:
    """Return the plan of the workers, and what the device does after them."""
    from .fusion import Plan

    reason = _why_not_by_index(loader)
    if reason is not None:
        return Plan(dataset=type(loader.dataset).__name__, parts=(), reason=reason), None
    plan = named_plan(loader.dataset, loader.decoder)
    has_device = loader.device is not None and does_steps(device_of(loader.device))
    return plan.split(device=split and has_device and why_not_there(loader) is None)


def _why_not_by_index(loader: Any) -> str | None:
    """Return why a loader's samples are not asked for one by one; None if they are."""
    if isinstance(loader.dataset, IterableDataset):
        return "an IterableDataset has no indices"
    return None if loader._auto_collation else "batch_size=None leaves batching to the dataset"


def why_not_there(loader: Any) -> str | None:
    """Return why a device would not get the images as the workers make them; None if it would."""
    if loader.resident is not None:
        return f"resident={loader.resident!r} keeps what the whole transform makes"
    if not compat.collates_by_default(loader.collate_fn):
        return "collate_fn gets what the whole transform makes"
    if "0" in map(str, loader.keep_on_host):  # where torch's collation puts them
        return "keep_on_host keeps the images"
    return None


def does_steps(device: torch.device) -> bool:
    """Whether steps are better done by a device than by the workers."""
    return device.type != "cpu"


def decodes(device: torch.device) -> bool:
    """Whether nvJPEG decodes on a device."""
    return device.type == "cuda"


def _makers(decoder: str) -> dict[str, Any]:
    """Return what makes rows of files, and blocks of arrays where that is not torch, by the argument's name.

    With nvJPEG the workers read no more than headers, and a sample that is replayed is made on the CPU.
    """
    from .fusion.native_makers import NativeBlocks
    from .images import make_decoder

    made: dict[str, Any] = {"rows": make_decoder("auto" if decoder == "nvjpeg" else decoder)}
    if native.available("arrays"):
        made["blocks"] = NativeBlocks()
    return made


__all__ = [
    "check_can_fuse",
    "decoder_of",
    "decodes",
    "does_steps",
    "fused_of",
    "images_in_words",
    "named_plan",
    "plan_of",
    "possible_plan",
    "why_not_there",
]
