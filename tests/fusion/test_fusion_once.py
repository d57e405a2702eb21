"""Within an epoch of a fused loader the user's code runs once for each sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fusion_tools import cifar, folder
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Subset
from torchvision import transforms as v1

from fastload import DataLoader

COUNT = 25
WAYS: dict[str, dict[str, Any]] = {
    "inline": {},
    "threads": {"num_workers": 2, "worker_method": "thread"},
    "processes": {"num_workers": 2},
}


class Target:
    """Counts its calls, in memory that processes share; gives another type or an error for some samples."""

    def __init__(self, odd: dict[int, Any]) -> None:
        self.calls = torch.zeros(COUNT, dtype=torch.int64).share_memory_()
        self._odd = odd

    def __call__(self, target: int) -> Any:
        self.calls[target] += 1
        given = self._odd.get(target, target)
        if given is KeyError:
            raise KeyError(target)
        return given


class Late:
    """An unknown transform: counts its calls for images whose first level is their number."""

    def __init__(self) -> None:
        self.calls = torch.zeros(COUNT, dtype=torch.int64).share_memory_()

    def __call__(self, image: Any) -> Any:
        self.calls[int(torch.as_tensor(np.asarray(image)).flatten()[0])] += 1
        return image


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    folder(root)
    return root


def dataset_of(kind: str, target: Target, late: Late | None, root: Path) -> Any:
    if kind == "arrays":
        steps = [v1.RandomCrop(20), v1.PILToTensor(), *([late] if late else [])]
        dataset = cifar(v1.Compose(steps), target_transform=target, count=COUNT)
        dataset.data[:] = np.arange(COUNT)[:, None, None, None]
        return dataset
    sized = v1.RandomResizedCrop(20) if kind == "files" else v1.RandomHorizontalFlip()
    dataset = folder(root, v1.Compose([sized, v1.ToTensor()]), target_transform=target)
    dataset.samples = [(path, number) for number, (path, _) in enumerate(dataset.samples)]
    return dataset


@given(
    kind=st.sampled_from(["arrays", "files", "files of sizes"]),
    unknown=st.booleans(),
    odd=st.dictionaries(st.integers(0, COUNT - 1), st.sampled_from([0.5, True, KeyError]), max_size=3),
    on_error=st.sampled_from(["raise", "skip"]),
    batch_size=st.integers(1, 9),
    chunk_size=st.sampled_from([None, 1, 3, "batch"]),
    way=st.sampled_from(["inline", "threads", "threads", "processes"]),
    subset=st.booleans(),
)
@settings(max_examples=12, deadline=None)
def test_the_users_code_runs_once_for_each_sample(
    files, kind, unknown, odd, on_error, batch_size, chunk_size, way, subset
):
    target, late = Target(odd), Late() if unknown and kind == "arrays" else None
    dataset = dataset_of(kind, target, late, files)
    loader = DataLoader(
        Subset(dataset, range(COUNT)) if subset else dataset,
        1 if kind == "files of sizes" else batch_size,  # they cannot be stacked
        shuffle=True,
        seed=1,
        fuse=True,
        chunk_size=None if way == "inline" else chunk_size,
        **WAYS[way],
        on_error=on_error,
        max_errors=COUNT,
        overlap_epochs=False,
    )
    for epoch in (1, 2):
        iterator = iter(loader)
        while True:
            try:
                next(iterator)
            except StopIteration:
                break
            except KeyError:  # in a batch's place
                pass
        if on_error == "skip" or KeyError not in odd.values():
            assert target.calls.tolist() == [epoch] * COUNT
            assert late is None or late.calls.tolist() == [epoch] * COUNT
        assert target.calls.max() <= epoch
    loader.close()


@pytest.mark.parametrize("way", WAYS)
def test_a_sample_that_stands_in_for_another_runs_once_more(way):
    target = Target({6: KeyError})
    dataset = dataset_of("arrays", target, None, Path())
    loader = DataLoader(dataset, 5, seed=1, fuse=True, on_error="replace", max_errors=1, **WAYS[way])
    batches = list(loader)
    loader.close()
    stood_in = batches[1][1][1].item()
    assert [targets.tolist() for _, targets in batches] == [
        [stood_in if index == 6 else index for index in range(first, first + 5)] for first in range(0, COUNT, 5)
    ]
    expected = [1] * COUNT
    expected[stood_in] += 1
    assert target.calls.tolist() == expected
    assert batches[1][0][1].unique().tolist() == [stood_in]
