"""``fastload.verify``: real loaders, real workers; one broken dataset for each usual cause."""

from __future__ import annotations

import copy
import functools
import json
import random
from collections.abc import Callable, Sequence
from itertools import chain, combinations
from typing import Any

import numpy as np
import pytest
import torch
import verified
from fused_samples import InMemory
from hypothesis import given
from hypothesis import strategies as st
from kit.datasets import Made, Sized
from kit.generators import generator_states
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    IterableDataset,
    Sampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)
from torchvision import transforms as v1
from torchvision.datasets import FakeData
from torchvision.transforms import v2

import fastload
from fastload.base import compat
from fastload.engine.iteration import Iteration
from fastload.fusion import FusedDataset
from fastload.loader import argument_defaults
from fastload.testing import assert_deterministic
from fastload.verification.culprit import first_that_differs
from fastload.verification.plan import METHODS, RunSetting, plan_checks, plan_iterable_checks
from fastload.verification.report import NotDeterministic
from fastload.verification.stages import TransformStage, find_stages, without
from fastload.verification.subject import subject_of


def verify(subject: Any, methods: str = "fork", **options: Any) -> fastload.VerifyReport:
    return fastload.verify(subject, methods=methods.split(), **{"batches": 3, "seed": 0, **options})


def culprits(report: fastload.VerifyReport) -> set[str]:
    return {f"{check.culprit.stage} @ {check.culprit.place}" for check in report.checks if check.culprit}


def verdicts(report: fastload.VerifyReport, name: str) -> list[str]:
    return [check.verdict for check in report.checks if check.name == name]


@pytest.mark.slow
@pytest.mark.parametrize(("on_error", "methods"), [("skip", "thread"), ("replace", "fork")])
def test_what_is_left_out_or_replaced_is_so_in_every_run(on_error: Any, methods: str):
    dataset = verified.SomeLost(verified.PythonNoise())
    report = verify(fastload.DataLoader(dataset, 4, shuffle=True, seed=1, on_error=on_error), methods)
    assert report.ok, report.to_text()
    for name in ("again", "workers", "next epoch", "resume"):
        assert set(verdicts(report, name)) == {"equal"}, report.to_text()
    assert verdicts(report, "world size") == ["equal", *["skipped" if on_error == "skip" else "equal"] * 2]
    generator = verified.SomeLost(verified.OwnGenerator())
    report = verify(fastload.DataLoader(generator, 4, shuffle=True, seed=1, on_error=on_error), "inline")
    assert culprits(report) == {"OwnGenerator(std=1) @ dataset.transform"}, report.to_text()


@pytest.mark.slow
def test_a_loader_that_fuses_is_verified_fusing(monkeypatch):
    fused = []
    load = FusedDataset.load
    monkeypatch.setattr(FusedDataset, "load", lambda *args, **more: fused.append(1) or load(*args, **more))
    transform = v1.Compose([v1.RandomCrop(32, 4), v1.ToTensor()])
    report = verify(fastload.DataLoader(InMemory(transform), 4, shuffle=True, fuse=True), "inline")
    assert report.ok, report.to_text()
    assert fused
    transform.transforms.append(verified.OwnGenerator())
    report = verify(fastload.DataLoader(InMemory(transform), 4, shuffle=True, fuse=True), "thread")
    assert culprits(report) == {"OwnGenerator(std=1) @ dataset.transform, stage 3 of 3"}, report.to_text()


@pytest.mark.parametrize("fuse", ["auto", False])
def test_a_loader_is_rebuilt_with_its_fuse(fuse: Any):
    subject = subject_of(fastload.DataLoader(range(9), fuse=fuse), seed=None, batch_size=1, timeout=9.0)
    assert [subject.loader(RunSetting()).fuse, subject.same_loader().fuse] == [fuse] * 2


def test_a_batch_transform_is_left_out_and_that_is_said():
    flip = fastload.transforms.RandomHorizontalFlip()
    report = verify(fastload.DataLoader(verified.Pictures(), 4, batch_transform=flip), "inline", batches=1)
    assert report.ok
    assert "batch_transform is left out: the batches before it are compared" in report.notes


@pytest.mark.slow
def test_a_loader_with_resident_data_is_verified_with_them(monkeypatch):
    for kind in [one for one in compat._collate_map if one not in compat._torch_collate_map]:
        monkeypatch.delitem(compat._collate_map, kind)  # MONAI, once imported, adds its tensors to torch's collation
    resident = fastload.DataLoader(InMemory(v1.ToTensor()), 4, shuffle=True, resident="host", fuse=True)
    report = verify(resident, "inline")
    assert report.ok, report.to_text()
    random_crops = InMemory(v1.Compose([v1.RandomCrop(32, 4), v1.ToTensor()]))
    report = verify(fastload.DataLoader(random_crops, 4, shuffle=True, resident="device", device="cpu"))
    assert [check.verdict for check in report.checks] == ["error"]
    assert "the dataset is random" in report.to_text()
    assert "resident='device' is verified on the host" in report.to_text()


def test_other_defaults_do_not_reach_the_loaders_that_are_compared(monkeypatch):
    loader = fastload.DataLoader(TensorDataset(torch.arange(24)), 4)
    monkeypatch.setenv("FASTLOAD_LOADER", "seed=3,chunk_size=2,fuse=true")
    try:
        argument_defaults().read_environment()
        report = verify(loader, "inline")
    finally:
        monkeypatch.undo()
        argument_defaults().read_environment()
    assert report.ok, report.to_text()


def drawing() -> Any:
    albumentations = pytest.importorskip("albumentations", reason="albumentations is not installed")
    return albumentations.Compose([albumentations.GaussNoise(p=1.0)])


class _Shuffling(Sampler[list[int]]):
    def __iter__(self) -> Any:
        for _ in range(6):
            yield random.sample(range(24), 4)

    def __len__(self) -> int:
        return 6


def with_its_epoch_set() -> Any:
    dataset = TensorDataset(torch.arange(40))
    sampler = fastload.DistributedBatchSampler(dataset, 4, seed=3, rank=0, world_size=1)
    loader = fastload.DataLoader(dataset, batch_sampler=sampler)
    loader.set_epoch(0)
    return loader


class _Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        worker = get_worker_info()
        for index in range(0 if worker is None else worker.id, 30, 1 if worker is None else worker.num_workers):
            yield index, torch.rand(2)


def closing_over(transform: Any) -> Any:
    """Return a dataset that a closure transforms."""
    return Made(20, lambda index: transform(image=np.full((4, 4, 3), index, dtype=np.uint8))["image"])


def weighted() -> WeightedRandomSampler:
    return WeightedRandomSampler([1.0] * 24, 16, generator=torch.Generator().manual_seed(3))


PASSES: dict[str, tuple[Callable[[], Any], str]] = {
    "a transform of albumentations": (lambda: fastload.DataLoader(closing_over(drawing()), 4, seed=1), "thread"),
    "batches that cannot be taken apart": (
        lambda: DataLoader(verified.good, 4, shuffle=True, collate_fn=verified.collate_by_length),
        "inline",
    ),
    "a sampler with a generator of its own": (lambda: DataLoader(verified.good, 4, sampler=weighted()), "inline"),
    "a stream": (lambda: DataLoader(_Stream(), 4), "fork"),
    "a loader with its epoch set": (with_its_epoch_set, "inline"),
    "a dataset of tensors": (lambda: TensorDataset(torch.arange(20)), "inline"),
    "no batches": (lambda: DataLoader(verified.good, batch_size=None), "inline"),
    "one batch": (lambda: DataLoader(verified.Pictures(length=3), 2, drop_last=True), "inline"),
    "a large seed, threads": (
        lambda: fastload.DataLoader(verified.good, 4, shuffle=True, seed=1 << 80, worker_method="thread"),
        "inline",
    ),
    "a list": (lambda: [{"a": 1, "b": ("x", 2.0)}] * 9, "inline"),
}
SKIPPED = {case: {"world size"} for case in ("a sampler with a generator of its own", "no batches")}


@pytest.mark.parametrize("case", PASSES)
def test_loaders_of_many_kinds_pass(case: str):
    make, methods = PASSES[case]
    report = verify(make(), methods)
    assert report.ok, report.to_text()
    assert {check.name for check in report.checks if check.verdict == "skipped"} == SKIPPED.get(case, set())
    assert ("world sizes and a resume" in report.to_text(1000)) == (case == "a stream")


class _Broken(verified.Pictures):
    """Whose transforms are good."""

    def __getitem__(self, index: int) -> tuple[Any, int]:
        picture, label = super().__getitem__(index)
        return picture + verified.WorkerId()(0), label + verified.WorkerId()(0)


def nested() -> Any:
    inner = v1.RandomApply([v1.CenterCrop(10), verified.OwnGenerator()], p=0.9)
    return v1.Compose([v1.RandomHorizontalFlip(), inner, v1.CenterCrop(8)])


def drawn_by(*stages: Any) -> verified.Pictures:
    return verified.Pictures(verified.chain(*stages))


# Samples of these differ wherever they are loaded: from run to run, or where a rank or a resume begins anew. To verify
# one with worker processes takes about a hundred of them. Two hash seeds may give the same order of a set of ten words,
# about once in a million.
SLOW, THOROUGH = [pytest.mark.slow], [pytest.mark.thorough, pytest.mark.timeout(200)]
CULPRITS: dict[str, tuple[Callable[[], Any], str, list[Any]]] = {
    "OwnGenerator(std=1) @ dataset.transform[1], stage 2 of 2": (lambda: verified.Pictures(nested()), "inline", []),
    "CollateWithGenerator() @ collate_fn": (
        lambda: DataLoader(verified.good, 4, shuffle=True, collate_fn=verified.CollateWithGenerator()),
        *("inline", []),
    ),
    "_Shuffling() @ the sampler": (lambda: DataLoader(verified.good, batch_sampler=_Shuffling()), "inline", []),
    "SharedScratch() @ dataset.transform, stage 2 of 2": (
        lambda: verified.Pictures(v2.Compose([v2.CenterCrop(10), verified.SharedScratch()])),
        *("thread", SLOW),
    ),
    "_Broken() @ the dataset itself, before any transform": (
        lambda: _Broken(v2.Compose([v2.CenterCrop(8)])),
        "thread",
        SLOW,
    ),
    "WorkerId() @ dataset.transform, stage 2 of 3": (lambda: drawn_by(verified.WorkerId()), "thread", THOROUGH),
    "ProcessId() @ dataset.transform, stage 2 of 3": (lambda: drawn_by(verified.ProcessId()), "fork", THOROUGH),
    "Counting() @ dataset.transform, stage 2 of 3": (lambda: drawn_by(verified.Counting()), "inline", THOROUGH),
    "SetOrder() @ dataset.transform": (lambda: verified.Pictures(verified.SetOrder()), "fork spawn", THOROUGH),
}


@pytest.mark.parametrize("culprit", [pytest.param(one, marks=marks) for one, (_, _, marks) in CULPRITS.items()])
def test_what_makes_samples_differ_is_named(culprit: str):
    make, methods, _ = CULPRITS[culprit]
    report = verify(make(), methods, batches=1 if "spawn" in methods else 3)
    assert not report.ok
    assert culprits(report) == {culprit}, report.to_text()


def test_a_dataset_that_cannot_be_pickled_is_checked_but_for_spawn():
    report = verify(verified.Unpicklable(), "fork spawn", batches=2)
    assert report.ok, report.to_text()
    skipped = [check for check in report.checks if check.verdict == "skipped"]
    assert ["spawn" in check.setting for check in skipped] == [True]
    assert "cannot be pickled (TypeError: this dataset stays where it is)" in skipped[0].reason
    assert "share it" in report.notes[-1]


@pytest.mark.parametrize("kind", [verified.Pictures, verified.Unpicklable])  # of which no copy can be made
def test_the_users_objects_and_the_global_generators_are_as_before(kind: Any):
    dataset = kind(verified.chain(verified.OwnGenerator(), verified.Counting()))
    stages = list(dataset.transform.transforms)
    drawn, before = copy.deepcopy(stages[1].rng.bit_generator.state), generator_states()
    report = verify(dataset, "inline", batches=1)  # in this process
    assert culprits(report) == {"OwnGenerator(std=1) @ dataset.transform, stage 2 of 4"}, report.to_text()
    assert dataset.transform.transforms == stages
    assert generator_states() == before
    if kind is verified.Pictures:
        assert (stages[1].rng.bit_generator.state, stages[2].calls) == (drawn, 0)


def test_a_dataset_that_fails_everywhere_is_an_error_of_the_reference():
    report = verify(DataLoader(verified.FailingIn("everywhere"), 4))
    assert [check.verdict for check in report.checks] == ["error"]
    assert "KeyError: 'nine'" in report.to_text()


# torch's loader, which is compared with, may leave a connection to a worker that has died to the collector.
@pytest.mark.filterwarnings("ignore:unclosed <socket.socket.*type=1:ResourceWarning")
@pytest.mark.parametrize(
    ("how", "methods", "words"), [("death", "fork", "exited with code 3"), ("error", "thread", "KeyError: 'nine'")]
)
def test_what_fails_in_workers_is_an_error_of_their_checks(how: str, methods: str, words: str):
    report = verify(DataLoader(verified.FailingIn(how), 4), methods)
    assert not report.ok
    assert verdicts(report, "again") == ["equal"]
    assert set(verdicts(report, "workers")) == {"error"}
    assert words in report.to_text(1000)


def test_workers_that_hang_are_ended_and_not_tried_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Iteration._shutdown_workers, "__defaults__", (0.1,))
    report = verify(DataLoader(verified.FailingIn("hang"), 4), timeout=1.0)
    assert verdicts(report, "workers") == ["error", "skipped", "skipped", "skipped"]
    assert "timed out" in report.to_text()


@pytest.mark.parametrize(
    ("subject", "options", "words"),
    [
        (17, {}, "verify takes a DataLoader"),
        ("words", {}, "verify takes a DataLoader"),
        (verified.good, {"batches": 0}, "batches must be"),
        (verified.good, {"batch_size": 0}, "batch_size must be"),
        (verified.good, {"seed": "x"}, "seed must be"),
        (verified.good, {"methods": ["pigeon"]}, "methods must be some of inline, thread, fork, spawn"),
        (verified.good, {"methods": ["fork"]}, "needs a seed"),
        (verified.good, {"time_limit": 0}, "time_limit must be"),
    ],
)
def test_what_cannot_be_verified_is_refused(subject: Any, options: dict[str, Any], words: str):
    with pytest.raises(fastload.ConfigError, match=words):
        fastload.verify(subject, **options)


def test_the_helper_for_tests_fails_with_the_table_of_which_json_says_the_same():
    with pytest.raises(NotDeterministic, match="first stage that differs: OwnGenerator") as failed:
        assert_deterministic(verified.bad, batches=2, methods=["inline"])
    assert isinstance(failed.value, AssertionError)
    report = assert_deterministic(TensorDataset(torch.arange(9)), batches=1, methods=["inline"])
    told = json.loads(report.to_json())
    assert (told["ok"], told["seed"], told["version"]) == (True, 0, 3)
    assert [check["verdict"] for check in told["checks"]] == [check.verdict for check in report.checks]


# -- stages ------------------------------------------------------------------------------------------------------------


def add(amount: int, value: int) -> int:
    return value + amount


def test_transforms_of_many_kinds_are_found_in_datasets_and_in_those_inside():
    dataset = Sized(3)
    vars(dataset).update(
        transform=v1.Compose([v1.CenterCrop(2), v1.RandomHorizontalFlip()]),
        target_transform=functools.partial(add, 1),
        my_augmentation=verified.Counting(),
        tail=torch.nn.Sequential(torch.nn.Identity(), torch.nn.ReLU()),
        reader=print,
    )
    expected = [
        *("transform, stage 1 of 2", "transform, stage 2 of 2", "target_transform", "my_augmentation"),
        *("tail, stage 1 of 2", "tail, stage 2 of 2"),
    ]
    for holder, prefix in (
        (dataset, "dataset."),
        (Subset(dataset, [1]), "dataset.dataset."),
        (ConcatDataset([dataset]), "dataset.datasets[0]."),
    ):
        assert [stage.place for stage in find_stages(holder)] == [prefix + place for place in expected]
    assert find_stages(dataset)[0].label == "CenterCrop(size=(2, 2))"
    assert find_stages([1, 2]) == []


def test_stages_are_taken_out_of_copies_alone_also_where_a_dataset_of_torchvision_holds_them_twice():
    dataset = verified.Pictures(v2.Compose([v2.CenterCrop(8), v2.CenterCrop(6), v2.CenterCrop(4)]))
    stages = find_stages(dataset)
    for kept, side in ((0, 12), (1, 8), (2, 6), (3, 4)):
        assert without(dataset, stages[kept:])[0][0].shape == (3, side, side)
    assert dataset[0][0].shape == (3, 4, 4)
    fake = FakeData(4, (3, 8, 8), transform=v1.Compose([v1.ToTensor(), v1.CenterCrop(4)]))
    stages = find_stages(fake)
    assert [stage.place for stage in stages] == ["dataset.transform, stage 1 of 2", "dataset.transform, stage 2 of 2"]
    assert without(fake, stages[1:])[0][0].shape == (3, 8, 8)
    assert fake[0][0].shape == (3, 4, 4)


@given(st.integers(1, 12), st.data())
def test_halving_finds_the_first_stage_that_differs_or_says_that_it_is_not_certain(count: int, data: st.DataObject):
    guilty = data.draw(st.integers(0, count))  # 0: the dataset itself
    broken = data.draw(st.sets(st.integers(0, count - 1)))  # lengths that cannot be run
    asked = []

    def differs(removed: Sequence[TransformStage]) -> bool | None:
        kept = count - len(removed)
        asked.append(kept)
        return None if kept in broken else kept >= guilty

    found = first_that_differs([TransformStage(str(number), "", None) for number in range(count)], differs)
    if guilty == 0 and 0 not in broken:
        assert found is None
        return
    assert found is not None
    stage, certain = found
    assert certain or broken
    assert int(stage.label) == guilty - 1 if certain else int(stage.label) >= guilty - 1
    assert len(asked) <= 1 + count.bit_length()


# -- plans -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("methods", list(chain.from_iterable(combinations(METHODS, n) for n in range(1, 5))))
def test_only_the_methods_that_are_asked_for_are_used_and_a_cache_is_compared_with_none(methods: Any):
    for planned in (
        plan_checks(methods, num_batches=4, seed=1, has_cache=True),
        plan_iterable_checks(methods, has_cache=True),
    ):
        used = {setting.method for one in planned for setting in (one.setting, one.reference)}
        assert used <= {*methods, "inline"}
        for one in planned:
            assert (one.setting.num_workers or one.setting.resumed_by) == 0 or one.setting.method != "inline"
        assert [one.name for one in planned if one.setting == one.reference] == ["again"], "with itself"
        assert {one.name for one in planned if one.setting.cache} == {"cache"}
        assert not any(one.reference.cache for one in planned)
    assert not any(one.setting.cache for one in plan_checks(methods, num_batches=4, seed=0))


def test_a_resume_is_within_the_epoch_at_a_step_chosen_by_the_seed():
    planned = [one.setting for seed in range(40) for one in plan_checks(METHODS, num_batches=3, seed=seed)]
    assert {setting.resume_after for setting in planned} == {None, 1, 2}
