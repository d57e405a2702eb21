"""What ``on_error=`` makes of a loader: which samples may stand in for one that cannot be loaded.

In: a loader. Out: what its workers do with such a sample; or why the argument cannot be met.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import (
    BatchSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data import DistributedSampler as TorchDistributedSampler

from .errors import ConfigError
from .failures import Tolerance
from .order import Weighted
from .passes import known_batches, known_rows, without_skipping
from .sampling import as_integer


def check_on_error(loader: Any) -> None:
    """Check that a loader can do with failed samples what it is asked to.

    Raises:
        ConfigError: it cannot.
    """
    if loader.on_error not in ("raise", "skip", "replace"):
        raise ConfigError(f"on_error must be 'raise', 'skip' or 'replace', got on_error={loader.on_error!r}")
    limit = as_integer(loader.max_errors)
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        raise ConfigError(f"max_errors must be an integer of at least 0, got max_errors={loader.max_errors!r}")
    loader.max_errors = limit
    if loader.on_error == "raise":
        return
    name = f"on_error={loader.on_error!r}"
    if isinstance(loader.dataset, IterableDataset):
        raise ConfigError(
            f"{name} needs a dataset with indices, got {type(loader.dataset).__name__}, an IterableDataset; catch the "
            "error in its __iter__"
        )
    if not loader._auto_collation:
        raise ConfigError(f"{name} is of samples in batches, which batch_size=None leaves to the dataset; give a size")
    if loader.resident is not None:
        raise ConfigError(
            f"{name} is decided in each epoch, and resident={loader.resident!r} reads the samples once; leave one out"
        )
    if loader.on_error == "skip" and loader.fixed_buffers:
        raise ConfigError(
            f"{name} makes batches shorter, and fixed_buffers=True needs all of one shape; leave one out, or use "
            "on_error='replace'"
        )
    if loader.on_error == "replace":
        if loader.seeding == "torch":
            raise ConfigError(
                f"{name} chooses a substitute by the sample's key, and seeding='torch' has no keys; leave one out, or "
                "use on_error='skip'"
            )
        _candidates(loader)


def tolerance_of(loader: Any, seed: int) -> Tolerance | None:
    """Return what a loader's workers do with samples that fail; None: their errors are raised.

    Args:
        loader: the loader.
        seed: of the samples' keys.

    Raises:
        ConfigError: its sampler is not known any more.
    """
    if loader.on_error == "raise":
        return None
    return Tolerance(candidates=_candidates(loader) if loader.on_error == "replace" else None, seed=seed)


def _candidates(loader: Any) -> Sequence[Any] | npt.NDArray[np.int64]:
    """Return the indices that a loader's sampler gives in some epoch or other, so that none leaks from another split.

    Raises:
        ConfigError: they are not known.
    """
    known = known_batches(loader)
    batches, _ = without_skipping(loader.batch_sampler)
    while (type(batches).__module__, type(batches).__name__) == ("accelerate.data_loader", "BatchSamplerShard"):
        batches = batches.batch_sampler
    sampler: Any = batches.sampler if type(batches) is BatchSampler else batches
    rows = known_rows(sampler) if known is None else known.rows
    if rows is not None:
        return rows.order.possible() if isinstance(rows.order, Weighted) else range(rows.order.length)
    kind = type(sampler)
    if kind in (list, tuple, range, np.ndarray) and sampler is not batches:
        integers = _integers(sampler)
        return sampler if integers is None else integers
    if kind is WeightedRandomSampler:
        return np.flatnonzero(np.asarray(sampler.weights)).astype(np.int64)
    if kind in (RandomSampler, SequentialSampler) or (kind.__module__, kind.__name__) == (
        "accelerate.data_loader",
        "SeedableRandomSampler",
    ):
        return range(len(sampler.data_source))
    if kind is TorchDistributedSampler:
        return range(len(sampler.dataset))
    # As SubsetRandomSampler has them, and as other samplers can say what they choose from.
    indices = getattr(sampler, "indices", None)
    integers = None if indices is None else _integers(indices)
    if integers is not None:
        return integers
    what = "its indices are no integers" if kind is SubsetRandomSampler else "which indices it gives is not known"
    raise ConfigError(
        "on_error='replace' takes substitutes from the indices that the sampler gives, so that none comes from "
        f"another split, and of this {kind.__name__} {what}; give it an attribute indices (a list of integers), or "
        "choose the samples by a torch.utils.data.Subset and leave the order to the loader, or use on_error='skip'"
    )


def _integers(indices: Any) -> Sequence[int] | npt.NDArray[np.int64] | None:
    """Return indices that are integers, a copy; None if they are something else."""
    if isinstance(indices, range):
        return indices
    try:
        values = np.array(indices)
    except (TypeError, ValueError):  # lists of different lengths, say
        return None
    if values.ndim != 1 or (values.dtype.kind not in "iu" and len(values)):
        return None
    return values.astype(np.int64, copy=False)


__all__ = ["check_on_error", "tolerance_of"]
