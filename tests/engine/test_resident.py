"""Columns: what was put in comes out again by rows, wherever it lies, and nothing is converted in silence."""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kit.comparison import difference
from torch.utils.data import default_collate

from fastload import ConfigError
from fastload.device.columns import Columns, Placement, TooLarge, check_alike, rows_of, split

PLACE = Placement(device=torch.device("cpu"))
Pair = namedtuple("Pair", ["image", "label"])


def nested(index: int) -> Any:
    image = torch.full((3, 2, 2), index, dtype=torch.uint8)
    return {"pair": Pair(image, index), "name": f"sample {index}", "rest": (float(index), b"raw", [image + 1])}


def columns_of(samples: list[Any], step: int) -> Columns:
    columns = PLACE.columns(default_collate(samples[:1]), len(samples), 0)
    start = 0
    while start < len(samples):
        start += columns.put(start, default_collate(samples[start : start + step]))
    return columns


def gathered(columns: Columns, rows: list[int]) -> Any:
    asked = torch.tensor(rows, dtype=torch.int64)
    return columns.batch(asked, columns.host_leaves(asked))


@settings(max_examples=50)
@given(length=st.integers(1, 12), step=st.integers(1, 5), data=st.data())
def test_gathered_batches_and_their_parts_are_what_collation_makes_of_the_samples(length, step, data):
    samples = [nested(index) for index in range(length)]
    batches = data.draw(st.lists(st.lists(st.integers(0, length - 1), min_size=1, max_size=5), min_size=1, max_size=4))
    found = gathered(columns_of(samples, step), [row for rows in batches for row in rows])
    parts = split(found, [len(rows) for rows in batches])
    for part, rows in zip(parts, batches, strict=True):
        assert difference(part, default_collate([samples[row] for row in rows])) is None


def test_the_tensors_of_a_dataset_are_not_copied_where_they_lie_right():
    images, labels = torch.rand(5, 2), torch.arange(5)
    columns = PLACE.columns([images[:1], labels[:1]], 5, 0, [images, labels])
    assert columns.tensors()[0] is images
    assert columns.num_bytes == 5 * 2 * 4 + 5 * 8
    assert difference(gathered(columns, [3]), [images[3:4], torch.tensor([3])]) is None


@given(indices=st.lists(st.integers(-5, 4)), kind=st.sampled_from([list, tuple, torch.tensor, iter]))
@example([3, -5], lambda indices: [torch.tensor(index) for index in indices])
def test_rows_are_found_as_a_sequence_finds_them(indices, kind):
    given_ = indices if kind is iter else kind(indices)
    assert rows_of(given_, 5).tolist() == [range(5)[index] for index in indices]


def put(first: Any, other: Any) -> None:
    PLACE.columns(default_collate([first]), 4, 0).put(2, default_collate([other]))


def compare(other: Any, drew: bool = False) -> None:
    sample = {"x": torch.tensor([[1.0, float("nan")]]), "name": ["a"]}
    check_alike(sample, {"x": sample["x"].clone(), "name": ["a"]} | other, 3, drew=drew)


ZEROS = torch.zeros(3, 4)
ALIKE = "one shape and dtype"
INTEGERS = "resident needs a sampler that gives integers"
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "shape": (lambda: put(ZEROS, torch.zeros(1, 4)), rf"{ALIKE}, and samples 2 to 2"),
    "dtype": (lambda: put(ZEROS, ZEROS.double()), ALIKE),
    "what would be broadcast": (lambda: put(ZEROS, torch.zeros(3, 1)), ALIKE),
    "text": (lambda: put(ZEROS, "text"), ALIKE),
    "no text": (lambda: put("a", torch.zeros(1)), ALIKE),
    "objects": (
        lambda: PLACE.columns({"a": [torch.zeros(1), object()]}, 3, 0),
        r"dense tensors or strings, but 'a.1' of a batch is of type object",
    ),
    "sparse": (
        lambda: PLACE.columns([torch.zeros(1, 2).to_sparse()], 3, 0),
        r"'0' of a batch is of type Tensor, torch.sparse_coo",
    ),
    **{
        f"index {index}": (lambda index=index: rows_of([index], 5), INTEGERS)
        for index in ("a", 0.5, True, [1, 2], (0, 1))
    },
    "no room": (lambda: PLACE.check_room(1 << 60, 7), r"7 samples take .* GiB, and .* are free on the host"),
    "no room in a half": (
        lambda: dataclasses.replace(PLACE, chosen=True).check_room(1 << 60, 7),
        "half of which may be used",
    ),
    "no memory": (
        lambda: PLACE.columns(torch.zeros(1, 1).expand(1, 1 << 40), 1 << 16, 0),
        "no room on the host",
    ),
    "another tensor": (lambda: compare({"x": torch.zeros(1, 2)}), "sample 3 differed when it was read again"),
    "another text": (lambda: compare({"name": ["b"]}), "sample 3 differed when it was read again"),
    "draws": (lambda: compare({}, drew=True), "draws random numbers for sample 3"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_put_or_found_is_refused_with_its_place(case):
    call, words = REFUSED[case]
    with pytest.raises(TooLarge if "no " in case and "text" not in case else ConfigError, match=words):
        call()


def test_equal_samples_and_nan_are_alike():
    compare({})


@pytest.mark.parametrize("index", [5, -6, 10**12])
def test_indices_out_of_range_are_errors_as_of_a_sequence(index):
    with pytest.raises(IndexError, match=f"index {index} is out of range: the dataset has 5 samples"):
        rows_of([0, index], 5)


def test_ranks_of_a_machine_share_its_memory(monkeypatch):
    monkeypatch.setattr("fastload.device.columns.free_on", lambda device: 1000)
    PLACE.check_room(900, 1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with pytest.raises(TooLarge, match="250 bytes are free"):
        PLACE.check_room(900, 1)
