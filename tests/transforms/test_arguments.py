"""Arguments that several geometric transforms have."""

from __future__ import annotations

import pytest
import torch
from torchvision.transforms import InterpolationMode

from fastload.errors import ConfigError
from fastload.transforms.arguments import check_fill, check_interpolation, check_range, fill_values, in_float32


def test_fill_values_are_cast_as_torchvision_casts_them():
    images = torch.zeros(1, 2, 1, 1, dtype=torch.uint8)
    assert fill_values("fill", (2.7, 255.9), images).flatten().tolist() == [2, 255]
    assert fill_values("fill", (2.5,), images, torch.float32).tolist() == [[[2.5]]]
    assert check_fill("fill", 0.1) == (0.1,)
    assert in_float32(check_fill("fill", [0.1, 0.5])) == (torch.tensor(0.1).item(), 0.5)


@pytest.mark.parametrize("bad", ["0", None, [], [0, "1"], float("nan"), (0.0, float("inf")), True])
def test_fill_values_are_numbers(bad):
    with pytest.raises(ConfigError, match="fill"):
        check_fill("fill", bad)


def test_fill_values_fit_the_images():
    with pytest.raises(ValueError, match="3 channels, got 2 numbers"):
        fill_values("fill", (0.0, 1.0), torch.zeros(1, 3, 1, 1))
    for value in (-1.0, 256.0):
        with pytest.raises(ValueError, match=r"\[0, 255\] for uint8"):
            fill_values("fill", (value,), torch.zeros(1, 3, 1, 1, dtype=torch.uint8))


def test_ranges_are_two_numbers_in_order():
    assert check_range("scale", [0, 1], low=0) == (0.0, 1.0)
    assert check_range("ratio", (2, 2), above=0) == (2.0, 2.0)
    for bad in (1.0, (1,), (1, 2, 3), (2, 1), (float("nan"), 1), ("0", 1), (-0.1, 1)):
        with pytest.raises(ConfigError, match="scale"):
            check_range("scale", bad, low=0)
    with pytest.raises(ConfigError, match="above 0"):
        check_range("ratio", (0, 1), above=0)


def test_interpolations_are_taken_as_torchvision_takes_them():
    allowed = ("nearest", "bilinear", "bicubic")
    for given, name in (("bilinear", "bilinear"), (InterpolationMode.BICUBIC, "bicubic"), (0, "nearest")):
        assert check_interpolation(given, allowed) == name
    for bad in ("lanczos", InterpolationMode.LANCZOS, 1, True, None, 2.0, ["bilinear"]):
        with pytest.raises(ConfigError, match="interpolation must be one of 'nearest'"):
            check_interpolation(bad, allowed)
