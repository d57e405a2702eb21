"""The random streams of torch's workers, which samples draw from where they have no keys."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset
from torch.utils.data._utils.worker import _generate_state


def torch_worker_streams(base_seed: int, worker_id: int) -> None:
    """Seed the global generators of a worker process as torch does: ``base_seed + worker_id``."""
    seed, for_numpy = torch_worker_seeds(base_seed, worker_id)
    random.seed(seed)
    torch.manual_seed(seed)
    np.random.seed(for_numpy)


def torch_worker_seeds(base_seed: int, worker_id: int) -> tuple[int, list[int]]:
    """Return torch's seeds for a worker: one for ``random`` and torch, and one for NumPy."""
    return base_seed + worker_id, _generate_state(base_seed, worker_id)


def fresh_base_seed(seed: int, *place: int) -> int:
    """Return a base seed of 63 bits for the rest of an epoch, which depends on where it goes on.

    Workers that began anew with the epoch's own base seed would draw again what the epoch has drawn before.
    """
    digest = hashlib.blake2b(repr((seed, *place)).encode(), digest_size=8, person=b"fastload.v1")
    return int.from_bytes(digest.digest(), "little") >> 1


def draws_nothing(dataset: Any) -> bool:
    """Return whether indexing a dataset of exactly this type is known to draw nothing, so that none is to be seeded."""
    kind = type(dataset)
    if (kind.__module__, kind.__name__) == ("datasets.arrow_dataset", "Dataset"):  # without a transform of the user's
        return getattr(dataset, "_format_type", "") in (None, "python", "numpy", "torch")
    if kind in (TensorDataset, list, tuple, range, str, bytes, np.ndarray, torch.Tensor):
        return True
    if kind is Subset:
        return draws_nothing(dataset.dataset)
    joins = kind in (ConcatDataset, StackDataset) or hasattr(kind, "fastload_order")  # a Mixture is a ConcatDataset
    parts: Any = getattr(dataset, "datasets", ()) if joins else ()
    return bool(parts) and all(map(draws_nothing, parts.values() if isinstance(parts, dict) else parts))
