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
from fastload.transforms.resampling import _in_integers
from fastload.transforms.resize import RandomResizedCrop, Resize

# The other way computes as torch does in integers, and torchvision does not everywhere.
in_integers = pytest.mark.skipif(not _in_integers("bilinear"), reason="torchvision resizes in floats here")

SIZES = st.tuples(st.integers(1, 17), st.integers(1, 17))
ANY = st.sampled_from(["nearest", "nearest-exact", "bilinear", "bicubic"])


# How far the batched way may be from torch's kernel, see ``resample``; uint8: for "bicubic" 3.
FAR = {torch.uint8: 2, torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def resized(image, size, interpolation, antialias):
    """Return torchvision's result, on its side where torch's kernels are wrong: one pixel wide."""
    mode = InterpolationMode(interpolation)
    if not is_narrow(image, size, interpolation):
        return functional.resize(image, list(size), mode, antialias=antialias)
    wide = image if image.dtype == torch.float64 else image.float()
    lying = functional.resize(wide.mT, list(size[::-1]), mode, antialias=antialias).mT
    return (lying.round().clamp(0, 255) if image.dtype == torch.uint8 else lying).to(image.dtype)


def is_narrow(image, size, interpolation):
    return 1 in (image.shape[-1], size[1]) and not interpolation.startswith("nearest")


def check(transform, images, found, params, pairs, interpolation):
    """Compare results with torchvision's, bit for bit where that is possible, and with those of the batched way.

    ``pairs``: what was made, what it was made of, and torchvision's result.
    """
    for made, source, expected in pairs:
        assert made.dtype == source.dtype
        if not is_narrow(source, made.shape[-2:], interpolation):
            assert torch.equal(made, expected)
        elif interpolation == "bilinear" or source.dtype != torch.uint8:  # else what is rounded first is clipped, too
            assert_near(made, expected, tolerance=FAR[source.dtype])
    batched = elsewhere(transform, images, params=params)
    if interpolation.startswith("nearest"):
        assert torch.equal(batched, found)
    else:
        is_more = interpolation == "bicubic" and images.dtype == torch.uint8
        assert_near(batched, found, tolerance=3 if is_more else FAR[images.dtype])


@given(
    images=batches(),
    size=SIZES,
    scale=st.tuples(st.floats(0, 2), st.floats(0, 2)).map(sorted) | st.just((0.05, 1.0)),
    ratio=st.tuples(st.floats(0.01, 20), st.floats(0.01, 20)).map(sorted) | st.just((0.3, 3.0)),
    interpolation=ANY,
    antialias=st.booleans(),
    generator=generators(),
)
def test_random_resized_crop_equals_torchvisions(images, size, scale, ratio, interpolation, antialias, generator):
    transform = RandomResizedCrop(size, scale, ratio, interpolation, antialias)
    found, params = transform(images, generator=generator, return_params=True)
    boxes = torch.stack([params[name] for name in ("top", "left", "height", "width")], dim=1).tolist()
    parts = [functional.crop(image, *box) for image, box in zip(images, boxes, strict=True)]
    expected = [resized(part, size, interpolation, antialias) for part in parts]
    check(transform, images, found, params, zip(found, parts, expected, strict=True), interpolation)


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
    expected = resized(images, after, interpolation, antialias)
    check(transform, images, found, {}, [(found, images, expected)], interpolation)
    assert found.data_ptr() != images.data_ptr()
    assert found.shape == transform.shape_after(shape_of(images))


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


@in_integers
@pytest.mark.parametrize("interpolation", ["nearest", "nearest-exact", "bilinear", "bicubic"])
@pytest.mark.parametrize("antialias", [False, True])
def test_both_ways_agree_on_sizes_of_photographs_and_where_a_batch_is_done_in_parts(
    interpolation, antialias, monkeypatch
):
    monkeypatch.setattr("fastload.transforms.resampling._CHUNK", 2 * 3 * 190 * 260)
    levels = made_images(3, (3, 3, 190, 260))
    transform = RandomResizedCrop((96, 112), interpolation=interpolation, antialias=antialias)
    params = transform.draw_for(keyed(3), shape_of(levels))
    is_exact = interpolation.startswith("nearest")
    for images, tolerance in ((levels, 1.0), (levels / 255, None)):
        alone, batched = transform(images, params=params), elsewhere(transform, images, params=params)
        assert_near(batched, alone, tolerance=0.0 if is_exact else tolerance)
        assert (alone != batched).double().mean() < 0.02 or images is not levels
