"""Random colours: each sample has its own parameters, torchvision's distributions, and torchvision's result."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
import torchvision.transforms.v2 as T
import torchvision.transforms.v2.functional as F
from hypothesis import example, given
from hypothesis import strategies as st
from references import assert_near, assert_same_distribution, coloured, many_params, random_images

from fastload.transforms.jitter import (
    ColorJitter,
    GaussianBlur,
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomEqualize,
    RandomGrayscale,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
)

NAMES = ("brightness", "contrast", "saturation", "hue")
MANY = 20_000

SOMETIMES = [
    (RandomGrayscale(), lambda image: F.rgb_to_grayscale(image, image.shape[0])),
    (RandomInvert(), F.invert),
    (RandomEqualize(), F.equalize),
    (RandomAutocontrast(), F.autocontrast),
    (RandomSolarize(0.4), lambda image: F.solarize(image, 0.4)),
    (RandomPosterize(3), lambda image: F.posterize(image, 3)),
    (RandomAdjustSharpness(1.7), lambda image: F.adjust_sharpness(image, 1.7)),
]


def in_order(params, row):
    """Return the operations of a sample, in their order."""
    operations = [NAMES[kind] for kind in params["order"][row].tolist()]
    if "hue" in params:
        operations.insert(int(params["before_hue"][row]), "hue")
    return operations


def jittered(images, params):
    """Return what torchvision's functions make of the images, given the parameters."""
    changed = []
    for row, image in enumerate(images):
        for name in in_order(params, row):
            image = getattr(F, f"adjust_{name}")(image.contiguous(), params[name][row].item())
        changed.append(image)
    return torch.stack(changed)


def has_tie(images, params):
    """Whether a blend gives a value that is an integer but for the rounding of a float32.

    torch's sum of two products is rounded once or twice, depending on where a pixel lies in memory, so that torchvision
    itself makes 84 or 85 of pixels that are equal.
    """
    for row, image in enumerate(images):
        for name in in_order(params, row):
            factor = params[name][row].item()
            if name in ("contrast", "saturation"):
                other = F.rgb_to_grayscale(image) if len(image) == 3 else image
                other = other.double().mean() if name == "contrast" else other.double()
                exact = image.double() * factor + (1 - factor) * other
                if ((exact - exact.round()).abs() < 1e-4).any():
                    return True
            image = getattr(F, f"adjust_{name}")(image.contiguous(), factor)
    return False


@given(
    images=coloured(dtypes=(torch.uint8, torch.float32, torch.float64), most=12),
    used=st.tuples(*[st.booleans()] * 4),
    seed=st.integers(0, 2**32),
)
@example(
    images=torch.tensor([[[[0, 170, 85, 0, 170]]]], dtype=torch.uint8),
    used=(False, True, False, False),
    seed=20232211,
)
def test_jittered_samples_are_what_torchvision_makes_of_them(images, used, seed):
    before = images.clone()
    transform = ColorJitter(*(reach if use else None for reach, use in zip((0.8, 0.8, 0.8, 0.5), used, strict=True)))
    generator = torch.Generator().manual_seed(seed)
    found, params = transform(images, generator=generator, return_params=True)
    assert torch.equal(images, before)
    expected = jittered(images, params)
    if images.dtype == torch.uint8:
        assert torch.equal(found, expected) or has_tie(images, params)
    else:
        # A hue that is near to a boundary of sectors turns an error of the last place of a float into no larger one.
        assert_near(found, expected, tolerance=1e-4)


def test_all_orders_are_as_likely():
    params = many_params(ColorJitter(0.4, 0.4, 0.4, 0.1))
    orders = torch.cat([params["order"], params["before_hue"][:, None]], dim=1).tolist()
    counts = Counter(map(tuple, orders))
    assert len(counts) == 24
    expected = MANY / 24
    # chi-square with 23 degrees of freedom: 49.7 is its 0.1 % point, and the orders are always the same.
    assert sum((count - expected) ** 2 / expected for count in counts.values()) < 49.7


def test_orders_of_some_operations_are_as_likely():
    counts = Counter(map(tuple, many_params(ColorJitter(0.4, saturation=0.4))["order"].tolist()))
    assert set(counts) == {(0, 2), (2, 0)}
    assert abs(counts[0, 2] / MANY - 0.5) < 0.015


def test_each_blend_is_done_once():
    params = many_params(ColorJitter(0.4, 0.4, 0.4, 0.1), 50)
    for turn in range(3):
        both = torch.cat([params["rows_before"][turn], params["rows_after"][turn]])
        assert sorted(both.tolist()) == list(range(50))
        assert (params["before_hue"][params["rows_before"][turn]] > turn).all()


def test_factors_have_torchvisions_distribution():
    ranges = {"brightness": 0.4, "contrast": (0.5, 3.0), "saturation": 1.5, "hue": (-0.1, 0.3)}
    params = many_params(ColorJitter(**ranges))
    torch.manual_seed(0)
    theirs = T.ColorJitter(**ranges)
    expected = [theirs.make_params([]) for _ in range(5000)]
    for name in NAMES:
        assert params[name].dtype == torch.float32
        assert_same_distribution(params[name], [one[f"{name}_factor"] for one in expected])
    # And they have nothing to do with each other.
    together = np.corrcoef([params[name].numpy() for name in NAMES])
    assert np.abs(together - np.eye(4)).max() < 0.03


def test_a_factor_does_not_depend_on_what_else_is_jittered():
    everything, one = many_params(ColorJitter(0.4, 0.4, 0.4, 0.1), 9), many_params(ColorJitter(hue=0.1), 9)
    assert torch.equal(everything["hue"], one["hue"])


@pytest.mark.parametrize("value", [None, 0, 0.0, (1, 1)])
def test_a_range_that_changes_nothing_draws_nothing(value):
    transform = ColorJitter(brightness=value)
    assert transform.brightness is None
    images = random_images((3, 3, 4, 4), torch.float32, 0) * 2
    found, params = transform(images, return_params=True)
    assert torch.equal(found, images)
    assert "brightness" not in params


@pytest.mark.parametrize(
    "arguments", [(0.5,), (1.5,), ((0.3, 0.9),), (None, None, None, 0.5), (None, None, None, (0.1, 0.2))]
)
def test_ranges_are_torchvisions(arguments):
    ours, theirs = ColorJitter(*arguments), T.ColorJitter(*arguments)
    assert [getattr(ours, name) for name in NAMES] == [getattr(theirs, name) for name in NAMES]


def test_deviations_have_torchvisions_distribution():
    torch.manual_seed(0)
    theirs = T.GaussianBlur(3)
    expected = [theirs.make_params([])["sigma"][0] for _ in range(5000)]
    assert_same_distribution(many_params(GaussianBlur(3))["sigma"], expected)
    assert set(many_params(GaussianBlur(3, 1.5), 5)["sigma"].tolist()) == {1.5}


@pytest.mark.parametrize(("transform", "function"), SOMETIMES, ids=lambda value: type(value).__name__)
@given(images=coloured(dtypes=(torch.float32,), most=9), seed=st.integers(0, 2**32))
def test_chosen_samples_are_changed_and_the_others_are_not(transform, function, images, seed):
    before = images.clone()
    found, params = transform(images, generator=torch.Generator().manual_seed(seed), return_params=True)
    assert torch.equal(images, before)
    assert params["rows"].tolist() == params["chosen"].nonzero().flatten().tolist()
    expected = torch.stack(
        [
            function(image.contiguous()) if chosen else image
            for image, chosen in zip(images, params["chosen"].tolist(), strict=True)
        ]
    )
    assert_near(found, expected)


@pytest.mark.parametrize(("transform", "function"), SOMETIMES, ids=lambda value: type(value).__name__)
def test_samples_are_chosen_with_the_probability_given(transform, function):
    share = many_params(transform)["chosen"].double().mean().item()
    assert abs(share - transform.p) < 0.015


def test_probabilities_of_none_and_all_are_exact():
    images = random_images((6, 3, 4, 4), torch.uint8, 0)
    assert torch.equal(RandomInvert(0)(images), images)
    assert torch.equal(RandomInvert(1)(images), ~images)
    assert RandomInvert(0)(images).data_ptr() != images.data_ptr()
