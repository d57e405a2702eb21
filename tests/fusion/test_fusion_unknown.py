"""Unknown transforms get what they would have got, and the generators seeded as without fusion."""

from __future__ import annotations

import random

import numpy as np
import PIL.Image
import pytest
import torch
from fusion_tools import PIPELINES, cifar, folder, fused, same
from torch.utils.data import ConcatDataset
from torchvision import transforms as v1
from torchvision.transforms import v2

import fastload
from fastload.keys import seeding


class Seen:
    """Keeps what it gets."""

    def __init__(self):
        self.images = []

    def __call__(self, image):
        self.images.append(image)
        return image


@pytest.mark.parametrize(
    "steps",
    [
        [v1.RandomHorizontalFlip(1.0)],
        [v1.Resize(20), v1.CenterCrop(18)],
        [v1.CenterCrop(50), v1.RandomVerticalFlip(1.0)],  # pads some
        [v1.Resize((20, 21)), v1.ToTensor()],
        [v1.Resize((20, 21)), v1.PILToTensor()],
        [v1.ToTensor(), v1.CenterCrop(15), v1.Normalize([0.5], [0.5])],
        [v2.ToImage()],
        [v2.Resize((20, 21)), v2.ToImage(), v2.RandomHorizontalFlip(1.0)],
        [v2.ToImage(), v2.Resize((20, 21)), v2.ToDtype(torch.float32, scale=True)],
        [v2.ToImage(), v2.ToDtype(torch.float32), v2.ToPureTensor(), v2.Resize(20, antialias=True)],
    ],
)
@pytest.mark.parametrize("arrays", [True, False])
def test_it_gets_what_it_would_have_got(steps, arrays, tmp_path):
    seen = Seen()
    transform = v1.Compose([*steps, seen, v1.Lambda(lambda image: image)])
    dataset = cifar(transform) if arrays else folder(tmp_path, transform)
    one = fused(dataset)
    indices = range(len(dataset))
    one.load(indices, indices, 0)
    found, seen.images = seen.images, []
    for index in indices:
        dataset[index]
    assert len(found) == len(seen.images) == len(dataset)
    for mine, expected in zip(found, seen.images, strict=True):
        assert same(mine, expected, layout=True)
        if isinstance(mine, PIL.Image.Image):
            assert mine.info == expected.info


def drawing(image):
    return torch.tensor([random.random(), np.random.rand(), torch.rand(()).item()], dtype=torch.float64)


def test_generators_are_seeded_by_the_samples_key():
    dataset = cifar(v1.Compose([v1.RandomCrop(20), drawing]))
    one = fused(dataset, seed=3)
    loaded = one.load([4, 9], [4, 9 + (1 << 64)], 5)
    for image, identity in zip(loaded.images, [4, 9 + (1 << 64)], strict=True):
        seeding.seed_global_generators(seeding.Keys(3, 5, seeding.SAMPLE).key(identity))
        assert torch.equal(image, drawing(None))


def test_what_draws_first_draws_what_it_draws_in_the_unfused_loader():
    """Behind what draws from keys of its own, the user's transform finds its generators fresh."""
    dataset = cifar(v1.Compose([v1.CenterCrop(20), drawing]))
    loader = fastload.DataLoader(dataset, batch_size=4, shuffle=True, seed=11)
    expected, targets = next(iter(loader))
    one = fused(dataset, seed=11)
    indices = targets.tolist()
    assert torch.equal(torch.stack(one.load(indices, indices, 0).images), expected)


def test_the_caller_may_seed_other_generators():
    keys = []
    dataset = cifar(v1.Compose([v1.CenterCrop(20), drawing]))
    fused(dataset, seed=3).load([1, 2], [1, 2], 0, seed=keys.append)
    assert keys == [seeding.Keys(3, 0, seeding.SAMPLE).key(identity) for identity in (1, 2)]


def test_a_target_transform_is_kept_and_seeded():
    def noisy(target):
        return target + random.random()

    dataset = cifar(v1.Compose(PIPELINES["v1, pad"]), target_transform=noisy)
    one = fused(dataset, seed=1)
    assert one.plan.direct
    targets = one.load([3, 8], [3, 8], 2).targets
    for target, index in zip(targets, [3, 8], strict=True):
        seeding.seed_global_generators(seeding.Keys(1, 2, seeding.SAMPLE).key(index))
        assert target == index + random.random()


def test_nothing_is_seeded_where_nothing_of_the_users_is_called():
    keys = []
    fused(cifar(v1.Compose(PIPELINES["v1, pad"]))).load([1, 2], [1, 2], 0, seed=keys.append)
    assert keys == []


def test_parts_have_their_own_unknown_transforms():
    first, second = cifar(v1.Compose([v1.CenterCrop(20), abs_of])), cifar(v1.Compose([v1.CenterCrop(9), size_of]))
    one = fused(ConcatDataset([first, second]))
    assert [image for image, _ in one.load([0, 12, 1], [0, 12, 1], 0).samples()] == ["RGB", (9, 9), "RGB"]


def abs_of(image):
    return image.mode


def size_of(image):
    return image.size
