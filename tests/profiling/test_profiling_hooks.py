"""Hooks find their places or say that they have not; stages do not overlap."""

from __future__ import annotations

import functools
import inspect
import itertools
import pickle
import time
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.datasets import Sized, Stream
from profiled import Notes, Numbers
from torch.utils.data import DataLoader, Subset
from torch.utils.data import dataloader as torch_module
from torch.utils.data._utils import pin_memory, worker

import fastload
from fastload.profiling.hooks.patching import Patches
from fastload.profiling.hooks.stages import StageHooks
from fastload.profiling.recorder import Recorder, hook_ns
from fastload.profiling.ring import RecordKind

# -- places -----------------------------------------------------------------------------------------------------------


def renamed(function: Any, old: str, new: str) -> Any:
    """Return a function whose code is the same, but for one of the names in it."""
    code = function.__code__
    names = tuple(new if name == old else name for name in code.co_names)
    variables = tuple(new if name == old else name for name in code.co_varnames)
    assert (names, variables) != (code.co_names, code.co_varnames)
    changed = code.replace(co_names=names, co_varnames=variables)
    return types.FunctionType(changed, function.__globals__, function.__name__, function.__defaults__)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "name", "inner", "signal"),
    [
        (torch_module._MultiProcessingDataLoaderIter, "_try_put_index", "_send_idx", "when batches are sent to"),
        (torch_module._MultiProcessingDataLoaderIter, "_next_data", "_rcvd_idx", "which batch next() returns"),
        (worker, "_worker_loop", "index_queue", "what workers do"),
        (pin_memory, "_pin_memory_loop", "in_queue", "pinning"),
        (torch_module._DatasetKind, "create_fetcher", "collate_fn", "samples and collation"),
    ],
)
def test_a_place_whose_inner_names_have_changed_is_left_alone_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, inner: str, signal: str
) -> None:
    static = inspect.getattr_static(module, name)
    changed = renamed(getattr(module, name), inner, "renamed")
    monkeypatch.setattr(module, name, staticmethod(changed) if isinstance(static, staticmethod) else changed)
    with fastload.profile(folder=tmp_path) as recorded:
        assert getattr(module, name) is changed
        list(DataLoader(Numbers(length=8), batch_size=4))
    (told,) = recorded.trace().missing.items()
    assert told[0].startswith(signal)
    assert inner in told[1]


def test_an_error_while_a_module_is_hooked_is_told_and_does_not_reach_the_import(tmp_path: Path) -> None:
    recorder = Recorder(str(tmp_path))

    def fail(module: Any) -> None:
        raise KeyError("place")

    Patches(recorder).guarded(fail)(types.ModuleType("odd"))
    (lines,) = tmp_path.glob("*.jsonl")
    assert '"signal": "what odd does", "why": "KeyError: \'place\'"' in lines.read_text()


def test_what_others_have_put_over_a_hook_stays(tmp_path: Path) -> None:
    owner = types.SimpleNamespace(__name__="owner", f=lambda: 1, g=lambda: 2)
    f, g = owner.f, owner.g
    places = Patches(Recorder(str(tmp_path)))
    for name in ("f", "g"):
        places.replace(owner, name, lambda function: lambda: function() + 10, name)
    assert (owner.f(), owner.g()) == (11, 12)
    owner.g = others = lambda: 3
    places.restore()
    assert owner.f is f
    assert owner.g is others is not g


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["map", "iterable"])
def test_samples_are_recorded_while_that_takes_a_small_share_of_the_time(tmp_path: Path, kind: str) -> None:
    tensor = torch.arange(1000 * 8)
    dataset = Subset(Sized(8000), range(8000)) if kind == "map" else Stream(lambda: range(8000))
    with fastload.profile(folder=tmp_path) as recorded:
        given = [batch.tolist() for batch in DataLoader(dataset, batch_size=8)]
    assert given == tensor.view(1000, 8).tolist()
    tasks = [step.batch.tasks[0] for step in recorded.trace().ranks[0].steps]
    numbers = [len(task.samples) for task in tasks]
    assert numbers[0] == 8
    assert set(numbers) == {0, 8}
    assert sum(numbers) * hook_ns(1) < 0.006 * sum(task.ns for task in tasks) + 8 * hook_ns(1)
    assert all(task.cpu_ns is not None for task in tasks)


# -- stages -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def stages(tmp_path: Path) -> StageHooks:
    recorder = Recorder(str(tmp_path))
    return StageHooks(recorder, Patches(recorder))


def busy(ns: int = 100_000) -> None:
    until = time.perf_counter_ns() + ns
    while time.perf_counter_ns() < until:
        pass


def test_a_stage_within_another_splits_it_none_overlap_and_one_that_raises_is_told_too(stages, tmp_path):
    inner = stages.timed("inner", busy)

    def work() -> None:
        for _ in range(2):
            busy()
            inner()
        busy()
        raise KeyError("mine")

    outer, ring = stages.timed("outer", work), Notes()
    for heard in (None, ring, None):
        if heard is not None:
            stages.begin(heard)
        with pytest.raises(KeyError, match="mine"):
            outer()
        stages.end()
    lines = next(tmp_path.glob("*.jsonl")).read_text().splitlines()
    names = [line.split('"')[-2] for line in lines if '"name"' in line]
    assert [names[record.name - 1] for record in ring.records] == ["outer", "inner", "outer", "inner", "outer"]
    assert all(record.kind == RecordKind.STAGE for record in ring.records)
    assert all(before.ended <= after.begun for before, after in itertools.pairwise(ring.records))
    assert all(record.ended - record.begun >= 100_000 for record in ring.records)


def test_functions_of_c_stay_none_of_a_classs_methods_and_can_be_pickled(tmp_path: Path) -> None:
    (tmp_path / "words").write_text("words")
    with fastload.profile(folder=tmp_path / "new", level=2):
        kind = type("Reading", (), {"opened": open})
        read = pickle.loads(pickle.dumps(functools.partial(open, mode="rb")))
        assert read.func is open
        with kind().opened(tmp_path / "words") as text, read(tmp_path / "words") as file:
            assert (text.read(), file.read()) == ("words", b"words")
