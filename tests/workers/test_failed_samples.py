"""What stands in for samples that fail, and what is kept of them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
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


@given(
    seed=st.integers(-(2**127), 2**127 - 1),
    epoch=st.integers(0, 1000),
    sample_id=st.integers(0, 2**70),
    length=st.integers(1, 30),
    data=st.data(),
)
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
    assert list(ErrorPolicy(candidates=[], seed=0).substitutes(0, 0, 0)) == []


def test_a_log_keeps_the_last_and_its_error_lists_the_first():
    log = FailureLog()
    log.begin(3, 10**30).note([failure(index) for index in range(3)])
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


class Broken:
    @property
    def samples(self) -> Any:
        raise RuntimeError("not today")


BOTH: Any = ConcatDataset([Files("a", 3), Subset(Files("b", 5), [4, 2])])


@pytest.mark.parametrize(
    ("dataset", "index", "file"),
    [
        *((BOTH, index, f"a/{index}.jpg") for index in range(3)),
        (BOTH, 3, "b/4.jpg"),
        (BOTH, -1, "b/2.jpg"),
        (Subset(BOTH, [3]), 0, "b/4.jpg"),
        (SimpleNamespace(imgs=[(Path("x.png"), 1)]), 0, "x.png"),
        (SimpleNamespace(imgs=[(Path("x.png"), 1)]), 1, None),
        (Broken(), 0, None),
        (SimpleNamespace(samples=[(1, 2), "text"]), 0, None),
        (SimpleNamespace(samples=[(1, 2), "text"]), 1, None),
        ([1, 2], 0, None),
    ],
)
def test_files_are_found_through_subsets_and_concatenations_and_anything_else_is_none(dataset, index, file):
    assert file_of(dataset, index) == file
    error = ValueError("bad")
    for _ in range(2):  # as one that is raised again
        name_sample(error, dataset, np.int64(index))
    assert error.__notes__ == [f"at index {index} of the dataset" + (f": {file}" if file else "")]


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
