"""The lengths of a dataset's samples in tokens."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from ..base.terminal_bar import TerminalBar
from ..errors import DatasetError
from ..loader import DataLoader

Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.int32]]


def token_lengths(
    dataset: Any,
    column: str = "input_ids",
    *,
    cache: str | os.PathLike[str] | None = None,
    num_workers: int | None = None,
) -> Numbers:
    """Return how many tokens each sample of a dataset has.

    A list column of a Hugging Face ``datasets.Dataset`` without a transform is not read: Arrow keeps where each row
    begins. Any other dataset is called once for each sample, in worker processes, with a progress bar on a terminal.

    Args:
        dataset: map-style.
        column: of the tokens: each sample is a mapping that has it.
        cache: a file to keep the lengths in (NumPy's format, ``.npy``), and to take them from the next time,
            memory-mapped. It knows how many samples there were, and nothing else of the dataset.
        num_workers: processes that call the dataset; None: one for each CPU core, at most 8.

    Returns:
        [number of samples], int32.

    Raises:
        DatasetError: a sample has no such column, or the file has the lengths of another number of samples.
        OSError: the file cannot be read or written.

    Examples:
        >>> import fastload
        >>> fastload.token_lengths([{"input_ids": [1, 2, 3]}, {"input_ids": [4]}], num_workers=0)
        array([3, 1], dtype=int32)
    """
    path = None if cache is None else Path(cache)
    if path is not None and path.exists():
        kept: Numbers = np.load(path, mmap_mode="r")
        if kept.shape != (len(dataset),) or kept.dtype != np.int32:
            raise DatasetError(
                f"{path} has lengths of shape {kept.shape} and {kept.dtype}, and the dataset {len(dataset)} samples: "
                "delete the file, or name another"
            )
        return kept
    found = _of_arrow(dataset, column)
    if found is None:
        found = _called(dataset, column, min(8, os.cpu_count() or 1) if num_workers is None else num_workers)
    if path is not None:
        part = path.with_name(f"{path.name}.{os.getpid()}")
        with open(part, "wb") as file:
            np.save(file, found)
        os.replace(part, path)  # no other process sees a part of it
    return found


def _of_arrow(dataset: Any, column: str) -> Numbers | None:
    """Return the lengths of the lists of a ``datasets.Dataset``; None: it has none, or transforms its samples."""
    if type(dataset).__module__ != "datasets.arrow_dataset" or dataset.format["type"] == "custom":
        return None
    if column not in dataset.column_names:
        raise DatasetError(f"the dataset has no column {column!r}, only {', '.join(dataset.column_names)}")
    import pyarrow
    import pyarrow.compute

    table = dataset.data.column(column)
    kind = table.type
    if not (pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind)) or table.null_count:
        return None
    lengths: Numbers = pyarrow.compute.list_value_length(table).to_numpy().astype(np.int32)
    rows = dataset._indices
    return lengths if rows is None else lengths[rows.column(0).to_numpy()]


class _Lengths(torch.utils.data.Dataset[int]):
    """The length of each sample."""

    def __init__(self, dataset: Any, column: str) -> None:
        self._dataset, self._column = dataset, column

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> int:
        sample = self._dataset[index]
        try:
            return len(sample[self._column])
        except (KeyError, IndexError, TypeError) as error:
            raise DatasetError(
                f"sample {index} has no {self._column!r} with a length ({type(error).__name__}: {error}); give column="
            ) from error


def _called(dataset: Any, column: str, num_workers: int) -> Numbers:
    loader: Any = DataLoader(_Lengths(dataset, column), batch_size=256, num_workers=num_workers)
    found = [np.empty(0, dtype=np.int32)]
    with TerminalBar() as bar:
        bar.begin(len(loader))
        bar.describe(f"reading the lengths of {len(dataset)} samples")
        for batch in loader:
            found.append(batch.numpy().astype(np.int32))
            bar.advance()
    loader.close()
    return np.concatenate(found)
