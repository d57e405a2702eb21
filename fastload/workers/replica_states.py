"""When the state of an IterableDataset is taken, so that nobody pays for it who does not ask.

A state that costs less than 1 % of a batch's time, or 0.2 ms, is taken with each batch. The others, and those that
cannot be had or pickled, are tried three times and then left, until the loader's ``state_dict`` or ``load_state_dict``
is called for the first time; from then on they are taken as seldom as keeps them below 1 %. The cost is what
``state_dict`` and pickling take, and an estimate of what the bytes cost on their way to the user's process. While it is
not known, pickling ends where it exceeds what has been saved for it, and is tried again with twice as much.
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
"""What a byte costs from worker to user, in nanoseconds."""
_TRIALS = 3
_TRIAL_NS = 10_000_000
"""A trial that cost too much, but less than this, may have had to import something, or to wait for a core: its state is
good, and the next batch tells."""
_SMALL = 1 << 16
"""Bytes that a trial writes in any case."""


def is_stateful(owner: Any) -> bool:
    """Return whether an object has ``state_dict`` and ``load_state_dict``.

    Raises:
        TypeError: it answers to every name.
        Exception: what its lookup of attributes raises.
    """
    if not all(callable(getattr(owner, name, None)) for name in ("state_dict", "load_state_dict")):
        return False
    if not hasattr(type(owner), "state_dict") and _has(owner, "a_name_that_no_dataset_has"):
        raise TypeError("it answers to every name, so this need not be its state")
    return True


def _has(owner: Any, name: str) -> bool:
    try:
        return callable(getattr(owner, name, None))
    except Exception:  # a lookup that ends in KeyError, for instance
        return False


class Snapshots:
    """Decides for one replica when its state is taken."""

    def __init__(self) -> None:
        self.wanted = False
        """Whether states are wanted whatever they cost."""
        self.problem: str | None = None
        """Why there was none when it was tried last; None: there was, or the dataset has none."""
        self._owners: tuple[Any, ...] = ()
        self._num_failed = self._cost_ns = self._saved_ns = 0

    def begin(self, *owners: Any) -> None:
        """Take the state of the first of these that has one: an epoch's iterator, or the dataset."""
        self._owners = owners

    def taken(self, busy_ns: int) -> bytes | None:
        """Return the state, pickled; None: it is not taken now, or says nothing.

        Args:
            busy_ns: what the last batch took, in nanoseconds.
        """
        share_ns = int(busy_ns * _SHARE)
        allowed_ns = max(_FLOOR_NS, share_ns)
        self._saved_ns += allowed_ns if self._cost_ns <= _FLOOR_NS else share_ns
        if not self._owners or self._saved_ns < self._cost_ns or (self._num_failed >= _TRIALS and not self.wanted):
            return None
        budget_ns = 2 * self._saved_ns if self.wanted else allowed_ns
        file = _Limited(budget_ns, 0 if self.wanted else _SMALL)
        self.problem = self._write(file)
        cost_ns = file.cost_ns
        failed = self.problem is not None or file.is_full or (cost_ns > allowed_ns and not self.wanted)
        self._num_failed = self._num_failed + 1 if failed else 0
        if file.is_full and self.wanted:
            cost_ns = max(budget_ns, 2 * cost_ns)
        if self.wanted or self._num_failed != 1 or cost_ns > _TRIAL_NS:
            self._cost_ns = cost_ns
        self._saved_ns = 0
        has_state = self.problem is None and not file.is_full and (not failed or cost_ns <= _TRIAL_NS)
        return file.getvalue() or None if has_state else None

    def _write(self, file: _Limited) -> str | None:
        """Write the state to a file, but for None; return why there is none."""
        name, happened = "", ""
        try:
            for owner in self._owners:
                name, happened = f"{type(owner).__name__}.state_dict", "cannot be used"
                if is_stateful(owner):
                    break
            else:
                self._owners = ()
                return None
            self._owners = (owner,)
            happened = "was called without arguments and failed"
            state = owner.state_dict()
            happened = "returned what cannot be pickled"
            if state is not None:
                # Not as batches are: by value, and what views share stays shared.
                pickle.Pickler(file, 5).dump(state)
        except Exception as error:
            if not file.is_full:
                return f"{name} {happened} ({one_line(error)})"
        return None


class _Limited(io.BytesIO):
    """A file for a pickle that may cost so much, from now on, or have so many bytes."""

    def __init__(self, budget_ns: int, small: int) -> None:
        super().__init__()
        self._budget_ns, self._small, self._begun_ns = budget_ns, small, time.perf_counter_ns()
        self.is_full = False

    @property
    def cost_ns(self) -> int:
        return time.perf_counter_ns() - self._begun_ns + int(self.tell() * _BYTE_NS)

    def write(self, piece: Any) -> int:
        num_bytes = memoryview(piece).nbytes
        if self.tell() + num_bytes > MAX_CHUNK_BYTES:
            raise ValueError(f"it takes more than {MAX_CHUNK_BYTES} bytes")
        is_dear = self.cost_ns + num_bytes * _BYTE_NS > self._budget_ns
        self.is_full = is_dear and self.tell() + num_bytes > self._small
        if self.is_full:
            raise ValueError("it costs too much")
        return super().write(piece)
