"""Colour operations with a factor for each sample are torchvision's for that sample."""

from __future__ import annotations

import pytest
import torch
import torchvision.transforms.v2.functional as F
from hypothesis import given
from hypothesis import strategies as st
from references import EXACT, assert_near, coloured, random_images, sample_by_sample

from fastload.transforms import GaussianBlur, color


def factors_for(images, seed):
    generator = torch.Generator().manual_seed(seed)
    factors = torch.rand(len(images), generator=generator) * 2.5
    factors[torch.rand(len(images), generator=generator) < 0.1] = 0.0
    factors[torch.rand(len(images), generator=generator) < 0.1] = 1.0
    return factors


def turns_for(images, seed):
    return (factors_for(images, seed) / 2.5 - 0.5).clamp(-0.5, 0.5)


def thresholds_for(images, seed):
    thresholds = factors_for(images, seed) / 2.5
    return thresholds * 255 if images.dtype == torch.uint8 else thresholds


def bits_for(images, seed):
    return torch.randint(0, 9, (len(images),), generator=torch.Generator().manual_seed(seed))


WITH_FACTORS = {
    "adjust_brightness": factors_for,
    "adjust_contrast": factors_for,
    "adjust_saturation": factors_for,
    "adjust_sharpness": factors_for,
    "adjust_hue": turns_for,
    "solarize": thresholds_for,
    "posterize": bits_for,
}
KINDS = ("adjust_brightness", "adjust_contrast", "adjust_saturation")
WITHOUT = ("invert", "autocontrast", "equalize", "rgb_to_grayscale")


def function_of(name):
    """Return the function of a name of torchvision's; three of them are kinds of one."""
    if name not in KINDS:
        return getattr(color, name)
    return lambda images, factors: color.blend(images, torch.full((len(images),), KINDS.index(name)), factors)


def arguments_for(name, images, seed):
    return (WITH_FACTORS[name](images, seed),) if name in WITH_FACTORS else ()


@pytest.mark.parametrize("name", [*WITH_FACTORS, *WITHOUT])
@given(images=coloured(), seed=st.integers(0, 2**32))
def test_each_sample_is_what_torchvision_makes_of_it(name, images, seed):
    before = images.clone()
    values = arguments_for(name, images, seed)
    found = function_of(name)(images, *values)
    assert torch.equal(images, before)
    if name in ("equalize", "autocontrast") and images.dtype not in EXACT:
        # torchvision's roundings in half precision are amplified, and its 1.0 becomes level 0.
        expected = sample_by_sample(getattr(F, name), images.float(), *values).to(images.dtype)
    else:
        expected = sample_by_sample(getattr(F, name), images, *values)
    assert_near(found, expected)


@given(images=coloured(dtypes=(torch.float32, torch.float64)), seed=st.integers(0, 2**32))
def test_floats_beyond_one_are_clamped_where_torchvision_clamps_them(images, seed):
    images = images * 1.5
    for name in (
        "adjust_brightness",
        "adjust_contrast",
        "adjust_saturation",
        "adjust_sharpness",
        "posterize",
        "invert",
    ):
        values = arguments_for(name, images, seed)
        found = function_of(name)(images, *values)
        assert_near(found, sample_by_sample(getattr(F, name), images, *values))


@given(images=coloured(channels=(2, 4)))
def test_operations_without_colours_take_any_number_of_channels(images):
    bits = bits_for(images, 1)
    assert torch.equal(color.posterize(images, bits), sample_by_sample(F.posterize, images, bits))
    assert torch.equal(color.invert(images), sample_by_sample(F.invert, images))
    thresholds = thresholds_for(images, 1)
    assert torch.equal(color.solarize(images, thresholds), sample_by_sample(F.solarize, images, thresholds))


@given(images=coloured(dtypes=EXACT), turns=st.integers(0, 4), seed=st.integers(0, 2**32))
def test_blends_one_after_the_other_are_as_if_done_alone(images, turns, seed):
    kinds = torch.randint(0, 3, (len(images), turns), generator=torch.Generator().manual_seed(seed))
    factors = torch.rand(len(images), turns, generator=torch.Generator().manual_seed(seed)) * 2
    if images.dtype != torch.uint8:
        images = images * 1.5
    before, expected = images.clone(), images
    found = color.blend(images, kinds, factors)
    assert torch.equal(images, before)
    for turn in range(turns):
        expected = color.blend(expected, kinds[:, turn], factors[:, turn])
    assert torch.equal(found, expected)


@given(images=coloured())
def test_three_channels_of_grey_are_the_same(images):
    found = color.rgb_to_grayscale(images, num_output_channels=3)
    assert_near(found, sample_by_sample(lambda image: F.rgb_to_grayscale(image, 3), images))


def test_the_mean_of_many_pixels_is_at_most_one_level_apart():
    images = random_images((2, 3, 300, 400), torch.uint8, 3)
    factors = torch.tensor([0.3, 1.7])
    expected = sample_by_sample(F.adjust_contrast, images, factors)
    assert (function_of("adjust_contrast")(images, factors).int() - expected.int()).abs().max() <= 1


def test_every_threshold_and_number_of_bits_is_as_in_torchvision():
    images = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(520, -1, -1, -1)
    thresholds = torch.arange(520) / 2 - 4.5
    thresholds = thresholds.clamp(max=255)
    assert torch.equal(color.solarize(images, thresholds), sample_by_sample(F.solarize, images, thresholds))
    bits = torch.arange(9)
    assert torch.equal(color.posterize(images[:9], bits), sample_by_sample(F.posterize, images[:9], bits))


def test_every_grey_level_keeps_or_loses_the_level_that_it_does_in_torchvision():
    # Factor * level + (1 - factor) * level is the level, or a little less, which is cut off to the next.
    levels = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(200, 3, -1, -1)
    factors = torch.linspace(0, 2, 200)
    assert torch.equal(
        function_of("adjust_saturation")(levels, factors), sample_by_sample(F.adjust_saturation, levels, factors)
    )


# -- Blurs ----------------------------------------------------------------------------------------------------------

sides = st.sampled_from([1, 3, 5, 9])


@given(images=coloured(sides=(5, 40), channels=(1, 2, 3)), size=st.tuples(sides, sides), seed=st.integers(0, 2**32))
def test_a_blurred_sample_is_what_torchvision_makes_of_it(images, size, seed):
    before = images.clone()
    sigmas = torch.rand(len(images), generator=torch.Generator().manual_seed(seed)) * 3 + 0.1
    found = color.gaussian_blur(images, sigmas, kernel_size=size)
    assert torch.equal(images, before)
    expected = sample_by_sample(lambda image, sigma: F.gaussian_blur(image, list(size), [sigma] * 2), images, sigmas)
    assert_near(found, expected, tolerance=1.0 if images.dtype == torch.uint8 else None)
    assert torch.equal(GaussianBlur(size)(images, params={"sigma": sigmas}), found)
    # Only a mean halfway between two levels may be rounded to the other one.
    assert (found != expected).double().mean() < 0.01 or images.dtype != torch.uint8


def test_deviations_of_the_two_directions_may_differ():
    images = random_images((3, 3, 12, 15), torch.float32, 0)
    sigmas = torch.tensor([[0.5, 2.0], [1.0, 1.0], [3.0, 0.2]])
    found = color.gaussian_blur(images, sigmas, kernel_size=(5, 7))
    expected = [F.gaussian_blur(image, [5, 7], sigma.tolist()) for image, sigma in zip(images, sigmas, strict=True)]
    assert_near(found, torch.stack(expected))


@pytest.mark.parametrize("size", [(1, 1), (3, 5), (9, 1)])
def test_a_blur_in_the_way_of_a_gpu_gives_the_same(size):
    images = random_images((3, 2, 12, 15), torch.float64, 0)
    taps = torch.rand(3, 5, dtype=torch.float64)
    for dim in (2, 3):
        torch.testing.assert_close(color._along_by_convolution(images, dim, taps), color._along(images, dim, taps))
