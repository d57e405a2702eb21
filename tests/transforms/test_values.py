"""Dtypes, ranges and moments, as torchvision has them."""

from __future__ import annotations

import pytest
import torch
import torchvision.transforms.v2.functional as F
from hypothesis import given
from hypothesis import strategies as st
from references import DTYPES, EXACT, assert_near, coloured, random_images

from fastload.transforms.values import Normalize, ToDtype, ToNormalized

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
numbers = st.floats(-2, 2).filter(lambda number: abs(number) > 0.01)


@given(images=coloured(dtypes=EXACT, channels=(1, 2, 3)), dtype=st.sampled_from(EXACT), scale=st.booleans())
def test_conversions_are_torchvisions(images, dtype, scale):
    before = images.clone()
    found = ToDtype(dtype, scale=scale)(images)
    assert torch.equal(images, before)
    assert found.dtype == dtype
    assert torch.equal(found, F.to_dtype(images, dtype, scale=scale))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_conversions_of_half_precision_are_rounded_once(dtype):
    levels = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    halves = ToDtype(dtype, scale=True)(levels)
    assert torch.equal(halves, (levels.float() / 255).to(dtype))
    assert_near(halves, F.to_dtype(levels, dtype, scale=True))
    assert torch.equal(ToDtype(torch.uint8, scale=True)(halves), F.to_dtype(halves.float(), torch.uint8, scale=True))
    assert ToDtype(torch.uint8, scale=True)(torch.ones(1, 1, 1, 1, dtype=dtype)).item() == 255
    assert torch.equal(ToDtype(dtype)(levels), levels.to(dtype))


@given(
    images=coloured(dtypes=DTYPES[1:], channels=(3,)),
    moments=st.tuples(*[st.tuples(*[numbers] * 3)] * 2),
)
def test_normalisation_is_torchvisions(images, moments):
    mean, std = moments
    before = images.clone()
    found = Normalize(mean, std)(images)
    assert torch.equal(images, before)
    if images.dtype in EXACT:
        assert torch.equal(found, F.normalize(images, list(mean), list(std)))
    else:
        assert found.dtype == images.dtype
        assert torch.equal(found, F.normalize(images.float(), list(mean), list(std)).to(images.dtype))


@given(images=coloured(dtypes=EXACT, channels=(3,)), moments=st.tuples(*[st.tuples(*[numbers] * 3)] * 2))
def test_both_at_once_are_both_one_after_the_other(images, moments):
    mean, std = moments
    before = images.clone()
    found = ToNormalized(mean, std)(images)
    assert torch.equal(images, before)
    assert found.dtype == torch.float32
    expected = F.normalize(F.to_dtype(images, torch.float64, scale=True), list(mean), list(std)).float()
    limit = max(1e-6 * (1 + abs(one)) / abs(other) for one, other in zip(mean, std, strict=True))
    assert_near(found, expected, tolerance=limit)


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_both_at_once_give_any_dtype(dtype):
    images = random_images((2, 3, 5, 6), torch.uint8, 0)
    found = ToNormalized(MEAN, STD, dtype)(images)
    assert found.dtype == dtype
    exact = F.normalize(images.double() / 255, list(MEAN), list(STD))
    assert (found.double() - exact).abs().max() <= 4 * torch.finfo(dtype).eps


@pytest.mark.parametrize("make", [lambda: Normalize([0.5], [0.25]), lambda: ToNormalized([0.5], [0.25])])
def test_one_moment_may_serve_all_channels(make):
    images = random_images((2, 4, 5, 6), torch.float32, 0)
    torch.testing.assert_close(make()(images), (images - 0.5) / 0.25)


def test_a_mean_for_each_channel_and_one_deviation_are_enough():
    images = random_images((2, 3, 5, 6), torch.float32, 0)
    assert torch.equal(Normalize(MEAN, [0.5])(images), F.normalize(images, list(MEAN), [0.5]))
