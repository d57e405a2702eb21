"""The random draws of a batch's transforms: the same for a sample in any batch, on any rank and from any worker."""

from __future__ import annotations

import numpy as np

from ..keys.seeding import ALL_EPOCHS, BATCH, Keys
from ..sampling.epochs import repeats_from
from ..transforms.draws import Draws
from ..work import Batch, Shard


class BatchKeys:
    """Makes the draws of an epoch's batches.

    ``ids_are_indices``: an index names a sample; else its position does. ``auto_collation``: an index batch names
    several samples.
    """

    def __init__(self, seed: int, shard: Shard, *, ids_are_indices: bool, auto_collation: bool) -> None:
        self._seed = seed
        self._auto_collation = auto_collation
        self._ids_are_indices = ids_are_indices
        self._stride = shard.stride
        self._length = repeats_from(shard)
        self._key: tuple[int, bytes] | None = None
        self._of_all_epochs = Keys(self._seed, 0, ALL_EPOCHS).key(0)

    def _of_epoch(self, epoch: int) -> tuple[bytes, tuple[int, bytes]]:
        """Return the key of an epoch's draws, and the epoch with the key that all epochs share."""
        if self._key is None or self._key[0] != epoch:
            self._key = epoch, Keys(self._seed, epoch, BATCH).key(0)
        return self._key[1], (epoch, self._of_all_epochs)

    def draws(self, batch: Batch) -> Draws:
        """Return the draws of a batch."""
        indices, (key, of_all) = batch.indices, self._of_epoch(batch.epoch)
        # Without auto-collation an index stands for a batch, which has one position.
        count = len(indices) if self._auto_collation and hasattr(indices, "__len__") else 1
        places = np.arange(count, dtype=np.int64)
        if batch.left_out:
            places = np.delete(places, batch.left_out)
        positions = batch.position + self._stride * places
        if not self._ids_are_indices or indices is None:
            return Draws(key, positions)
        ids = np.asarray(indices, dtype=np.int64).reshape(-1)
        repeats = positions // self._length if self._length else None
        return Draws(key, ids[places] if batch.left_out else ids, repeats, epochs=of_all)
