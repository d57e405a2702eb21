"""The transform that takes most of a sample: when there is one, its share, and what helps."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import albumentations
import numpy as np
import pytest
import torch
from kit.datasets import Made
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.transforms import v2

import fastload
from fastload.late import opener
from fastload.profiling.dominant import dominant, remedy_for
from fastload.profiling.workers import stages_of

# Half is not enough, and the dataset's own code, collation and opening are no transforms.
DOMINANT: list[tuple[dict[str, float], tuple[str, float] | None]] = [
    ({"GaussianBlur": 36.0, "RandomResizedCrop": 2.0, "collate": 0.5, "sample": 1.5}, ("GaussianBlur", 0.9)),
    ({}, None),
    ({"sample": 3.0, "GaussianBlur": 2.0}, None),
    ({"GaussianBlur": 2.0, "ColorJitter": 2.0}, None),
    ({"collate": 3.0, "GaussianBlur": 2.0}, None),
    ({"open": 3.0, "GaussianBlur": 2.0}, None),
    ({"PIL.Image.open": 3.0, "GaussianBlur": 2.0}, None),
]


@pytest.mark.parametrize(("stages", "expected"), DOMINANT)
def test_a_transform_that_takes_more_than_half_of_a_sample_is_named_with_its_share(stages, expected):
    assert dominant(stages) == expected


# -- what is measured --------------------------------------------------------------------------------------------------


class Sorts(nn.Module):
    """A transform that takes longer than the shortest stage that is recorded."""

    def forward(self, image: Any) -> Any:
        torch.rand(10_000).sort()
        return image


IMAGE = torch.rand(3, 8, 8)


def measured(
    transform: Callable[[Any], Any], image: Any = IMAGE, engine: Any = DataLoader, num_workers: int = 0
) -> dict[str, float]:
    """Return the stages of a dataset that calls a transform with the same image."""
    loader = engine(Made(40, lambda index: transform(image)), batch_size=4, num_workers=num_workers)
    with fastload.profile(level=2) as recorded:
        list(loader)
    tasks = [task for step in recorded.trace().ranks[0].steps[1:] for task in step.batch.tasks]
    return stages_of(tasks)


CONTAINERS = {
    "v1 RandomApply": v1.RandomApply([Sorts()], p=1.0),
    "v1 RandomChoice": v1.RandomChoice([Sorts()]),
    "v2 RandomOrder": v2.RandomOrder([Sorts()]),
    "Sequential": nn.Sequential(OrderedDict(transforms=Sorts())),
    "one in another": v2.RandomApply(nn.ModuleList([nn.Sequential(v2.Compose([Sorts()]))]), p=1.0),
}


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("compose", [v1.Compose, v2.Compose])
def test_within_containers_the_inner_transform_is_named(container: str, compose: Any):
    stages = measured(compose([CONTAINERS[container], nn.Identity()]))
    assert stages["Sorts"] > 0
    assert stages.keys() <= {"Sorts", "Identity", "collate", "sample"}


def test_containers_with_hooks_or_of_a_class_of_their_own_are_named_as_a_whole():
    class Mine(v1.RandomApply):
        pass

    hooked = nn.Sequential(Sorts())
    hooked.register_forward_hook(lambda *_: None)
    stages = measured(v1.Compose([Mine([Sorts()], p=1.0), hooked]))
    assert {"Mine", "Sequential"} <= stages.keys()
    assert "Sorts" not in stages


def test_transforms_of_albumentations_are_named_wherever_they_are_called():
    blur = albumentations.GaussianBlur((23, 23), p=1.0)
    pipeline = albumentations.Compose([albumentations.OneOf([blur], p=1.0)])
    image = np.zeros((200, 200, 3), np.uint8)
    stages = measured(lambda image: pipeline(image=image)["image"], image)
    assert stages["albumentations.GaussianBlur"] > 0
    with pytest.raises(KeyError, match="named arguments"):
        blur(image)


@pytest.mark.parametrize(
    ("engine", "decoder"),
    [
        (DataLoader, "PIL.decode"),
        pytest.param(
            fastload.DataLoader,
            "late.decode",
            marks=pytest.mark.skipif(opener.unavailable_reason() is not None, reason="images are not decoded late"),
        ),
    ],
)
def test_decoding_within_a_transform_is_a_stage_of_its_own(tmp_path: Path, engine: Any, decoder: str):
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(tmp_path / "a.jpg")
    crop = v1.Compose([v1.RandomCrop(48), v1.GaussianBlur(3), v1.ToTensor()])
    stages = measured(lambda path: crop(Image.open(path)), tmp_path / "a.jpg", engine, num_workers=1)
    assert stages[decoder] > 0
    assert stages["GaussianBlur"] > 0


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        ("late.decode", "fastload pack stores"),
        ("video.decode", "a frame is decoded from the key frame before it on"),
        ("GaussianBlur", "torchvision's GaussianBlur(23)"),
    ],
)
def test_what_helps_is_said_of_the_stage_that_takes_most(stage: str, words: str):
    assert (remedy_for(stage) or "").startswith(words)
    assert remedy_for("Mine") is None
