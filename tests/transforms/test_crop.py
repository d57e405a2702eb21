"""Crops and flips, against torchvision."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from references import (
    assert_same_distribution,
    batches,
    drawn,
    gathered,
    generators,
    one_by_one,
)
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from fastload.transforms.base import shape_of
from fastload.transforms.crop import CenterCrop, RandomCrop, RandomHorizontalFlip, RandomVerticalFlip

MODES = ("constant", "edge", "reflect", "symmetric")


def sides_of(padding):
    """left, top, right, bottom."""
    given = [padding] if isinstance(padding, int) else list(padding or [0])
    return given * (4 // len(given))


@given(
    images=batches(),
    size=st.tuples(st.integers(1, 16), st.integers(1, 16)),
    padding=st.none()
    | st.integers(0, 4)
    | st.sampled_from([1, 2, 4]).flatmap(lambda length: st.lists(st.integers(0, 4), min_size=length, max_size=length)),
    pad_if_needed=st.booleans(),
    mode=st.sampled_from(MODES),
    vector=st.booleans(),
    generator=generators(),
)
def test_random_crop_equals_torchvisions(images, size, padding, pad_if_needed, mode, vector, generator):
    height, width = images.shape[2:]
    left, top, right, bottom = sides_of(padding)
    if pad_if_needed:
        rows, cols = max(size[0] - height - top - bottom, 0), max(size[1] - width - left - right, 0)
        left, top, right, bottom = left + cols, top + rows, right + cols, bottom + rows
    assume(height + top + bottom >= size[0] and width + left + right >= size[1])
    limit = {"reflect": 1, "symmetric": 0}.get(mode, -100)
    assume(max(left, right) <= width - limit and max(top, bottom) <= height - limit)
    fill = 0
    if mode == "constant":
        fill = [0.3 + channel for channel in range(images.shape[1])] if vector else 0.7

    crop = RandomCrop(size, padding, pad_if_needed, fill, mode)
    found, params = crop(images, generator=generator, return_params=True)

    def reference(image, top, left):
        padded = functional.pad(image, sides, fill=fill, padding_mode=mode)
        return functional.crop(padded, top, left, *size)

    sides = [left, top, right, bottom]
    assert found.dtype == images.dtype
    assert torch.equal(found, one_by_one(images, reference, params))
    assert torch.equal(gathered(crop, images, params), found)


@given(images=batches(), size=st.tuples(st.integers(1, 16), st.integers(1, 16)))
def test_center_crop_equals_torchvisions(images, size):
    crop = CenterCrop(size)
    found = crop(images)
    assert torch.equal(found, functional.center_crop(images.clone(), list(size)))
    assert found.data_ptr() != images.data_ptr()
    assert torch.equal(gathered(crop, images, {}), found)
    assert found.shape == crop.shape_after(shape_of(images))[:2] + size


@pytest.mark.parametrize(
    ("transform", "flipped"),
    [(RandomHorizontalFlip(), functional.horizontal_flip), (RandomVerticalFlip(), functional.vertical_flip)],
)
@given(images=batches(), generator=generators())
def test_flips_equal_torchvisions(transform, flipped, images, generator):
    found, params = transform(images, generator=generator, return_params=True)
    expected = one_by_one(images, lambda image, flip: flipped(image) if flip else image, params)
    assert torch.equal(found, expected)
    assert torch.equal(gathered(transform, images, params), expected)
    if images.is_floating_point():  # as elsewhere than on the CPU
        assert torch.equal(transform.transform(images.clone().requires_grad_(), params), expected)


def test_places_are_distributed_as_torchvisions():
    ours = drawn(RandomCrop((9, 5), (1, 2)), 20_000, 12, 8)
    theirs = v2.RandomCrop((9, 5), (1, 2))
    torch.manual_seed(0)
    made = [theirs.make_params([torch.zeros(3, 12, 8)]) for _ in range(5_000)]
    for name, bound in (("top", 8), ("left", 6)):
        assert set(ours[name].tolist()) == set(range(bound))
        counts = np.bincount(ours[name], minlength=bound)
        assert (np.abs(counts - 20_000 / bound) < 5 * np.sqrt(20_000 / bound)).all()
        assert_same_distribution(ours[name], [one[name] for one in made])
    assert abs(np.corrcoef(ours["top"], ours["left"])[0, 1]) < 0.03


@pytest.mark.parametrize("kind", [RandomHorizontalFlip, RandomVerticalFlip])
def test_flips_are_as_frequent_as_they_are_asked_to_be(kind):
    assert not drawn(kind(0), 1000, 4, 4)["flip"].any()
    assert drawn(kind(1), 1000, 4, 4)["flip"].all()
    for p in (0.1, 0.5):
        assert abs(drawn(kind(p), 20_000, 4, 4)["flip"].mean() - p) < 5 * np.sqrt(p * (1 - p) / 20_000)


def test_both_flips_are_drawn_independently():
    horizontal, vertical = (drawn(kind(), 20_000, 4, 4)["flip"] for kind in (RandomHorizontalFlip, RandomVerticalFlip))
    assert abs(np.corrcoef(horizontal, vertical)[0, 1]) < 0.03


@pytest.mark.parametrize(("top", "left"), [(5, 0), (-1, 0), (0, 3)])
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
def test_places_outside_of_the_images_leave_nothing_unwritten(top, left, mode):
    images = torch.full((4, 3, 10, 10), 7, dtype=torch.uint8)
    params = {"top": torch.tensor([top] * 4), "left": torch.tensor([left] * 4)}
    crop = RandomCrop(8, padding_mode=mode)
    if mode == "constant":
        for batch in (images, images.float()):
            with pytest.raises(ValueError, match=r"from outside of images of .*10"):
                crop(batch, params=params)
    else:
        assert (crop(images, params=params) == 7).all()
