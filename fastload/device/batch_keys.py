"""The random draws of a batch's transforms.

In: the origin of a batch. Out: :class:`~fastload.transforms.draws.Draws`, which are the same for a sample in any batch,
on any rank and from any worker. Pure.
"""

from __future__ import annotations

import numpy as np

from ..keys.seeding import ALL_EPOCHS, BATCH, Keys
from ..sampling.epochs import repeats_from
from ..spec import Spec
from ..transforms.draws import Draws
from ..work import Batch, Shard


class BatchKeys:
    """Makes the draws of batches.

    Args:
        seed: the loader's, or its base seed.
        ids_are_indices: the id of a sample is its index in the dataset; otherwise its position.
        stride: distance between the positions of two samples of a batch.
        length: positions from this one on are repeats; 0: there are no repeats.
        auto_collation: a batch has one index for each sample; otherwise one for the batch.
    """

    def __init__(
        self, *, seed: int, ids_are_indices: bool, stride: int, length: int, auto_collation: bool = True
    ) -> None:
        self._auto_collation = auto_collation
        self._seed = seed
        self._ids_are_indices = ids_are_indices
        self._stride = stride
        self._length = length
        self._key: tuple[int, bytes] | None = None
        self._of_all_epochs = Keys(seed, 0, ALL_EPOCHS).key(0)

    def draws(self, batch: Batch) -> Draws:
        """Return the draws of a batch."""
        if self._key is None or self._key[0] != batch.epoch:
            self._key = batch.epoch, Keys(self._seed, batch.epoch, BATCH).key(0)
        indices, key = batch.indices, self._key[1]
        named = self._ids_are_indices and indices is not None
        epochs = (batch.epoch, self._of_all_epochs) if named else None
        ids = np.asarray(indices, dtype=np.int64).reshape(-1) if named else None
        if ids is not None and not self._length and not batch.left_out:
            return Draws(key, ids, epochs=epochs)
        # Without auto-collation an index stands for a batch, which has one position.
        count = len(indices) if self._auto_collation and hasattr(indices, "__len__") else 1
        places = np.arange(count, dtype=np.int64)
        if batch.left_out:
            places = np.delete(places, batch.left_out)
        positions = batch.position + self._stride * places
        if ids is None:
            return Draws(key, positions)
        repeats = positions // self._length if self._length else None
        return Draws(key, ids[places] if batch.left_out else ids, repeats, epochs=epochs)


def batch_keys(spec: Spec, shard: Shard, base_seed: int) -> BatchKeys:
    """Return what names the samples of an epoch's batches for the batched transforms."""
    return BatchKeys(
        seed=base_seed if spec.sample_seed is None else spec.sample_seed,
        auto_collation=spec.auto_collation,
        ids_are_indices=spec.ids_are_indices,
        stride=shard.stride,
        length=repeats_from(shard),
    )
