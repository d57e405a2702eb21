"""Lines on the terminal while the cache fills, in the first epoch of long ones.

In: the cache's records. Out: now and then a line on standard error, in rank 0 alone, and none where a bar of tqdm or
rich is on the terminal. It is no bar of our own, since the program prints, too.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

import torch.distributed as dist

from ..base.memory import in_words

if TYPE_CHECKING:
    from ..cache.records import Records

_EVERY_S = 30.0
_FIRST_S = 5.0
"""Shorter epochs have none."""


def filling_of(records: Records) -> Filling | None:
    """Return what tells of a cache that is being filled; None where nothing is to be told."""
    return Filling(records) if sys.stderr is not None and sys.stderr.isatty() and _rank() == 0 else None


class Filling:
    """See the module and :func:`filling_of`."""

    def __init__(self, records: Records) -> None:
        self._store = records.store
        self._entries = self._store.contents().entries
        self._next = time.monotonic() + _FIRST_S

    def look(self) -> None:
        """Print a line, if it is time to; called with each batch."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _EVERY_S
        contents = self._store.contents()
        if contents.entries == self._entries or contents.is_full or _shows_a_bar():
            return
        self._entries = contents.entries
        taken = f"{in_words(contents.taken_bytes)} of {in_words(self._store.size)}"
        print(f"fastload: filling the cache: {contents.entries:,} files, {taken}", file=sys.stderr, flush=True)


def _rank() -> int:
    """Return this process's rank, by torchrun's variable, or by the group of one that was started in another way."""
    said = os.environ.get("RANK", "")
    if said.isdecimal():
        return int(said)
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def _shows_a_bar() -> bool:
    """Return whether a bar is on the terminal, that a line would break."""
    tqdm, rich = sys.modules.get("tqdm"), sys.modules.get("rich")
    if tqdm is not None and len(getattr(getattr(tqdm, "tqdm", None), "_instances", ())):
        return True
    console = getattr(rich, "_console", None)
    return bool(getattr(console, "_live_stack", None) or getattr(console, "_live", None))
