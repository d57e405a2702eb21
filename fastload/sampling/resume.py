"""Start of an epoch after a state dict was loaded, as plain data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..errors import StateError


@dataclass(slots=True)
class Resume:
    """Start of the next epoch, from a state dict."""

    epoch: int
    base: int = 0
    """Positions that were given out before, for known batches."""
    batches: int = 0
    """Batches to skip, for those that are not known."""
    base_seed: int | None = None
    key_epoch: int = 0
    draws_base_seed: bool = False
    generators: dict[str, Any] = field(default_factory=dict)
    workers: dict[str, Any] | None = None
    """State of each replica of an IterableDataset: see ``Replicas`` in engine/resuming.py."""
    begin_anew: Callable[[StateError], None] | None = None
    """Called if the epoch turns out not to fit when it begins, which then begins anew; None: that is an error."""

    @property
    def at_start(self) -> bool:
        """True if nothing of the epoch was given yet."""
        return not (self.base or self.batches)
