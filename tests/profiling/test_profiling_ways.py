"""Loaders of every class are recorded alike, however they load: each batch with its tasks and samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from kit.datasets import Stream
from kit.ways import WAYS
from profiled import BATCHES, Numbers, check_batches, check_samples
from resumed_loaders import LENGTH, Count
from torch.utils.data import DataLoader

import fastload

pytestmark = pytest.mark.filterwarnings("ignore:.set_vital. is deprecated")  # which torchdata calls

ALL = {way: WAYS[way] for way in ("inline", "processes", "kept")}
OURS: dict[str, dict[str, Any]] = {
    "threads": WAYS["threads"],
    "whole batches": {"num_workers": 2, "chunk_size": "batch"},
    "kept, with a seed": {"num_workers": 2, "persistent_workers": True, "seed": 3},
}
SPAWN = {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": "spawn"}
ENGINES = ("torch", "torchdata", "fastload")


def class_of(engine: str) -> Any:
    if engine == "torchdata":
        module = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
        return module.StatefulDataLoader
    return DataLoader if engine == "torch" else fastload.DataLoader


@pytest.mark.parametrize("engine", ENGINES)
def test_every_batch_is_told_with_its_tasks_and_samples(tmp_path: Path, engine: str) -> None:
    for way, arguments in (ALL | OURS if engine == "fastload" else ALL).items():
        check_recording(tmp_path / way, engine, arguments)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_every_batch_of_workers_that_are_spawned_is_told(tmp_path: Path, engine: str) -> None:
    check_recording(tmp_path / "spawn", engine, SPAWN)


def check_recording(folder: Path, engine: str, arguments: dict[str, Any]) -> None:
    loader = class_of(engine)(Numbers(0.002), batch_size=4, **arguments)
    if not arguments:
        list(loader)
    with fastload.profile(folder=folder) as recorded:
        for _ in range(2):
            assert [batch.flatten().tolist() for batch in loader] == BATCHES
    if not arguments:
        list(loader)
    assert recorded.folder == folder
    trace = recorded.trace()
    assert trace.missing == {}
    (rank,) = trace.ranks
    number = arguments.get("num_workers", 0)
    check_batches(rank.steps, 2 * BATCHES, number)
    told = rank.loaders[0]
    assert (told["engine"], told["batch_size"], told["num_workers"]) == (engine, 4, number)
    assert all(step.loop_cpu_ns is not None and step.loop_ns is not None for step in rank.steps[:-1])
    assert bool(rank.probe_ns) <= (arguments.get("worker_method") == "thread")
    if engine != "torchdata":
        assert [step.first for step in rank.steps] == 2 * [True, False, False]
        assert all(step.batch.drawn is not None for step in rank.steps if number)
    if engine == "fastload":
        loader.close()


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("engine", [DataLoader, fastload.DataLoader])
def test_samples_of_a_stream_are_told_in_their_places(tmp_path: Path, engine: Any, level: int) -> None:
    stream = Stream(lambda: map(Numbers(0.002).__getitem__, range(12)))
    with fastload.profile(folder=tmp_path, level=level) as recorded:
        assert [batch.flatten().tolist() for batch in engine(stream, 4)] == BATCHES
    (rank,) = recorded.trace().ranks
    for step in rank.steps:
        (task,) = step.batch.tasks
        assert [sample.index for sample in task.samples] == [None] * 4
        check_samples(task)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_state_that_is_taken_while_it_is_recorded_is_the_same(tmp_path: Path, num_workers: int) -> None:
    def state_after_one() -> Any:
        loader = class_of("torchdata")(Count(), batch_size=4, num_workers=num_workers)
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
    assert len(recorded.trace().ranks[0].steps) == -(-LENGTH // 4)
