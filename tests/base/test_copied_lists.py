"""Large lists of a dataset are found, named and measured; what costs workers nothing is not."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from torch.utils.data import ConcatDataset, Dataset, Subset

import fastload
from fastload.base.copied_lists import bytes_of, copied_lists

PATHS = [f"/data/train/{place:08d}.jpg" for place in range(20_000)]


@pytest.fixture(autouse=True)
def large_is_a_mebibyte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastload.base.copied_lists.LEAST_BYTES", 1 << 20)


class Paths(Dataset[Any]):
    """Holds something in an attribute."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


def test_the_size_of_strings_and_pairs_is_about_that_of_all_objects() -> None:
    assert bytes_of(PATHS) == pytest.approx(sys.getsizeof(PATHS) + sum(map(sys.getsizeof, PATHS)), rel=0.01)
    pairs = [(path, place + 1000) for place, path in enumerate(PATHS)]
    exact = sys.getsizeof(pairs) + sum(
        sys.getsizeof(pair) + sys.getsizeof(pair[0]) + sys.getsizeof(pair[1]) for pair in pairs
    )
    assert bytes_of(pairs) == pytest.approx(exact, rel=0.01)
    assert bytes_of([1] * 1000) == sys.getsizeof([1] * 1000), "one object many times"


def test_lists_are_named_through_datasets_that_hold_others() -> None:
    dataset = Paths(PATHS)
    dataset.zz = dataset.samples  # type: ignore[attr-defined]  # under two names, and found once
    [found] = copied_lists(dataset)
    assert found.startswith("dataset.samples, a list of 20,000, takes about 1.")
    assert "fastload.share(dataset.samples)" in found
    inner = Subset(ConcatDataset([Paths([]), Paths(PATHS)]), [0])
    [found] = copied_lists(inner)
    assert found.startswith("dataset.dataset.datasets[1].samples, a list")


@pytest.mark.parametrize("samples", [PATHS[:5000], np.array(PATHS), fastload.share(PATHS)])
def test_nothing_is_found_where_workers_copy_little(samples: Any) -> None:
    assert copied_lists(Paths(samples)) == []


def test_explain_names_the_list_for_worker_processes_alone() -> None:
    arguments: dict[str, Any] = {"num_workers": 2}
    assert "fastload.share(dataset.samples)" in fastload.DataLoader(Paths(PATHS), 8, **arguments).explain()
    for other in ({"num_workers": 0}, {"num_workers": 2, "worker_method": "thread"}):
        assert "fastload.share" not in fastload.DataLoader(Paths(PATHS), 8, **other).explain()
    assert "fastload.share" not in fastload.DataLoader(Paths(fastload.share(PATHS)), 8, **arguments).explain()
