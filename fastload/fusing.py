"""What ``fuse=True`` makes of a loader's dataset.

In: a loader. Out: the plan of its dataset, and what loads its samples by that plan. The library of C functions is used
where it is there, Pillow and torch elsewhere, or the decoder that the user names: the samples are the same.
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
    if isinstance(loader.decoder, str) and loader.decoder == "auto":
        return
    from .images import chosen

    chosen(loader.decoder)
    if not loader.fuse:
        raise ConfigError(
            f"decoder={loader.decoder!r} is what fuse=True decodes files with, got fuse=False; add fuse=True, or give "
            f"the dataset loader=fastload.images.Loader({loader.decoder!r})"
        )


def decoder_of(loader: Any) -> str:
    """Return what decodes files for a loader that fuses, in words."""
    from .images import chosen

    name, library = chosen(loader.decoder)
    return f"{name}: {library}"


def plan_of(loader: Any) -> Plan | None:
    """Return the plan of a loader's dataset; None for one that does not ask for it, or loads no single samples."""
    if not loader.fuse or isinstance(loader.dataset, IterableDataset) or not loader._auto_collation:
        return None
    from .fusion import recognise

    named = {name: maker.name for name, maker in _makers(loader).items()}
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

    return FusedDataset(loader.dataset, plan, seed, **_makers(loader))


def _makers(loader: Any) -> dict[str, Any]:
    """Return what makes rows of files, and blocks of arrays where that is not torch, by the argument's name."""
    from .fusion.native_makers import NativeBlocks
    from .images import make_decoder

    made: dict[str, Any] = {"rows": make_decoder(loader.decoder)}
    if native.available("arrays"):
        made["blocks"] = NativeBlocks()
    return made


__all__ = ["check_can_fuse", "decoder_of", "fused_of", "plan_of"]
