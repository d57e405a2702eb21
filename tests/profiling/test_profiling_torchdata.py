"""States of torchdata's StatefulDataLoader are under the profiler what they are without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

import fastload

pytestmark = pytest.mark.filterwarnings("ignore:.set_vital. is deprecated")  # which torchdata calls

stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")


class Stream(IterableDataset[Any]):
    """Is its own iterator, and has a state."""

    def __init__(self) -> None:
        self.place = 0

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> int:
        if self.place == 12:
            raise StopIteration
        self.place += 1
        return self.place

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_state_that_is_taken_while_it_is_recorded_is_the_same(tmp_path: Path, num_workers: int) -> None:
    def state_after_one() -> Any:
        loader = stateful.StatefulDataLoader(Stream(), batch_size=4, num_workers=num_workers)
        iterator = iter(loader)
        next(iterator)
        return loader.state_dict(), [batch.tolist() for batch in iterator]

    torch.manual_seed(0)
    expected = state_after_one()
    with fastload.profile(folder=tmp_path) as recorded:
        torch.manual_seed(0)
        found = state_after_one()
    assert str(found) == str(expected)
    assert set(recorded.trace().missing) <= {"samples of iterable datasets with a state"}
    assert len(recorded.trace().ranks[0].steps) == 3
