"""A line on the terminal while the cache fills, in the first epoch of long ones.

In: the cache's records, and how many files the dataset may have. Out: a bar on standard error, in rank 0 alone, which
gives way to any other bar: of tqdm, or of rich. It has no thread: it is drawn where the loop asks for a batch.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from ..base.at_exit import close_at_exit
from ..base.memory import in_words
from ..base.terminal_bar import TerminalBar

if TYPE_CHECKING:
    from ..cache.records import Records

_EVERY_S = 0.5
_AFTER_S = 3.0
"""Of filling, the line appears: shorter epochs have none."""


def filling_of(records: Records | None, dataset: Any) -> Filling | None:
    """Return what shows a cache that is being filled; None where nothing is to be shown."""
    if records is None or not sys.stderr.isatty() or _rank() != 0:
        return None
    try:
        return Filling(records, len(dataset))
    except Exception:  # a stream, or whatever the user's raises
        return None


class Filling:
    """See the module. Dropping it removes the line. ``total``: samples of the dataset, each with a file."""

    def __init__(self, records: Records, total: int) -> None:
        self._bar: TerminalBar | None = None
        self._store = records.store
        self._total = total
        self._entries = self._store.contents().entries
        self._since = self._next = time.monotonic() + _EVERY_S

    def look(self) -> None:
        """Draw the line, if it is time to; called with each batch."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _EVERY_S
        contents = self._store.contents()
        if contents.entries == self._entries or contents.is_full or self._has_company():
            self.end()
            self._since = now
            return
        self._entries = contents.entries
        if self._bar is None and now - self._since >= _AFTER_S:
            self._bar = TerminalBar(by_hand=True)
            close_at_exit(self)
            self._bar.__enter__()
            self._bar.begin(self._total)
        if self._bar is not None:
            taken, size = in_words(contents.taken_bytes), in_words(self._store.size)
            self._bar.describe(f"fastload: filling the cache, {contents.entries:,} files, {taken} of {size}")
            self._bar.reach(min(contents.entries, self._total))

    def _has_company(self) -> bool:
        return TerminalBar.num_shown > (self._bar is not None) or _shows_another_bar()

    def end(self) -> None:
        """Remove the line, if it is there."""
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.__exit__()

    def close(self, grace: float) -> None:
        """Do what :meth:`end` does."""
        self.end()

    def __del__(self) -> None:
        self.end()


def _rank() -> int:
    """Return this process's rank, by torchrun's variable, or by the group of one that was started in another way."""
    said = os.environ.get("RANK", "")
    if said.isdecimal():
        return int(said)
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def _shows_another_bar() -> bool:
    """Return whether a bar of another library is on the terminal: two of them make it unreadable."""
    tqdm, rich = sys.modules.get("tqdm"), sys.modules.get("rich")
    if tqdm is not None and len(getattr(getattr(tqdm, "tqdm", None), "_instances", ())):
        return True
    console = getattr(rich, "_console", None)
    return bool(getattr(console, "_live_stack", None) or getattr(console, "_live", None))
