"""Columns: what was put in comes out again by rows, wherever it lies, and nothing is converted in silence."""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.comparison import difference
from torch.utils.data import default_collate

from fastload import ConfigError
from fastload.device.columns import Columns, Placement, TooLarge, bytes_of, check_alike, rows_of, split

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
@given(length=st.integers(1, 12), data=st.data())
def test_a_gathered_batch_is_what_collation_makes_of_the_samples(length, data):
    samples = [nested(index) for index in range(length)]
    rows = data.draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=20))
    found = gathered(columns_of(samples, step=data.draw(st.integers(1, 5))), rows)
    assert difference(found, default_collate([samples[row] for row in rows])) is None


@settings(max_examples=30)
@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_a_batch_of_several_is_split_into_them(sizes):
    samples = [nested(index) for index in range(sum(sizes))]
    parts = list(split(default_collate(samples), sizes))
    start = 0
    for size, part in zip(sizes, parts, strict=True):
        assert difference(part, default_collate(samples[start : start + size])) is None
        start += size


def test_the_tensors_of_a_dataset_are_not_copied_where_they_lie_right():
    images, labels = torch.rand(5, 2), torch.arange(5)
    columns = PLACE.columns([images[:1], labels[:1]], 5, 0, [images, labels])
    assert columns.tensors()[0] is images
    assert columns.num_bytes == 5 * 2 * 4 + 5 * 8
    assert difference(gathered(columns, [3]), [images[3:4], torch.tensor([3])]) is None


@pytest.mark.parametrize(
    "other",
    [torch.zeros(1, 4), torch.zeros(3, 4, dtype=torch.float64), torch.zeros(3, 1), "text"],
    ids=["shape", "dtype", "what would be broadcast", "text"],
)
def test_samples_that_are_not_like_the_first_are_refused(other):
    columns = PLACE.columns(default_collate([torch.zeros(3, 4)]), 4, 0)
    with pytest.raises(ConfigError, match=r"one shape and dtype, and samples 2 to 2"):
        columns.put(2, default_collate([other]))
    strings = PLACE.columns(default_collate(["a"]), 2, 0)
    with pytest.raises(ConfigError, match="one shape and dtype"):
        strings.put(0, torch.zeros(1))


def test_samples_of_other_things_are_refused_with_their_place():
    with pytest.raises(ConfigError, match=r"dense tensors or strings, but 'a.1' of a batch is of type object"):
        PLACE.columns({"a": [torch.zeros(1), object()]}, 3, 0)
    with pytest.raises(ConfigError, match=r"'0' of a batch is of type Tensor, torch.sparse_coo"):
        PLACE.columns([torch.zeros(1, 2).to_sparse()], 3, 0)


@pytest.mark.parametrize(
    ("given_", "rows"),
    [
        ([0, 2, -1], [0, 2, 4]),
        (torch.tensor([3, -5]), [3, 0]),
        ((4,), [4]),
        ([], []),
        ([torch.tensor(1)], [1]),
        (range(2), [0, 1]),
    ],
    ids=str,
)
def test_rows_are_found_as_a_sequence_finds_them(given_, rows):
    assert rows_of(given_, 5).tolist() == rows


@pytest.mark.parametrize("indices", [["a"], [0.5], [True], [[1, 2]], [(0, 1)]], ids=str)
def test_indices_that_are_no_integers_are_refused(indices):
    with pytest.raises(ConfigError, match="resident needs a sampler that gives integers"):
        rows_of(indices, 5)


@pytest.mark.parametrize("index", [5, -6, 10**12])
def test_indices_out_of_range_are_errors_as_of_a_sequence(index):
    with pytest.raises(IndexError, match=f"index {index} is out of range: the dataset has 5 samples"):
        rows_of([0, index], 5)


def test_a_dataset_without_room_is_too_large():
    with pytest.raises(TooLarge, match=r"7 samples take .* GiB, and .* are free on the host"):
        PLACE.check_room(1 << 60, 7)
    chosen = dataclasses.replace(PLACE, chosen=True)
    with pytest.raises(TooLarge, match="half of which may be used"):
        chosen.check_room(1 << 60, 7)
    chosen.check_room(1 << 20, 7)
    with pytest.raises(TooLarge, match="no room on the host"):
        PLACE.columns(torch.zeros(1, 1).expand(1, 1 << 40), 1 << 16, 0)


def test_ranks_of_a_machine_share_its_memory(monkeypatch):
    monkeypatch.setattr("fastload.device.columns.free_on", lambda device: 1000)
    PLACE.check_room(900, 1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with pytest.raises(TooLarge, match="250 bytes are free"):
        PLACE.check_room(900, 1)


def test_the_size_of_a_batch_counts_tensors_and_strings():
    assert bytes_of([torch.zeros(2, 3), torch.zeros(2, dtype=torch.uint8)]) == 26
    assert bytes_of(["a" * 1000]) > 1000


def test_samples_that_are_read_again_are_compared_bit_for_bit_but_for_nan():
    sample = {"x": torch.tensor([[1.0, float("nan")]]), "name": ["a"]}
    check_alike(sample, {"x": sample["x"].clone(), "name": ["a"]}, 0, drew=False)
    for other in ({"x": torch.zeros(1, 2), "name": ["a"]}, {**sample, "name": ["b"]}, {"x": sample["x"]}):
        with pytest.raises(ConfigError, match="sample 3 differed when it was read again"):
            check_alike(sample, other, 3, drew=False)
    with pytest.raises(ConfigError, match="draws random numbers for sample 3"):
        check_alike(sample, sample, 3, drew=True)
