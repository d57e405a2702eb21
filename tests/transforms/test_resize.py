"""Resizing, against torchvision, by both ways."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from references import assert_near, batches, elsewhere, generators, keyed, made_images
from torchvision.transforms.v2 import InterpolationMode, functional
from torchvision.transforms.v2.functional import _geometry

from fastload.transforms.base import shape_of
from fastload.transforms.boxes import Boxes
from fastload.transforms.resampling import _in_integers, nearest_places, resample
from fastload.transforms.resize import RandomResizedCrop, Resize

# The other way computes as torch does in integers, and torchvision does not everywhere.
in_integers = pytest.mark.skipif(not _in_integers("bilinear"), reason="torchvision resizes in floats here")

SIZES = st.tuples(st.integers(1, 17), st.integers(1, 17))
SMOOTH = st.sampled_from(["bilinear", "bicubic"])
ANY = st.sampled_from(["nearest", "nearest-exact", "bilinear", "bicubic"])


def tolerance(images, interpolation="bilinear"):
    """Return how far the batched way may be from torch's kernel; see ``resample``."""
    steps = {
        torch.uint8: 3 if interpolation == "bicubic" else 2,
        torch.float64: 1e-12,
        torch.float32: 1e-5,
        torch.float16: 2e-3,
        torch.bfloat16: 1.6e-2,
    }
    return steps[images.dtype]


def resized(image, size, interpolation, antialias):
    """Return torchvision's result, on its side where torch's kernels are wrong: one pixel wide."""
    mode = InterpolationMode(interpolation)
    if is_narrow(image, size, interpolation):
        half = image.dtype != torch.float64
        wide = image.float() if half else image
        lying = functional.resize(wide.mT, list(size[::-1]), mode, antialias=antialias).mT
        return (lying.round().clamp(0, 255) if image.dtype == torch.uint8 else lying).to(image.dtype)
    return functional.resize(image, list(size), mode, antialias=antialias)


def is_narrow(image, size, interpolation):
    return 1 in (image.shape[-1], size[1]) and not interpolation.startswith("nearest")


def check(found, expected, image, size, interpolation):
    """Compare with torchvision: bit for bit where that is possible."""
    assert found.dtype == image.dtype
    if not is_narrow(image, size, interpolation):
        assert torch.equal(found, expected)
    elif interpolation == "bilinear" or image.dtype != torch.uint8:  # else what is rounded first is clipped, too
        assert_near(found, expected, tolerance=tolerance(image))


@given(images=batches(), size=SIZES, interpolation=ANY, antialias=st.booleans(), generator=generators())
def test_random_resized_crop_equals_torchvisions(images, size, interpolation, antialias, generator):
    transform = RandomResizedCrop(size, (0.05, 1.0), (0.3, 3.0), interpolation, antialias)
    found, params = transform(images, generator=generator, return_params=True)
    for sample, image in enumerate(images):
        part = functional.crop(image, *(params[name][sample].item() for name in ("top", "left", "height", "width")))
        check(found[sample], resized(part, size, interpolation, antialias), part, size, interpolation)
    if not interpolation.startswith("nearest"):
        batched = elsewhere(transform, images, params=params)
        assert_near(batched, found, tolerance=tolerance(images, interpolation))


@given(
    images=batches(),
    size=SIZES | st.integers(1, 17) | st.integers(1, 17).map(lambda side: [side]),
    interpolation=ANY,
    antialias=st.sampled_from([True, False, None]),
)
def test_resize_equals_torchvisions(images, size, interpolation, antialias):
    transform = Resize(size, interpolation, antialias=antialias)
    found = transform(images)
    nearest = InterpolationMode("nearest")
    after = tuple(functional.resize(images, list(size) if isinstance(size, tuple) else size, nearest).shape[2:])
    check(found, resized(images, after, interpolation, antialias), images, after, interpolation)
    assert found.data_ptr() != images.data_ptr()
    shape = shape_of(images)
    assert found.shape == transform.shape_after(shape)
    if interpolation.startswith("nearest"):
        assert torch.equal(elsewhere(transform, images, params={}), found)
    else:
        assert_near(elsewhere(transform, images, params={}), found, tolerance=tolerance(images, interpolation))


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("whole", [False, True])
def test_uint8_is_resized_in_integers_or_in_floats_as_torchvision_does_it(whole, interpolation, monkeypatch):
    # It decides otherwise in other versions, and with other processors.
    images = made_images(0, (2, 3, 30, 40), torch.uint8)
    monkeypatch.setattr(_geometry, "_do_native_uint8_resize_on_cpu", lambda interpolation: whole)
    _in_integers.cache_clear()
    try:
        found = Resize((20, 24), interpolation)(images)
    finally:
        _in_integers.cache_clear()
    assert torch.equal(found, functional.resize(images, [20, 24], InterpolationMode(interpolation)))


@pytest.mark.parametrize(
    ("size", "max_size", "sides"),
    [(5, 9, (8, 20)), (5, 30, (8, 20)), (None, 9, (8, 20)), (None, 30, (20, 8)), (7, 9, (5, 5))],
)
def test_the_longer_side_is_limited_as_in_torchvision(size, max_size, sides):
    images = made_images(0, (2, 3, *sides))
    expected = functional.resize(images, size, max_size=max_size)
    assert torch.equal(Resize(size, max_size=max_size)(images), expected)


@pytest.mark.parametrize("exact", [False, True])
def test_the_nearest_pixels_are_torchs(exact):
    name = "nearest-exact" if exact else "nearest"
    lengths = torch.arange(1, 90)
    for size in (1, 2, 3, 7, 32, 33, 50, 97, 224):
        places = nearest_places(lengths, size, exact)
        for length, row in zip(lengths.tolist(), places, strict=True):
            ramp = torch.arange(length, dtype=torch.float32).expand(1, 1, 2, -1)
            expected = torch.nn.functional.interpolate(ramp, (2, size), mode=name)[0, 0, 0]
            assert torch.equal(expected.long(), row)


@in_integers
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("antialias", [False, True])
def test_both_ways_agree_on_sizes_of_photographs(interpolation, antialias):
    images = made_images(3, (3, 3, 190, 260))
    transform = RandomResizedCrop((96, 112), interpolation=interpolation, antialias=antialias)
    params = transform.draw_for(keyed(3), shape_of(images))
    alone, batched = transform(images, params=params), elsewhere(transform, images, params=params)
    different = (alone != batched).double().mean().item()
    assert_near(batched, alone, tolerance=1)
    assert different < 0.02
    floats = images / 255
    alone, batched = transform(floats, params=params), elsewhere(transform, floats, params=params)
    assert_near(batched, alone)


def test_large_batches_are_resized_part_by_part(monkeypatch):
    images = made_images(3, (5, 3, 9, 8))
    boxes = Boxes(*(torch.tensor(values) for values in ([0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [5] * 5, [4] * 5)))
    expected = resample(images, boxes, (7, 6), "bilinear", True)
    monkeypatch.setattr("fastload.transforms.resampling._CHUNK", 2 * 3 * 9 * 8)
    assert torch.equal(resample(images, boxes, (7, 6), "bilinear", True), expected)
