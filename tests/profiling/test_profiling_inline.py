"""What the loop does itself: pinning without a thread for it, and resident data, gathered and transformed."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from profiled import Numbers, blame_of
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

import fastload
from fastload import transforms as T
from fastload.base import compat
from fastload.profiling.trace import Rank
from fastload.transforms.base import Params, Transform

PIN_NS = 3_000_000


class Pinnable:
    """A batch whose pinning takes 3 ms."""

    def __init__(self, samples: list[int]) -> None:
        self.samples = samples

    def pin_memory(self) -> Pinnable:
        time.sleep(PIN_NS / 1e9)
        return self


def check_pinned(rank: Rank) -> None:
    for step in rank.steps:
        pinned, (task,) = step.batch.pinned, step.batch.tasks
        assert pinned is not None
        assert pinned.ns >= PIN_NS
        assert task.ended <= pinned.begun <= pinned.ended <= step.wait.ended
        assert sum(sample.weight for sample in task.samples) == 4


@pytest.mark.parametrize("engine", [DataLoader, fastload.DataLoader])
def test_pinning_by_the_loop_is_told_apart_from_the_work(tmp_path: Path, engine: Any) -> None:
    """A batch is pinned in two parts, one within the other."""
    loader = engine(
        Numbers(length=24), batch_size=4, collate_fn=lambda samples: [Pinnable([*map(int, samples)]), [Pinnable([])]]
    )
    with fastload.profile(folder=tmp_path) as recorded:
        iterator = iter(loader)
        iterator._pin_memory, iterator._pin_memory_device = True, None
        if engine is fastload.DataLoader:
            iterator._pipeline.finish = lambda data: compat.pin_memory(data, None)
        assert [batch[0].samples for batch in iterator] == [list(range(p, p + 4)) for p in range(0, 24, 4)]
    (rank,) = recorded.trace().ranks
    assert [step.batch.number for step in rank.steps] == list(range(6))
    check_pinned(rank)
    assert blame_of(rank)["pin"] >= 2 * 5 * PIN_NS


@pytest.mark.skipif(
    "accelerator" not in _BaseDataLoaderIter.__init__.__code__.co_names, reason="this torch asks CUDA whether to pin"
)
def test_the_pinning_thread_of_persistent_workers_names_each_pass(tmp_path, monkeypatch):
    accelerator = torch.accelerator
    monkeypatch.setattr(accelerator, "is_available", lambda: True)
    monkeypatch.setattr(accelerator, "current_accelerator", lambda *_: SimpleNamespace(type="made-up"))
    monkeypatch.setattr(accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(accelerator, "set_device_index", lambda _: None)
    loader = DataLoader(
        Numbers(length=24), batch_size=4, collate_fn=Pinnable, num_workers=1, persistent_workers=True, pin_memory=True
    )
    with fastload.profile(folder=tmp_path) as recorded:
        for _ in range(3):
            assert len(list(loader)) == 6
    (rank,) = recorded.trace().ranks
    assert [step.first for step in rank.steps] == [place % 6 == 0 for place in range(18)]
    check_pinned(rank)
    assert len({step.batch.pinned.begun for step in rank.steps if step.batch.pinned is not None}) == 18
    assert blame_of(rank).get("other", 0) == 0


# -- resident data ----------------------------------------------------------------------------------------------------


class Costly(Transform):
    """Takes 2 ms a batch."""

    def transform(self, images: torch.Tensor, params: Params) -> torch.Tensor:
        until = time.perf_counter_ns() + 2_000_000
        while time.perf_counter_ns() < until:
            pass
        return images


def images() -> TensorDataset:
    return TensorDataset(torch.arange(100 * 3 * 8 * 8).reshape(100, 3, 8, 8).to(torch.uint8), torch.arange(100))


@pytest.mark.parametrize(
    ("place", "more"),
    [
        ("host", {}),
        ("host", {"num_workers": 2, "persistent_workers": True}),
        ("host", {"device": "cpu"}),
        ("device", {"device": "cpu", "num_workers": 2}),
    ],
)
def test_resident_data_are_gathered_and_transformed_by_name(tmp_path: Path, place: Any, more: Any) -> None:
    loader = fastload.DataLoader(images(), 10, resident=place, batch_transform=Costly(), **more)
    with fastload.profile(folder=tmp_path) as recorded:
        found = [[batch[1].tolist() for batch in loader] for _ in range(2)]
    loader.close()
    assert found == 2 * [[list(range(p, p + 10)) for p in range(0, 100, 10)]]
    trace = recorded.trace()
    assert trace.missing == {}
    (rank,) = trace.ranks
    assert rank.loaders[0]["resident"]
    assert rank.loaders[0]["num_workers"] == 0
    assert [step.batch.number for step in rank.steps] == 2 * list(range(10))
    assert len({(step.iterator, step.batch.number) for step in rank.steps}) == 20
    for step in rank.steps:
        (task,) = step.batch.tasks
        assert step.wait.begun <= task.begun <= task.ended <= step.wait.ended
        assert task.worker == -1
        assert task.num_samples == 10
        assert task.collate is not None
        assert [stage.name for sample in task.samples for stage in sample.stages] == ["batch_transform"]
    blame = blame_of(rank)
    assert "other" not in blame
    assert blame["stage:batch_transform"] >= 0.5 * 20 * 2_000_000
    assert recorded.analysis().ranks[0].workers.method == "inline"


def test_batches_of_resident_data_that_are_made_at_once_are_told_one_by_one(tmp_path: Path) -> None:
    transform = T.Compose([T.RandomHorizontalFlip(), T.ToNormalized([0.4] * 3, [0.2] * 3)])
    loader = fastload.DataLoader(images(), 10, resident="host", batch_transform=transform, seed=3, shuffle=True)
    plain = [batch[1].tolist() for batch in loader]
    loader.set_epoch(0)
    with fastload.profile(folder=tmp_path) as recorded:
        assert [batch[1].tolist() for batch in loader] == plain
    (rank,) = recorded.trace().ranks
    assert [step.batch.number for step in rank.steps] == list(range(10))
    assert all(len(step.batch.tasks) == 1 and step.batch.drawn is not None for step in rank.steps)
    assert sum(step.batch.tasks[0].collate is not None for step in rank.steps) < 10
    assert "other" not in blame_of(rank)
