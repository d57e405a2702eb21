"""Automatic policies: torchvision's operations, ranges and signs, drawn for each sample."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torchvision.transforms.v2 as T
from hypothesis import given
from hypothesis import strategies as st
from references import assert_near, coloured, many_params, random_images
from torchvision.transforms import InterpolationMode

from fastload.transforms import auto
from fastload.transforms.auto import OPERATIONS, RandAugment, TrivialAugmentWide
from fastload.transforms.base import BatchShape

MANY = 20_000
THEIRS = T.RandAugment()
interpolations = st.sampled_from(["nearest", "bilinear"])
fills = st.sampled_from([None, 0, 0.5, [0.2, 0.4, 0.6]])


def stepped(image, step, row, interpolation, fill):
    """Return what torchvision's own dispatch makes of an image, given a step."""
    name, magnitude = OPERATIONS[step["operation"][row]], step["magnitude"][row].item()
    mode = InterpolationMode(interpolation)
    return THEIRS._apply_image_or_video_transform(image, name, magnitude, interpolation=mode, fill={torch.Tensor: fill})


def tolerance(images):
    # Sampling at places that are 1e-6 apart; and steps amplify the errors of those before.
    return 0.0 if images.dtype == torch.uint8 else 1e-4


@given(
    images=coloured(dtypes=(torch.uint8, torch.float32), channels=(3,), most=12),
    num_ops=st.integers(0, 3),
    magnitude=st.integers(0, 30),
    interpolation=interpolations,
    fill=fills,
    seed=st.integers(0, 2**32),
)
def test_rand_augmented_samples_are_torchvisions(images, num_ops, magnitude, interpolation, fill, seed):
    before = images.clone()
    transform = RandAugment(num_ops, magnitude, interpolation=interpolation, fill=fill)
    found, params = transform(images, generator=torch.Generator().manual_seed(seed), return_params=True)
    assert torch.equal(images, before)
    assert len(params["steps"]) == num_ops
    for row, image in enumerate(images):
        expected = image.contiguous()
        for step in params["steps"]:
            expected = stepped(expected, step, row, interpolation, fill)
        if images.dtype == torch.uint8:
            assert torch.equal(found[row], expected)
        elif not discontinuous(params["steps"], row):
            assert_near(found[row], expected, tolerance=1e-4)


def discontinuous(steps, row):
    """Whether an error of the last place may become a large one: a threshold comes after something that rounds."""
    names = [OPERATIONS[step["operation"][row]] for step in steps]
    return any(name in ("Posterize", "Solarize", "Equalize", "AutoContrast") for name in names[1:])


@given(
    images=coloured(dtypes=(torch.uint8, torch.float32), channels=(1, 3), most=12),
    interpolation=interpolations,
    fill=st.sampled_from([None, 0, 0.5]),
    seed=st.integers(0, 2**32),
)
def test_trivially_augmented_samples_are_torchvisions(images, interpolation, fill, seed):
    transform = TrivialAugmentWide(interpolation=interpolation, fill=fill)
    found, params = transform(images, generator=torch.Generator().manual_seed(seed), return_params=True)
    expected = [stepped(image.contiguous(), params, row, interpolation, fill) for row, image in enumerate(images)]
    assert_near(found, torch.stack(expected), tolerance=tolerance(images))


@pytest.mark.parametrize("size", [(16, 16), (17, 40), (1, 5)])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_every_magnitude_of_every_geometric_operation_is_torchvisions(size, interpolation):
    height, width = size
    cases = [
        (operation, sign * magnitude)
        for table in (
            auto.magnitudes_of(16, 0.99, (32.0, 32.0), 135.0, 0.99, bits=(8, 2)),
            auto.magnitudes_of(10, 0.3, (width / 3.0, height / 3.0), 30.0, 0.9, bits=(4, 0)),
            auto.magnitudes_of(7, 0.5, (5.5, 7.25), 180.0, 0.9, bits=(4, 0)),
        )
        for operation in range(1, 6)
        for magnitude in table[operation]
        for sign in (1, -1)
    ]
    operations, magnitudes = (np.array(column) for column in zip(*cases, strict=True))
    images = random_images((len(cases), 3, height, width), torch.uint8, 0)
    transform = TrivialAugmentWide(interpolation=interpolation)
    step = transform._step(operations, magnitudes, BatchShape(len(cases), 3, height, width))
    found = transform(images, params=step)
    expected = [stepped(image, step, row, interpolation, None) for row, image in enumerate(images)]
    assert torch.equal(found, torch.stack(expected))


def magnitudes_of(theirs, space, bins, height, width, chosen):
    """Return {name: magnitudes that can be drawn}, signs included."""
    found = {}
    for name, (function, signed) in space.items():
        values = function(bins, height, width)
        values = [0.0] if values is None else [float(values[place]) for place in chosen]
        found[name] = {sign * value for value in values for sign in ((1, -1) if signed else (1,))}
    return found


@pytest.mark.parametrize(
    ("transform", "space", "bins", "chosen"),
    [
        (RandAugment(1), T.RandAugment._AUGMENTATION_SPACE, 31, [9]),
        (RandAugment(1, 3, 5), T.RandAugment._AUGMENTATION_SPACE, 5, [3]),
        (TrivialAugmentWide(), T.TrivialAugmentWide._AUGMENTATION_SPACE, 31, range(31)),
        (TrivialAugmentWide(4), T.TrivialAugmentWide._AUGMENTATION_SPACE, 4, range(4)),
    ],
)
def test_operations_and_magnitudes_are_those_of_torchvision_and_as_likely(transform, space, bins, chosen):
    params = many_params(transform)
    step = params["steps"][0] if "steps" in params else params
    found = {}
    for operation, magnitude in zip(step["operation"].tolist(), step["magnitude"].tolist(), strict=True):
        found.setdefault(OPERATIONS[operation], []).append(magnitude)
    expected = magnitudes_of(transform, space, bins, 20, 30, chosen)
    assert found.keys() == expected.keys()
    share = MANY / len(expected)
    # chi-square with 13 degrees of freedom: 34.5 is its 0.1 % point, and the draws are always the same.
    assert sum((len(values) - share) ** 2 / share for values in found.values()) < 34.5
    for name, values in found.items():
        assert set(values) == expected[name]
        if len(expected[name]) > 1 and min(expected[name]) < 0:
            signs = np.sign([value for value in values if value])
            assert abs(signs.mean()) < 4 / math.sqrt(len(signs))
        magnitudes, counts = np.unique(np.abs(values), return_counts=True)
        if len(magnitudes) > 1 and name != "Posterize":  # whose bins are rounded to the same bits
            assert counts.max() / counts.min() < 3


def test_operations_of_the_steps_are_independent():
    first, second = many_params(RandAugment())["steps"]
    counts = np.zeros((14, 14))
    np.add.at(counts, (first["operation"].numpy(), second["operation"].numpy()), 1)
    expected = MANY / 196
    assert ((counts - expected) ** 2 / expected).sum() < 263  # 195 degrees of freedom, 0.1 %
