"""Lengths come from Arrow's offsets, from one pass over the dataset, or from a file."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fastload
from fastload.errors import DatasetError

datasets = pytest.importorskip("datasets")
LENGTHS = [3, 0, 7, 1, 12]


def table(**more: Any) -> Any:
    return datasets.Dataset.from_dict({"input_ids": [[0] * length for length in LENGTHS], **more})


def forbidden(*_: Any, **__: Any) -> Any:
    raise AssertionError("a row is read")


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [4, 2, 2, 0], [1]])
def test_the_lengths_of_a_table_are_those_of_its_rows_and_none_is_read(monkeypatch, order):
    some = table() if order == [0, 1, 2, 3, 4] else table().select(order)
    both = datasets.concatenate_datasets([some, table()]).with_format("torch")
    monkeypatch.setattr(datasets.Dataset, "__getitem__", forbidden)
    found = fastload.token_lengths(both)
    assert (found.dtype, found.tolist()) == (np.int32, [LENGTHS[row] for row in order] + LENGTHS)


@pytest.mark.parametrize(
    "make",
    [
        lambda: table(input_ids=[[0] * length if length else None for length in LENGTHS]).select([0, 2, 3, 4]),
        lambda: table(input_ids=["x" * length for length in LENGTHS]).select([0, 2, 3, 4]),
        lambda: (
            table()
            .select([0, 2, 3, 4])
            .with_transform(lambda batch: {"input_ids": [[*one, 1] for one in batch["input_ids"]]})
        ),
        lambda: (
            table().select([0, 2, 3, 4]).with_transform(lambda batch: {"input_ids": [[1]] * len(batch["input_ids"])})
        ),
    ],
)
def test_other_tables_are_called(make):
    dataset = make()
    assert fastload.token_lengths(dataset, num_workers=0).tolist() == [len(row["input_ids"]) for row in dataset]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_any_dataset_is_called_once_and_a_file_keeps_the_lengths(tmp_path, num_workers):
    rows = [{"ids": [1] * length} for length in LENGTHS]
    file = tmp_path / "lengths.npy"
    assert fastload.token_lengths(rows, "ids", cache=file, num_workers=num_workers).tolist() == LENGTHS
    kept = fastload.token_lengths([None] * 5, "ids", cache=file)
    assert kept.tolist() == LENGTHS
    assert list(tmp_path.iterdir()) == [file]
    assert len(fastload.PackedBatchSampler(range(4), 12, kept[[0, 2, 3, 4]], packs_per_step=1)) == 2
    with pytest.raises(
        DatasetError, match=r"has lengths of shape \(5,\) and int32, and the dataset 2 samples: delete the file"
    ):
        fastload.token_lengths(rows[:2], "ids", cache=file)


@pytest.mark.parametrize(
    ("dataset", "message"),
    [(table(), "no column 'ids', only input_ids"), ([{"input_ids": [1]}], "sample 0 has no 'ids' with a length")],
)
def test_a_wrong_column_is_an_error(dataset, message):
    with pytest.raises(DatasetError, match=message):
        fastload.token_lengths(dataset, "ids", num_workers=0)


def test_a_stream_has_no_lengths():
    with pytest.raises(TypeError, match=r"'IterableDataset' has no len\(\)"):
        fastload.token_lengths(table().to_iterable_dataset(), num_workers=0)
