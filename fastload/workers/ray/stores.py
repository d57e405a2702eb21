"""How much results may take in Ray's object stores: one for each machine, whoever puts something there.

In: the size of a store. Out: shares of it, and whether a share may take more. All loaders of this process have shares
of the same stores, and other ranks a part of their own. No Ray.

NOTE [Stores]
A result is made in the store of its worker's machine, and copied to that of the loader's. What does not fit, Ray writes
to disk. So results take a part of a store only; the rest is for their copies on the way, and for what else is there.
Whoever has nothing there may always take one result: nobody waits for others, and a result that is larger than the part
comes alone.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import ClassVar

from ...base.memory import in_words

# Of a store, for all results.
_PART = 0.4


class Share:
    """What one loader's results take in a store, which others share."""

    def __init__(self, store: Store) -> None:
        self.num_bytes = 0
        self._store = store

    def has_room(self, num_bytes: float) -> bool:
        """Return whether a result of so many bytes may be made now."""
        if not self.num_bytes:
            return True
        taken, limit = self._store.taken, self._store.limit
        return taken < limit and taken + num_bytes <= limit


class Store:
    """See the module. Any thread may call anything. ``limit``: bytes for all shares; infinite: not known."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._shares: weakref.WeakSet[Share] = weakref.WeakSet()

    @property
    def taken(self) -> int:
        """Bytes that all shares take."""
        with self._lock:
            return sum(share.num_bytes for share in self._shares)

    def share(self) -> Share:
        """Return another share; it is given back when it is dropped."""
        share = Share(self)
        with self._lock:
            self._shares.add(share)
        return share


class Shares:
    """One loader's, of the stores of all machines where it has workers, with the size of the home's, in bytes, or 0."""

    _stores: ClassVar[dict[str, Store]] = {}
    """Of this process, by machine."""
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, home: str, size: int) -> None:
        self.sizes: dict[str, int] = {}
        """Of whole stores, by machine, in bytes; 0: not known."""
        self._shares: dict[str, Share] = {}
        self._home = home
        self.home = self.of(home, size)
        self._is_told = False

    def of(self, machine: str, size: int) -> Share:
        """Return the share of a machine's store, of which ``size`` is known."""
        if machine not in self._shares:
            self.sizes[machine] = size
            # The ranks of this machine use its store, and all ranks those of other machines.
            num_ranks = _number_in("LOCAL_WORLD_SIZE" if machine == self._home else "WORLD_SIZE")
            with self._lock:
                store = self._stores.setdefault(machine, Store(float("inf")))
                store.limit = _PART * size / num_ranks if size else float("inf")
            self._shares[machine] = store.share()
        return self._shares[machine]

    def too_large(self, worker: object, machine: str, num_samples: int, num_bytes: int) -> str | None:
        """Return what to tell the user of a result that does not fit into a store, once; None: nothing."""
        size = min(self.sizes.get(one) or float("inf") for one in (self._home, machine))
        if self._is_told or num_bytes <= size:
            return None
        self._is_told = True
        return (
            f"{worker} has made a result of {in_words(num_bytes)} from {num_samples} samples, and an object "
            f"store of Ray on its way has {in_words(size)}: Ray writes it to disk, which is slow. The batches stay the "
            "same. Give a smaller chunk_size (or batch_size), or start Ray with a larger store (ray start "
            "--object-store-memory=BYTES)"
        )

    def give_back(self) -> None:
        """Let others have all of it: no result is under way any more."""
        for share in self._shares.values():
            share.num_bytes = 0


def _number_in(variable: str) -> int:
    """Return a number of ranks, as torchrun and Ray Train set it; 1 without it."""
    number = os.environ.get(variable, "")
    return max(1, int(number)) if number.isdecimal() else 1
