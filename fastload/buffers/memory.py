"""What lies under slots: the contract of a memory file, and of memory of one process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .page_lock import PageLock


class Memory(Protocol):
    """The bytes under the slots."""

    page_lock: PageLock | None
    """Locks what is lent, where a device is to copy from it."""
    is_open: bool
    """Whether slots can be used; not after :meth:`close`, nor where a collection of cycles was here first."""

    def buffer(self, slot: int, num_bytes: int) -> Any:
        """Return a writable object of at least ``num_bytes`` over a slot; the same one while it is long enough."""

    def discard(self, slot: int) -> None:
        """Give the slot's pages back to the system."""

    def forget(self, slot: int) -> None:
        """Let go of the slot's buffer, but leave its bytes to others who may see them."""

    def clear(self, slots: Iterable[int]) -> None:
        """Give back what ended workers have left beside the batches: of the pool's own, and in slots in flight."""
        return

    def close(self) -> None:
        """Let go of everything. What the user holds stays valid."""
