"""What lies under slots: the contract of a memory file, and of memory of one process."""

from __future__ import annotations

from typing import Any, Protocol


class Memory(Protocol):
    """The bytes under the slots."""

    def buffer(self, slot: int, num_bytes: int) -> Any:
        """Return a writable object of at least ``num_bytes`` over a slot; the same one while it is long enough."""

    def discard(self, slot: int) -> None:
        """Give the slot's pages back to the system."""

    def forget(self, slot: int) -> None:
        """Let go of the slot's buffer, but leave its bytes to others who may see them."""

    def close(self) -> None:
        """Let go of everything. What the user holds stays valid."""
