"""A blur with a deviation for each sample is torchvision's for that sample."""

from __future__ import annotations

import pytest
import torch
import torchvision.transforms.v2.functional as F
from hypothesis import given
from hypothesis import strategies as st
from references import assert_near, coloured, random_images, sample_by_sample

from fastload.transforms import GaussianBlur, color
from fastload.transforms.color import gaussian_blur

sides = st.sampled_from([1, 3, 5, 9])


@given(images=coloured(sides=(5, 40), channels=(1, 2, 3)), size=st.tuples(sides, sides), seed=st.integers(0, 2**32))
def test_each_sample_is_what_torchvision_makes_of_it(images, size, seed):
    before = images.clone()
    sigmas = torch.rand(len(images), generator=torch.Generator().manual_seed(seed)) * 3 + 0.1
    found = gaussian_blur(images, sigmas, kernel_size=size)
    assert torch.equal(images, before)
    expected = sample_by_sample(lambda image, sigma: F.gaussian_blur(image, list(size), [sigma] * 2), images, sigmas)
    assert_near(found, expected, tolerance=1.0 if images.dtype == torch.uint8 else None)
    assert torch.equal(GaussianBlur(size)(images, params={"sigma": sigmas}), found)
    # Only a mean halfway between two levels may be rounded to the other one.
    assert (found != expected).double().mean() < 0.01 or images.dtype != torch.uint8


def test_deviations_of_the_two_directions_may_differ():
    images = random_images((3, 3, 12, 15), torch.float32, 0)
    sigmas = torch.tensor([[0.5, 2.0], [1.0, 1.0], [3.0, 0.2]])
    found = gaussian_blur(images, sigmas, kernel_size=(5, 7))
    expected = [F.gaussian_blur(image, [5, 7], sigma.tolist()) for image, sigma in zip(images, sigmas, strict=True)]
    assert_near(found, torch.stack(expected))


@pytest.mark.parametrize("size", [(1, 1), (3, 5), (9, 1)])
def test_the_way_of_a_gpu_gives_the_same(size):
    images = random_images((3, 2, 12, 15), torch.float64, 0)
    taps = torch.rand(3, 5, dtype=torch.float64)
    for dim in (2, 3):
        torch.testing.assert_close(color._along_by_convolution(images, dim, taps), color._along(images, dim, taps))
