"""Stages of a dataset: found, taken out of copies, searched for the first that differs, looked at for causes."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import verified
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, Dataset, Subset
from torchvision import transforms as v1
from torchvision.datasets import FakeData
from torchvision.transforms import v2

from fastload.verification.culprit import causes_in, first_that_differs
from fastload.verification.stages import TransformStage, find_stages, inner_stages, without
from fastload.verification.subject import subject_of


class _Own(Dataset[Any]):
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def __getitem__(self, index: int) -> Any:
        return index


def add(amount: int, value: int) -> int:
    return value + amount


def places(dataset: Any) -> list[str]:
    return [f"{stage.label} @ {stage.place}" for stage in find_stages(dataset)]


def test_chains_of_torchvision_are_found_in_datasets_and_in_those_inside():
    chain = v1.Compose([v1.CenterCrop(2), v1.RandomHorizontalFlip()])
    expected = [
        "CenterCrop(size=(2, 2)) @ dataset.{}transform, stage 1 of 2",
        "RandomHorizontalFlip(p=0.5) @ dataset.{}transform, stage 2 of 2",
    ]
    dataset = verified.Pictures(chain)
    assert places(dataset) == [one.format("") for one in expected]
    assert places(Subset(dataset, [1])) == [one.format("dataset.") for one in expected]
    assert places(ConcatDataset([dataset])) == [one.format("datasets[0].") for one in expected]


def test_transforms_of_many_kinds_are_found():
    dataset = _Own(
        transform=v2.CenterCrop(2),
        target_transform=functools.partial(add, 1),
        my_augmentation=verified.Counting(),
        tail=torch.nn.Sequential(torch.nn.Identity(), torch.nn.ReLU()),
        length=3,
        reader=print,
    )
    found = [stage.place for stage in find_stages(dataset)]
    assert found == [
        "dataset.transform",
        "dataset.target_transform",
        "dataset.my_augmentation",
        "dataset.tail, stage 1 of 2",
        "dataset.tail, stage 2 of 2",
    ]
    assert find_stages([1, 2]) == []


def test_what_a_dataset_of_torchvision_holds_twice_is_one_stage():
    dataset = FakeData(
        4,
        (3, 8, 8),
        transform=v1.Compose([v1.ToTensor(), v1.CenterCrop(4)]),
        target_transform=functools.partial(add, 1),
    )
    stages = find_stages(dataset)
    assert [len(stage.paths) for stage in stages] == [2, 2, 2]
    copied = subject_of(dataset, seed=0, batch_size=1, timeout=1).copied_arguments()["dataset"]
    changed = without(copied, stages[1:2])
    assert tuple(changed.transforms.transform(dataset[0][0].new_zeros(3, 8, 8).numpy().transpose(1, 2, 0)).shape) == (
        3,
        8,
        8,
    )
    assert len(dataset.transform.transforms) == 2
    assert isinstance(dataset.transform.transforms[1], v1.CenterCrop)


def test_stages_are_taken_out_of_copies_alone():
    dataset = verified.Pictures(v2.Compose([v2.CenterCrop(8), v2.CenterCrop(6), v2.CenterCrop(4)]))
    subject = subject_of(dataset, seed=0, batch_size=2, timeout=1)
    stages = find_stages(dataset)
    for kept, side in ((0, 12), (1, 8), (2, 6), (3, 4)):
        changed = without(subject.copied_arguments()["dataset"], stages[kept:])
        assert changed[0][0].shape == (3, side, side)
    assert dataset[0][0].shape == (3, 4, 4)


def test_the_stages_inside_of_a_stage():
    dataset = verified.Pictures(v1.Compose([v1.RandomApply([v1.CenterCrop(2), v1.CenterCrop(1)])]))
    (outer,) = find_stages(dataset)
    assert [stage.paths for stage in inner_stages(outer)] == [(("transform", 0, 0),), (("transform", 0, 1),)]


def stages(count: int) -> list[TransformStage]:
    return [TransformStage((("transform", number),), str(number), "", None) for number in range(count)]


@given(st.integers(1, 12), st.data())
def test_halving_finds_the_first_stage_that_differs(count: int, data: st.DataObject):
    chain = stages(count)
    guilty = data.draw(st.integers(0, count))  # 0: the dataset itself
    broken = data.draw(st.sets(st.integers(0, count - 1)))  # lengths that cannot be run
    asked = []

    def differs(removed: Sequence[TransformStage]) -> bool | None:
        kept = count - len(removed)
        asked.append(kept)
        return None if kept in broken else kept >= guilty

    found = first_that_differs(chain, differs)
    if guilty == 0 and 0 not in broken:
        assert found is None
        return
    assert found is not None
    last_good, stage = found
    first = int(last_good.label) if last_good is not None else int(stage.label)
    assert first <= max(guilty - 1, 0) <= int(stage.label)
    if not broken:
        assert last_good is None
        assert len(asked) <= 1 + count.bit_length()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (verified.OwnGenerator(), "self.rng (numpy.random.Generator)"),
        (_Own(rng=random.Random(1)), "self.rng (random.Random)"),
        (_Own(rng=torch.Generator()), "self.rng (torch.Generator)"),
        (_Own(rng=np.random.RandomState(1)), "self.rng (numpy.random.RandomState)"),
        (_Own(inner=verified.OwnGenerator()), "self.inner.rng (numpy.random.Generator)"),
        (verified.ModuleGenerator(), "_module_generator"),
        (verified.WorkerId(), "it uses get_worker_info"),
        (verified.ProcessId(), "it uses getpid"),
        (verified.Clock(), "it uses time, perf_counter"),
        (verified.Uuid(), "it uses uuid4"),
        (verified.Counting(), "self.calls"),
    ],
)
def test_a_cause_is_named_with_its_remedy(value: Any, words: str):
    causes = causes_in(value)
    assert len(causes) == 1
    assert words in causes[0]
    assert ";" in causes[0]


@pytest.mark.parametrize("value", [verified.PythonNoise(), v2.RandomCrop(2), v1.ColorJitter(), print, None, 3, add])
def test_nothing_is_said_of_what_is_well(value: Any):
    assert causes_in(value) == []
