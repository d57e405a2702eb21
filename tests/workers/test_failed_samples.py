"""What stands in for samples that fail, and what is kept of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, Subset

from fastload import DatasetError
from fastload.workers.on_error import (
    ATTEMPTS,
    ErrorPolicy,
    FailedSample,
    FailureLog,
    failure_of,
    file_of,
    name_sample,
)

SEEDS = st.integers(-(2**127), 2**127 - 1)
IDS = st.integers(0, 2**70)


def failure(index: Any = 3, substitute: Any = None, file: str | None = None) -> FailedSample:
    return FailedSample(index=index, file=file, error="OSError", message="broken", substitute=substitute)


class Files:
    """As ImageFolder has them."""

    def __init__(self, name: str, length: int) -> None:
        self.samples = [(f"{name}/{index}.jpg", 0) for index in range(length)]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


@given(seed=SEEDS, epoch=st.integers(0, 1000), sample_id=IDS, length=st.integers(1, 30), data=st.data())
def test_substitutes_are_other_indices_each_once_and_a_function_of_the_key(seed, epoch, sample_id, length, data):
    index = data.draw(st.integers(0, length - 1))
    error_policy = ErrorPolicy(candidates=range(length), seed=seed)
    found = list(error_policy.substitutes(index, epoch, sample_id))
    assert found == list(error_policy.substitutes(index, epoch, sample_id))
    assert len(set(found)) == len(found) <= ATTEMPTS
    assert set(found) <= set(range(length)) - {index}
    assert (length == 1) == (found == [])
    array = ErrorPolicy(candidates=np.arange(length), seed=seed)
    assert [(type(one), one) for one in array.substitutes(index, epoch, sample_id)] == [(int, one) for one in found]


def test_substitutes_are_pinned():
    """Else a resumed run would go on with others."""
    error_policy = ErrorPolicy(candidates=range(1000), seed=1)
    assert list(error_policy.substitutes(5, 2, 5)) == [993, 815, 608, 764, 90, 702, 275, 280]


def test_nothing_stands_in_where_samples_are_left_out_or_there_is_no_other():
    assert list(ErrorPolicy(candidates=None, seed=0).substitutes(0, 0, 0)) == []
    assert list(ErrorPolicy(candidates=[], seed=0).substitutes(0, 0, 0)) == []


@given(limit=st.integers(0, 5), sizes=st.lists(st.lists(st.integers(0, 4), max_size=6), max_size=4))
def test_a_log_raises_at_each_batch_with_failures_above_the_limit_and_begins_anew_in_each_epoch(limit, sizes):
    log = FailureLog()
    for epoch, batches in enumerate(sizes):
        begun = log.begin(epoch, limit)
        so_far = 0
        for size in batches:
            so_far += size
            failures = [failure(index) for index in range(size)]
            if size and so_far > limit:
                with pytest.raises(DatasetError, match=rf"{so_far} samples of epoch {epoch} .*max_errors={limit}"):
                    begun.note(failures)
            else:
                begun.note(failures)
    assert log.total == sum(map(sum, sizes))
    assert len(log.recent) <= max(1, limit)


def test_a_log_keeps_the_last_and_its_error_lists_the_first():
    log = FailureLog()
    begun = log.begin(4, 7)
    for index in range(7):
        begun.note([failure(index, file=f"{index}.jpg")])
    with pytest.raises(DatasetError) as error:
        begun.note([failure(7, substitute=9, file="7.jpg")])
    assert [line.strip() for line in str(error.value).splitlines()[1:]] == [
        f"index {index}, {index}.jpg (OSError: broken): left out" for index in range(5)
    ]
    assert [failed.index for failed in log.recent] == [1, 2, 3, 4, 5, 6, 7]
    assert log.recent[-1] == FailedSample(
        epoch=4, index=7, file="7.jpg", error="OSError", message="broken", substitute=9
    )
    assert str(log.recent[-1]) == "index 7, 7.jpg (OSError: broken): replaced by 9"


def test_files_are_found_through_subsets_and_concatenations():
    both: Any = ConcatDataset([Files("a", 3), Subset(Files("b", 5), [4, 2])])
    assert [file_of(both, index) for index in range(5)] == ["a/0.jpg", "a/1.jpg", "a/2.jpg", "b/4.jpg", "b/2.jpg"]
    assert file_of(both, -1) == "b/2.jpg"
    assert file_of(Subset(both, [3]), 0) == "b/4.jpg"


def test_a_path_object_is_a_file_and_anything_else_is_none():
    class Images:
        imgs = [(Path("x.png"), 1)]

    class Broken:
        @property
        def samples(self) -> Any:
            raise RuntimeError("not today")

    class Numbers:
        samples = [(1, 2), "text"]

    assert file_of(Images(), 0) == "x.png"
    assert file_of(Images(), 1) is None
    assert file_of(Broken(), 0) is None
    assert [file_of(Numbers(), index) for index in range(2)] == [None, None]
    assert file_of([1, 2], 0) is None


def test_an_error_is_named_once_however_often_it_is_raised():
    error = ValueError("bad")
    for _ in range(2):
        name_sample(error, Files("a", 3), np.int64(1))
    assert error.__notes__ == ["at index 1 of the dataset: a/1.jpg"]


def test_any_limit_is_taken():
    log = FailureLog()
    log.begin(0, 10**30).note([failure(index) for index in range(3)])
    assert [failed.index for failed in log.recent] == [0, 1, 2]


def test_a_failure_keeps_the_first_line_of_what_can_be_said():
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert failure_of(ValueError("one\ntwo"), 2, [], np.int64(5), None) == FailedSample(
        row=2, index=5, file=None, error="ValueError", message="one", substitute=None
    )
    assert failure_of(ValueError("\n one\ntwo"), 0, [], 0, None).message == "one"
    assert failure_of(ValueError(), 0, [], "key", "other").message == ""
    silent = failure_of(Silent(), 0, [], 0, 1)
    assert (silent.error.rsplit(".", 1)[-1], silent.message) == ("Silent", "str() of it raised RuntimeError")
    assert len(failure_of(ValueError("x" * 999), 0, [], 0, None).message) == 200
