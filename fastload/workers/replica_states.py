"""When the state of an IterableDataset is taken, so that nobody pays for it who does not ask.

A state that costs less than 1 % of a batch's time, or 0.2 ms, is taken with each batch; the others as seldom as keeps
them below 1 %. The cost is what ``state_dict`` and pickling take, and an estimate of what the bytes cost on their way
to the user's process. A state of more than 64 KiB is only taken once the loader's ``state_dict`` or ``load_state_dict``
was called.
"""

from __future__ import annotations

import io
import pickle
import time
from typing import Any

from ..buffers.slots import MAX_CHUNK_BYTES
from ..errors import one_line

_SHARE = 0.01
_FLOOR_NS = 200_000
_BYTE_NS = 1.0
"""Cost of a byte from worker to user, in nanoseconds."""
_SMALL = 1 << 16
"""Bytes of a state that is taken though nobody has asked for one."""


def is_stateful(owner: Any) -> bool:
    """Return whether an object has ``state_dict`` and ``load_state_dict``.

    Raises:
        Exception: what its lookup of attributes raises.
    """
    return all(callable(getattr(owner, name, None)) for name in ("state_dict", "load_state_dict"))


class Snapshots:
    """Decides for one replica when its state is taken."""

    def __init__(self) -> None:
        self.wanted = False
        """True if large states are wanted too."""
        self.problem: str | None = None
        """Why there was none when it was tried last; None: there was, or the dataset has none."""
        self._owners: tuple[Any, ...] = ()
        self._cost_ns = self._saved_ns = 0

    def begin(self, *owners: Any) -> None:
        """Take the state of the first of these that has one: an epoch's iterator, or the dataset."""
        self._owners = owners

    def taken(self, busy_ns: int) -> bytes | None:
        """Return the state, pickled; None: it is not taken now, or says nothing.

        Args:
            busy_ns: what the last batch took, in nanoseconds.
        """
        share_ns = int(busy_ns * _SHARE)
        self._saved_ns += share_ns if self._cost_ns > _FLOOR_NS else max(_FLOOR_NS, share_ns)
        if not self._owners or self._saved_ns < self._cost_ns:
            return None
        begun, file = time.perf_counter_ns(), _Limited(MAX_CHUNK_BYTES if self.wanted else _SMALL)
        self.problem = self._write(file)
        self._cost_ns, self._saved_ns = time.perf_counter_ns() - begun + int(file.tell() * _BYTE_NS), 0
        return None if self.problem is not None or file.is_full else file.getvalue() or None

    def _write(self, file: _Limited) -> str | None:
        """Write the state to a file, but for None; return why there is none."""
        for owner in self._owners:
            try:
                if not is_stateful(owner):
                    continue
                self._owners = (owner,)
                state = owner.state_dict()
                if state is not None:
                    # Not as batches are: by value, and what views share stays shared.
                    pickle.Pickler(file, 5).dump(state)
                return None
            except Exception as error:
                if file.is_full and not self.wanted:
                    return None
                return f"{type(owner).__name__}.state_dict fails ({one_line(error)})"
        self._owners = ()
        return None


class _Limited(io.BytesIO):
    """A file of at most so many bytes."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self.is_full = False

    def write(self, piece: Any) -> int:
        self.is_full |= self.tell() + memoryview(piece).nbytes > self._most
        if self.is_full:
            raise ValueError(f"it takes more than {self._most} bytes")
        return super().write(piece)
