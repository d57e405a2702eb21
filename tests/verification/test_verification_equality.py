"""Without a seed ``fastload.verify`` compares with torch's class, bit for bit."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import verified
from kit.datasets import Stream
from kit.generators import generator_states
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, WeightedRandomSampler

import fastload
from fastload.verification import equality as module
from fastload.verification.subject import Subject


def verify(subject: Any, **options: Any) -> fastload.VerifyReport:
    return fastload.verify(subject, **{"batches": 4, **options})


def check_of(report: fastload.VerifyReport) -> Any:
    (check,) = report.checks
    return check


@pytest.fixture(autouse=True)
def _times_one_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_ROUNDS", 1)


def drawing() -> verified.Pictures:
    return verified.Pictures(verified.chain(verified.PythonNoise()))


def drawn_rows() -> Iterator[Any]:
    return ((index, torch.rand(2), random.random()) for index in range(30))


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(drawing(), 6, shuffle=True),
        lambda: DataLoader(drawing(), 6, shuffle=True, num_workers=2, persistent_workers=True),
        lambda: DataLoader(drawing(), 6, num_workers=1, generator=torch.Generator().manual_seed(3), shuffle=True),
        lambda: DataLoader(drawing(), batch_sampler=BatchSampler(RandomSampler(range(24)), 5, False)),
        lambda: DataLoader(drawing(), 6, sampler=WeightedRandomSampler([1.0] * 24, 24)),
        lambda: DataLoader(drawing(), batch_size=None),
        lambda: DataLoader(drawing(), 8, shuffle=True),  # which ends before
        lambda: DataLoader(drawing(), 6, collate_fn=verified.collate_by_length),
        lambda: DataLoader(Stream(drawn_rows), 4, num_workers=2),
        lambda: fastload.DataLoader(drawing(), 6, shuffle=True, num_workers=2),
        drawing,
    ],
)
def test_batches_of_many_kinds_of_loaders_are_torchs(make: Any):
    report = verify(make())
    assert report.ok, report.to_text()
    found = check_of(report)
    assert (found.verdict, found.reason, found.difference) == ("equal", "", None)
    number = 6 if "in batches of 8" in report.subject else 8
    assert f"{number} batches of two epochs equal torch's, bit for bit" in report.summary()


def test_the_line_to_paste_names_result_pipeline_and_versions():
    report = verify(DataLoader(drawing(), 6, shuffle=True, num_workers=2, persistent_workers=True))
    line = report.issue_line()
    assert line in report.to_text(60).splitlines(), "it is not wrapped"
    assert json.loads(report.to_json())["issue_line"] == line
    for words in (
        report.summary(),
        "Pictures, in batches of 6, shuffled, with RandomHorizontalFlip, PythonNoise, RandomCrop, num_workers=2, ",
        "persistent_workers=True; ",
        f"fastload {fastload.__version__}",
        f"torch {torch.__version__}",
        "Python 3.",
    ):
        assert words in line


def test_both_are_timed_if_that_takes_long_enough_and_the_rates_are_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_LEAST_S", 0.0)
    report = verify(DataLoader(drawing(), 6), batches=2)
    assert check_of(report).speedup > 0
    assert report.notes[-1].startswith("timed: torch ")
    for speedup, words in ((2.6, "2.6 times as fast"), (0.87, "0.87 times as fast")):
        check_of(report).speedup = speedup
        assert report.summary() == f"4 batches of two epochs equal torch's, bit for bit; {words}"


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_dataset_that_differs_from_run_to_run_is_told_from_a_defect(num_workers: int):
    dataset = verified.Pictures(verified.chain(verified.Uuid()))
    report = verify(DataLoader(dataset, 4, num_workers=num_workers))
    found = check_of(report)
    assert not report.ok
    assert found.verdict == "not repeatable"
    assert report.summary().startswith("NOT comparable: torch's class itself differs between two runs")
    assert str(found.culprit) == "first stage that differs: Uuid() (dataset.transform, stage 2 of 3)"
    assert str(found.culprit) in report.to_text()


def test_what_needs_keys_has_other_augmentation_by_design():
    loader = fastload.DataLoader(drawing(), 4, num_workers=2, worker_method="thread")
    report = verify(loader)
    assert not report.ok
    assert check_of(report).verdict == "other augmentation"
    assert "by design" in report.summary()
    assert "worker_method='thread'" in check_of(report).reason
    draws_nothing = fastload.DataLoader(verified.Pictures(), 4, num_workers=2, worker_method="thread")
    assert verify(draws_nothing).ok


class _WrongAt(verified.Pictures):
    def __getitem__(self, index: int) -> tuple[Any, int]:
        picture, label = super().__getitem__(index)
        return picture, label + (100 if index == 9 else 0)


def given_to_fastload(monkeypatch: pytest.MonkeyPatch, **arguments: Any) -> None:
    """Build fastload's loader with other arguments than torch's, in place of a defect."""
    same = Subject.same_loader

    def other(subject: Subject, *edit: Any) -> Any:
        given = subject.given
        subject.given = {**given, **arguments}
        try:
            return same(subject, *edit)
        finally:
            subject.given = given

    monkeypatch.setattr(Subject, "same_loader", other)


class _CollateDrawing:
    def __call__(self, samples: list[Any]) -> Any:
        np.random.rand()
        return torch.utils.data.default_collate(samples)


# What fastload's loader is given in place of a dataset of 16 pictures, and what is said of it.
DEFECTS: dict[str, tuple[dict[str, Any], str]] = {
    "a sample": ({"dataset": _WrongAt(length=16)}, "the values differ: epoch 0, batch 2, part [1]"),
    "fewer batches": ({"dataset": verified.Pictures(length=12), "sampler": None}, "fastload has fewer"),
    "more batches": ({"dataset": verified.Pictures(length=20), "sampler": None}, "fastload has more"),
    "generators": ({"collate_fn": _CollateDrawing()}, "the state of the generators differs: NumPy"),
    "an error": (
        {"dataset": verified.FailingIn("everywhere")},
        "fastload raises KeyError: 'nine', and torch's class nothing: epoch 0, batch 2",
    ),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_told_with_its_place(defect: str, monkeypatch: pytest.MonkeyPatch):
    arguments, words = DEFECTS[defect]
    given_to_fastload(monkeypatch, **arguments)
    report = verify(DataLoader(verified.Pictures(length=16), 4), batches=9)
    found = check_of(report)
    assert found.verdict == "different"
    assert words in str(found.difference)
    assert report.summary().startswith("NOT equal to torch's: epoch 0")
    assert "fastload is at fault" in found.reason


def test_the_users_generators_are_as_before():
    before = generator_states()
    assert verify(DataLoader(drawing(), 4, shuffle=True)).ok
    assert generator_states() == before


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_that_both_classes_raise_ends_the_comparison(num_workers: int):
    report = verify(DataLoader(verified.FailingIn("everywhere"), 4, num_workers=num_workers))
    assert not report.ok
    assert report.summary() == (
        "2 batches of one epoch equal torch's, bit for bit; then the dataset raises, at batch 2 of epoch 0: "
        "KeyError: 'nine'"
    )


def test_where_the_time_is_over_what_was_compared_is_told():
    report = verify(DataLoader(drawing(), 4, shuffle=True), time_limit=1e-9)
    assert report.ok
    assert check_of(report).setting == "2 batches of two epochs"


def test_a_seed_asks_for_the_checks_of_keys():
    dataset = verified.Pictures()
    sampler = fastload.DistributedBatchSampler(dataset, 4, seed=3, rank=0, world_size=1)
    for loader, options in (
        (fastload.DataLoader(dataset, 4, seed=1), {}),
        (fastload.DataLoader(dataset, batch_sampler=sampler), {}),
        (DataLoader(dataset, 4), {"seed": 2}),
    ):
        report = verify(loader, methods=["inline"], **options)
        assert report.ok, report.to_text()
        assert report.seed in (1, 3, 2)
        assert {"again", "resume"} <= {check.name for check in report.checks}
