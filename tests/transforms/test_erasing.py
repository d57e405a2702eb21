"""Erasing, against torchvision, and the noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from references import (
    assert_same_distribution,
    batches,
    drawn,
    generators,
    keyed,
    made_images,
    one_by_one,
)
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from fastload.transforms.arguments import fill_values
from fastload.transforms.base import DTYPES, shape_of
from fastload.transforms.erasing import Cutout, RandomErasing, _erase_all, normal_noise

PINNED = [-0.6134811043739319, 1.7154626846313477, 0.29129618406295776, 0.09066765755414963]
FLOATS = tuple(dtype for dtype in DTYPES if dtype.is_floating_point)
BOX = ("top", "left", "height", "width")


@given(images=batches(), vector=st.booleans(), cutout=st.integers(0, 9), generator=generators())
def test_boxes_are_erased_as_torchvision_erases_them(images, vector, cutout, generator):
    value = [7.5 + channel for channel in range(images.shape[1])] if vector else 3.3
    transform = Cutout(cutout, 0.7, value) if cutout else RandomErasing(0.7, (0.05, 0.9), value=value)
    found, params = transform(images, generator=generator, return_params=True)

    def reference(image, top, left, height, width):
        fill = torch.tensor(value if vector else [value])[:, None, None]
        return functional.erase(image, top, left, height, width, fill)

    expected = one_by_one(images, reference, params)
    assert found.dtype == images.dtype
    assert torch.equal(found, expected)
    values = fill_values("value", transform.value, images)
    assert torch.equal(_erase_all(images, params, values), expected)
    assert found.data_ptr() != images.data_ptr()


@given(images=batches(dtypes=FLOATS), generator=generators())
def test_noise_is_a_function_of_the_samples_words_and_the_place(images, generator):
    transform = RandomErasing(0.8, (0.05, 0.9), value="random")
    found, params = transform(images, generator=generator, return_params=True)
    channels, height, width = images.shape[1:]
    places = torch.arange(channels * height * width).view(channels, height, width)
    for image, erased, box, words in zip(
        images, found, torch.stack([params[name] for name in BOX], dim=1).tolist(), params["noise"], strict=True
    ):
        expected = image.clone()
        inside = torch.zeros(height, width, dtype=torch.bool)
        inside[box[0] : box[0] + box[2], box[1] : box[1] + box[3]] = True
        noise = normal_noise(words, places).to(images.dtype)
        expected[:, inside] = noise[:, inside]
        assert torch.equal(erased, expected)
    assert torch.equal(_erase_all(images, params, None), found)


def test_noise_of_large_batches_is_made_part_by_part(monkeypatch):
    images = made_images(0, (5, 3, 6, 7), torch.float32)
    params = Cutout(3, value="random").draw_for(keyed(5), shape_of(images))
    expected = _erase_all(images, params, None)
    monkeypatch.setattr("fastload.transforms.erasing._CHUNK", 300)
    assert torch.equal(_erase_all(images, params, None), expected)


def test_noise_is_normal_and_independent_from_pixel_to_pixel_and_sample_to_sample():
    params = RandomErasing(1, value="random").draw_for(keyed(40), shape_of(made_images(0, (40, 3, 32, 32))))
    places = torch.arange(3 * 32 * 32).view(3, 32, 32)
    noise = normal_noise(params["noise"][:, :, None, None, None], places).double()
    assert noise.shape == (40, 3, 32, 32)
    values = np.sort(noise.flatten().numpy())
    expected = 0.5 * (1 + torch.erf(torch.from_numpy(values) / math.sqrt(2)).numpy())
    assert np.abs(expected - (np.arange(len(values)) + 0.5) / len(values)).max() < 2.23 / math.sqrt(len(values))
    assert noise.abs().max() < 5.4
    limit = 5 / math.sqrt(noise.numel())
    for dim in range(4):
        first, second = noise.narrow(dim, 0, 1 * noise.shape[dim] - 1), noise.narrow(dim, 1, noise.shape[dim] - 1)
        assert abs((first * second).mean().item()) < limit * 1.2
    assert abs(noise.mean().item()) < limit
    per_sample = noise.flatten(1).mean(dim=1)
    assert per_sample.abs().max() < 5 / math.sqrt(3 * 32 * 32)


# Never change these: they say that next year's noise is this year's.
def test_noise_is_the_pinned_one():
    words = torch.tensor([0x12345678, 0x9ABCDEF0])
    found = normal_noise(words, torch.tensor([0, 1, 2, 2**31 - 1]))
    assert found.tolist() == pytest.approx(PINNED, abs=1e-6)


@pytest.mark.parametrize(
    ("scale", "ratio", "sides"),
    [((0.02, 0.33), (0.3, 3.3), (32, 32)), ((0.5, 1.0), (0.2, 5.0), (20, 40)), ((0.9, 1.0), (3.0, 4.0), (16, 16))],
)
def test_boxes_are_distributed_as_torchvisions(scale, ratio, sides):
    ours = drawn(RandomErasing(1, scale, ratio), 20_000, *sides)
    theirs = v2.RandomErasing(1, scale, ratio)
    torch.manual_seed(2)
    image = [torch.zeros(1, *sides)]
    made = [theirs.make_params(image) for _ in range(5_000)]
    for name, key in zip(BOX, "ijhw", strict=True):
        values = [0 if one["v"] is None else one[key] for one in made]
        assert_same_distribution(ours[name], values)


def test_as_many_are_erased_as_asked_for():
    for kind in (RandomErasing(0.3), Cutout(3, 0.3)):
        erased = drawn(kind, 20_000, 16, 16)["height"] > 0
        assert abs(erased.mean() - 0.3) < 5 * math.sqrt(0.21 / 20_000)
    assert not drawn(RandomErasing(0), 100, 16, 16)["height"].any()


@pytest.mark.parametrize("size", [1, 4, 5, 30])
def test_squares_are_centred_uniformly_and_clipped(size):
    params = drawn(Cutout(size), 20_000, 9, 12)
    for start, length, side in (("top", "height", 9), ("left", "width", 12)):
        seen = set(zip(params[start].tolist(), params[length].tolist(), strict=True))
        begins = [centre - size // 2 for centre in range(side)]
        possible = [(max(begin, 0), min(begin + size, side) - max(begin, 0)) for begin in begins]
        assert seen == set(possible)
        pairs = list(zip(params[start].tolist(), params[length].tolist(), strict=True))
        for pair in seen:
            share = possible.count(pair) / side
            assert abs(pairs.count(pair) / 20_000 - share) < 5 * math.sqrt(share * (1 - share) / 20_000) + 1e-9
