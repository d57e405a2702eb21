"""Compose: the members' parameters and results, in fewer passes; labels; and the names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fastload import ConfigError, transforms
from fastload.transforms import (
    ColorJitter,
    Compose,
    CutMix,
    Draws,
    MixUp,
    Normalize,
    RandomCrop,
    RandomErasing,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    ToDtype,
)

KEY = bytes(range(16))
MOMENTS = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


def images(num: int = 6, height: int = 12, width: int = 10) -> Tensor:
    return torch.randint(0, 256, (num, 3, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def draws(num: int = 6) -> Draws:
    return Draws(KEY, np.arange(num, dtype=np.int64))


MEMBERS: dict[str, Any] = {
    "crop": lambda: RandomCrop(8, padding=2),
    "flip": RandomHorizontalFlip,
    "up": RandomVerticalFlip,
    "resized": lambda: RandomResizedCrop(9),
    "jitter": lambda: ColorJitter(0.4, 0.4, 0.4),
    "gray": lambda: RandomGrayscale(0.3),
    "erase": lambda: RandomErasing(0.5, scale=(0.05, 0.2)),
}


@settings(max_examples=40)
@given(names=st.lists(st.sampled_from(list(MEMBERS)), min_size=1, max_size=5), num=st.integers(1, 5))
def test_the_result_is_that_of_the_members_one_after_the_other(names, num):
    composed = Compose([MEMBERS[name]() for name in names])
    changed, params = composed(images(num), draws=draws(num), return_params=True)
    expected = images(num)
    for member, its_params in zip(composed.transforms, params.values(), strict=True):
        expected = member(expected, params=its_params)
    assert torch.equal(changed, expected)
    assert torch.equal(composed(images(num), params=params), changed)


def test_a_member_draws_the_same_whatever_stands_beside_it():
    _, alone = Compose([RandomCrop(8, padding=2)])(images(), draws=draws(), return_params=True)
    _, beside = Compose([RandomGrayscale(), RandomHorizontalFlip(), RandomCrop(8, padding=2)])(
        images(), draws=draws(), return_params=True
    )
    _, by_itself = RandomCrop(8, padding=2)(images(), draws=draws(), return_params=True)
    for name, value in alone["RandomCrop"].items():
        assert torch.equal(value, beside["RandomCrop"][name])
        assert torch.equal(value, by_itself[name])


def test_two_of_a_kind_have_names_and_draws_of_their_own():
    _, params = Compose([RandomHorizontalFlip(), RandomHorizontalFlip()])(
        images(40), draws=draws(40), return_params=True
    )
    assert list(params) == ["RandomHorizontalFlip", "RandomHorizontalFlip 2"]
    assert not torch.equal(params["RandomHorizontalFlip"]["flip"], params["RandomHorizontalFlip 2"]["flip"])


def test_a_compose_inside_of_another_is_taken_apart():
    flat = Compose([RandomHorizontalFlip(), RandomCrop(8), RandomHorizontalFlip()])
    nested = Compose([Compose([RandomHorizontalFlip(), RandomCrop(8)]), RandomHorizontalFlip()])
    assert torch.equal(flat(images(), draws=draws()), nested(images(), draws=draws()))
    assert {type(module) for module in flat.modules()} >= {Compose, RandomHorizontalFlip, RandomCrop}


def test_conversion_and_normalisation_are_one_pass_within_the_stated_tolerance():
    composed = Compose([RandomHorizontalFlip(), ToDtype(torch.float32, scale=True), Normalize(*MOMENTS)])
    changed, params = composed(images(), draws=draws(), return_params=True)
    expected = images()
    for member, its_params in zip(composed.transforms, params.values(), strict=True):
        expected = member(expected, params=its_params)
    assert (changed - expected).abs().max() < 1e-6 * (1 + 0.6) / 0.2
    assert "in one pass: ToDtype + Normalize" in repr(composed)
    last = Compose([*composed.transforms], layout="NHWC")(images().permute(0, 2, 3, 1).contiguous(), draws=draws())
    assert torch.equal(last.permute(0, 3, 1, 2), changed)
    floats = Compose([ToDtype(torch.float32, scale=True), Normalize(*MOMENTS)])
    assert torch.equal(floats(images() / 255), Normalize(*MOMENTS)(images() / 255))


@pytest.mark.parametrize("mix", [MixUp, CutMix])
def test_labels_are_mixed_as_the_images_are(mix):
    composed = Compose([RandomHorizontalFlip(), ToDtype(torch.float32, scale=True), mix(num_classes=6)])
    labels = torch.arange(6)
    changed, soft, params = composed(images(), labels, draws=draws(), return_params=True)
    flipped = ToDtype(torch.float32, scale=True)(
        RandomHorizontalFlip()(images(), params=params["RandomHorizontalFlip"])
    )
    expected, expected_soft = mix(num_classes=6)(flipped, labels, params=params[mix.__name__])
    assert torch.equal(changed, expected)
    assert torch.equal(soft, expected_soft)
    assert torch.allclose(soft.sum(1), torch.ones(6))
    with pytest.raises(TypeError, match=f"{mix.__name__} mixes labels .* call with"):
        composed(images())


def test_labels_that_nobody_mixes_come_back_as_they_are():
    labels = torch.arange(6)
    changed, same = Compose([RandomHorizontalFlip()])(images(), labels)
    assert same is labels
    assert changed.shape == images().shape


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([], "needs at least one transform"),
        (None, "takes a list of transforms, got None"),
        (RandomHorizontalFlip(), r"takes a list of transforms, got RandomHorizontalFlip\(p=0.5\); put it in brackets"),
        ([torch.nn.ReLU()], r"takes batched transforms of fastload's, got ReLU\(\) at place 0"),
        ([RandomHorizontalFlip(), "flip"], "got 'flip' at place 1"),
        ([RandomHorizontalFlip(), RandomCrop(3, layout="NHWC")], "must be of one layout"),
    ],
)
def test_bad_members_are_clear_errors(members, message):
    with pytest.raises(ConfigError, match=message):
        Compose(members)


def test_every_public_transform_can_be_imported_and_says_what_it_does():
    for name in transforms.__all__:
        value = getattr(transforms, name)
        assert value.__doc__
        assert name in dir(transforms)
    with pytest.raises(AttributeError, match="RandomCorp"):
        transforms.RandomCorp  # noqa: B018
