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


def test_a_transform_that_takes_more_than_half_of_a_sample_is_named_with_its_share():
    found = dominant({"GaussianBlur": 36.0, "RandomResizedCrop": 2.0, "collate": 0.5, "sample": 1.5})
    assert found is not None
    assert found == ("GaussianBlur", 0.9)
    assert (remedy_for("GaussianBlur") or "").startswith("torchvision's GaussianBlur(23) of 224 x 224 pixels: cv2.Gau")


@pytest.mark.parametrize(("stage", "remedy"), [("Mine", None), ("late.decode", "fastload pack stores")])
def test_a_remedy_is_known_if_it_was_measured_and_for_decoders_a_pack(stage, remedy):
    found = remedy_for(stage)
    assert (found and found[:20]) == remedy


@pytest.mark.parametrize(
    "stages",
    [
        {},
        {"sample": 3.0},
        {"sample": 3.0, "GaussianBlur": 2.0},
        {"GaussianBlur": 2.0, "ColorJitter": 2.0},
        {"collate": 3.0, "GaussianBlur": 2.0},
        {"open": 3.0, "GaussianBlur": 2.0},
        {"PIL.Image.open": 3.0, "GaussianBlur": 2.0},
    ],
)
def test_half_is_not_enough_and_the_datasets_own_code_collation_and_opening_are_no_transforms(stages):
    assert dominant(stages) is None


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


def test_containers_make_the_same_with_and_without_being_recorded():
    pipeline = v1.Compose(
        [
            v1.RandomApply([v1.RandomHorizontalFlip(0.5)], p=0.5),
            v1.RandomChoice([v1.RandomVerticalFlip(0.5), nn.Sequential(v1.RandomErasing(0.9), v1.RandomInvert(0.5))]),
            v2.RandomOrder([v1.RandomHorizontalFlip(0.5), v2.RandomErasing(0.5)]),
        ]
    )
    loader = fastload.DataLoader(Made(40, lambda index: pipeline(IMAGE)), batch_size=4, seed=1)
    plain = list(loader)
    loader.set_epoch(0)
    with fastload.profile(loader, level=2):
        recorded = list(loader)
    assert len({batch.sum().item() for batch in plain}) == len(plain)
    assert all(torch.equal(*pair) for pair in zip(plain, recorded, strict=True))


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
