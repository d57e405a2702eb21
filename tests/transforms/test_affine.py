"""Affine transforms and rotations, against torchvision."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from references import (
    batches,
    generators,
    halfway,
    keyed,
    made_images,
    one_by_one,
)
from torchvision.transforms.v2 import InterpolationMode, functional

from fastload.transforms.affine import RandomAffine, RandomRotation
from fastload.transforms.base import shape_of

HALVES = (torch.float16, torch.bfloat16)
TOLERANCES = {torch.uint8: 1, torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@st.composite
def settings_of(draw, channels):
    """Arguments that both transforms have."""
    number = st.floats(0, 1)
    return {
        "interpolation": draw(st.sampled_from(["nearest", "bilinear"])),
        "fill": draw(st.none() | st.just(0) | number | st.lists(number, min_size=channels, max_size=channels)),
        "center": draw(st.none() | st.lists(st.floats(-3, 12), min_size=2, max_size=2)),
    }


def check(images, transform, generator, reference):
    """Compare with a function of one image and its parameters."""
    found, params = transform(images, generator=generator, return_params=True)
    assert found.dtype == images.dtype
    assert found.shape == images.shape
    # torchvision's coordinates are in half precision where the images are.
    wide = images.float() if images.dtype in HALVES else images
    expected = one_by_one(wide, reference, params).to(images.dtype)
    far = (found.double() - expected.double()).abs() > TOLERANCES[images.dtype]
    if transform.interpolation == "nearest":
        far &= ~halfway(transform.matrix(params, shape_of(images), images.device), images)[:, None]
    assert not far.any()


@given(data=st.data(), generator=generators())
def test_random_affine_equals_torchvisions(data, generator):
    images = data.draw(batches())
    settings = data.draw(settings_of(images.shape[1]))
    transform = RandomAffine(
        180, data.draw(st.sampled_from([None, (0.3, 0.6)])), (0.4, 2), (-30, 40, -20, 10), **settings
    )

    def reference(image, angle, translate, scale, shear):
        mode = InterpolationMode(settings["interpolation"])
        return functional.affine(image, angle, translate, scale, shear, **{**settings, "interpolation": mode})

    check(images, transform, generator, reference)


@given(data=st.data(), generator=generators())
def test_random_rotation_equals_torchvisions(data, generator):
    images = data.draw(batches())
    settings = data.draw(settings_of(images.shape[1]))
    degrees = data.draw(st.sampled_from([180, (90, 90), (-90, -90), (180, 180), (0, 0), (30, 60)]))

    def reference(image, angle):
        mode = InterpolationMode(settings["interpolation"])
        return functional.rotate(image, angle, **{**settings, "interpolation": mode})

    check(images, RandomRotation(degrees, **settings), generator, reference)


@pytest.mark.parametrize("degrees", [0, 90, 180, 270, -90, 360])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
def test_quarter_turns_to_the_nearest_are_copies(degrees, dtype):
    for sides in ((8, 8), (7, 7), (224, 224), (5, 9)):
        images = made_images(0, (2, 3, *sides), dtype)
        found = RandomRotation((degrees, degrees))(images)
        assert torch.equal(found, functional.rotate(images, degrees, fill=0))


def test_large_batches_are_resampled_part_by_part(monkeypatch):
    images = made_images(3, (5, 3, 9, 8))
    transform = RandomAffine(90, (0.2, 0.2), fill=9, interpolation="bilinear")
    params = transform.draw_for(keyed(5), shape_of(images))
    expected = transform(images, params=params)
    monkeypatch.setattr("fastload.transforms.tensors.PART_SIZE", 2 * 3 * 9 * 8)
    assert torch.equal(transform(images, params=params), expected)
