"""Arguments that make no sense, and images that a transform cannot take, are refused by an error that names them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from references import made_images
from torchvision.transforms import InterpolationMode

from fastload import ConfigError
from fastload import transforms as T
from fastload.transforms import Draws
from fastload.transforms.arguments import check_fill, check_interpolation, check_range, fill_values, in_float32

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NAN, INF = math.nan, math.inf
ARGUMENTS: list[tuple[Any, dict[str, Any], str]] = [
    (T.ColorJitter, {"brightness": (-0.1, 1)}, r"brightness\[0\] must be at least 0"),
    (T.ColorJitter, {"contrast": -0.1}, "contrast must be at least 0"),
    (T.ColorJitter, {"contrast": NAN}, "contrast must be finite"),
    (T.ColorJitter, {"saturation": (0.3, 0.1)}, "saturation must be .* in this order"),
    (T.ColorJitter, {"saturation": (0.1, INF)}, r"saturation\[1\] must be finite"),
    (T.ColorJitter, {"hue": (0.1, 0.2, 0.3)}, r"hue must be one number or \(minimum, maximum\)"),
    (T.ColorJitter, {"hue": "much"}, "hue must be a number"),
    (T.ColorJitter, {"hue": True}, "hue must be a number"),
    (T.ColorJitter, {"hue": 0.6}, r"hue\[0\] must be in \[-0.5, 0.5\]"),
    (T.CutMix, {"alpha": -1.0}, "alpha must be above 0"),
    (T.CutMix, {"num_classes": 0}, "num_classes must be an integer of at least 1"),
    (T.Cutout, {"size": 0}, "size"),
    (T.Cutout, {"size": 3, "p": -1}, "p must be"),
    (T.GaussianBlur, {"kernel_size": 4}, "kernel_size must be odd"),
    (T.GaussianBlur, {"kernel_size": (3, 0)}, "kernel_size must be at least 1"),
    (T.GaussianBlur, {"kernel_size": 3, "sigma": 0}, r"sigma\[0\] must be above 0"),
    (T.GaussianBlur, {"kernel_size": 3, "sigma": (2, 1)}, "in this order"),
    (T.GaussianBlur, {"kernel_size": 3, "sigma": (1, 2, 3)}, r"sigma must be \(minimum, maximum\)"),
    (T.MixUp, {"alpha": 0}, "alpha must be above 0"),
    (T.MixUpOrCutMix, {"cutmix_p": 1.1}, r"cutmix_p must be in \[0, 1\]"),
    (T.MixUpOrCutMix, {"mixup_alpha": 0}, "mixup_alpha must be above 0"),
    (T.Normalize, {"mean": MEAN, "std": (1.0, 0.0, 1.0)}, "std must not be 0"),
    (T.Normalize, {"mean": MEAN, "std": (1.0, NAN, 1.0)}, "std must be finite"),
    (T.Normalize, {"mean": MEAN, "std": STD[:2]}, "mean and std must have one number for each channel"),
    (T.Normalize, {"mean": (), "std": ()}, "mean and std must have one number for each channel"),
    (T.Normalize, {"mean": 0.5, "std": STD}, "mean must be a sequence"),
    (T.Normalize, {"mean": ("0.5",), "std": (1.0,)}, "mean must be a number"),
    (T.RandomAdjustSharpness, {"sharpness_factor": -1}, "sharpness_factor must be at least 0"),
    (T.RandomAffine, {"degrees": 5, "translate": 0.1}, "translate"),
    (T.RandomAffine, {"degrees": 5, "translate": (0.1, 1.1)}, "translate"),
    (T.RandomAffine, {"degrees": 5, "scale": (0, 1)}, "scale"),
    (T.RandomAffine, {"degrees": 5, "shear": (1, 2, 4, 3)}, "shear"),
    (T.RandomCrop, {"size": 0}, "size"),
    (T.RandomCrop, {"size": (3, 4, 5)}, "size"),
    (T.RandomCrop, {"size": 2.0}, "size"),
    (T.RandomCrop, {"size": 4, "padding": -1}, "padding"),
    (T.RandomCrop, {"size": 4, "padding": 1.5}, "padding"),
    (T.RandomCrop, {"size": 4, "padding": True}, "padding"),
    (T.RandomCrop, {"size": 4, "padding": (1, 2, 3)}, "padding"),
    (T.RandomCrop, {"size": 4, "padding_mode": "mirror"}, "padding_mode"),
    (T.RandomCrop, {"size": 4, "fill": (1, 2, 3), "padding_mode": "edge"}, "fill"),
    (T.RandomCrop, {"size": 4, "pad_if_needed": "yes"}, "pad_if_needed must be True or False, got pad_if_needed='yes'"),
    (T.RandomErasing, {"scale": (0.5, 1.5)}, "scale"),
    (T.RandomErasing, {"ratio": (0.0, 0.1)}, "ratio"),
    (T.RandomErasing, {"value": "noise"}, "value"),
    (T.RandomErasing, {"value": None}, "value"),
    (T.RandomErasing, {"inplace": True}, "inplace"),
    (T.RandomGrayscale, {"p": 1.5}, r"p must be in \[0, 1\]"),
    (T.RandomHorizontalFlip, {"p": -0.1}, "p must be"),
    (T.RandomHorizontalFlip, {"p": NAN}, "p must be"),
    (T.RandomHorizontalFlip, {"p": "0.5"}, "p must be"),
    (T.RandomPosterize, {"bits": 9}, r"bits must be an integer in \[0, 8\]"),
    (T.RandomResizedCrop, {"size": 8, "antialias": 1}, "antialias must be True or False"),
    (T.RandomResizedCrop, {"size": 8, "scale": (1.0, 0.5)}, "scale"),
    (T.RandomResizedCrop, {"size": 8, "scale": (-0.1, 0.5)}, "scale"),
    (T.RandomResizedCrop, {"size": 8, "ratio": (0, 1)}, "ratio"),
    (T.RandomResizedCrop, {"size": 8, "interpolation": "box"}, "interpolation"),
    (T.RandomRotation, {"degrees": -1}, "degrees"),
    (T.RandomRotation, {"degrees": 5, "center": 3}, "center"),
    (T.RandomRotation, {"degrees": 5, "center": (1, INF)}, "center"),
    (T.RandomRotation, {"degrees": 5, "expand": True}, "images of one batch have one size"),
    (T.RandomSolarize, {"threshold": 256}, "threshold must be at most 255"),
    (T.RandomVerticalFlip, {"p": 1.1}, "p must be"),
    (T.Resize, {"size": 0}, "size"),
    (T.Resize, {"size": None}, "max_size"),
    (T.Resize, {"size": 8, "max_size": 8}, "max_size"),
    (T.Resize, {"size": (8, 9), "max_size": 10}, "max_size"),
    (T.Resize, {"size": 8, "max_size": -3}, "max_size"),
    (T.Resize, {"size": 8, "antialias": "x"}, "antialias must be True or False, got antialias='x'"),
    (T.ToDtype, {"dtype": torch.int64}, "dtype must be one of uint8, float16"),
    (T.ToDtype, {"dtype": "float32"}, "dtype must be one of uint8"),
    (T.ToDtype, {"dtype": torch.float32, "scale": 255}, "scale must be True or False, got scale=255"),
    (T.ToNormalized, {"mean": MEAN, "std": STD, "dtype": torch.uint8}, "dtype must be one of float16"),
]


@pytest.mark.parametrize(("kind", "arguments", "message"), ARGUMENTS, ids=lambda value: getattr(value, "__name__", ""))
def test_bad_arguments_are_refused(kind, arguments, message):
    with pytest.raises(ConfigError, match=message):
        kind(**arguments)


IMAGES = made_images(0, (2, 3, 6, 5))
FLOATS = torch.zeros(2, 3, 6, 5)
CLASSES = torch.zeros(2, dtype=torch.long)
MIX = T.MixUp(num_classes=5)
GIVEN: list[tuple[Any, tuple[Any, ...], type[Exception], str]] = [
    (T.CenterCrop(3), (IMAGES[0],), ValueError, "batches of NCHW"),
    (T.RandomVerticalFlip(), (IMAGES[:0],), ValueError, "empty batch"),
    (T.RandomHorizontalFlip(), (IMAGES.long(),), TypeError, "int64"),
    (T.RandomHorizontalFlip(), ([IMAGES],), TypeError, "list"),
    (T.RandomHorizontalFlip(), (IMAGES.to_sparse(),), TypeError, "dense images, got .* torch.sparse_coo; use to_dense"),
    (T.RandomCrop(7), (IMAGES,), ValueError, "RandomCrop crops to"),
    (T.RandomCrop(6, 5, padding_mode="reflect"), (IMAGES,), ValueError, "cannot mirror more pixels"),
    (T.RandomCrop(6, (6, 0), padding_mode="symmetric"), (IMAGES,), ValueError, "cannot mirror more pixels"),
    (T.RandomCrop(6, 2, fill=(1, 2)), (IMAGES,), ValueError, "3 channels, got 2"),
    (T.RandomAffine(10, fill=(1, 2)), (IMAGES,), ValueError, "3 channels, got 2"),
    (T.RandomRotation(10, fill=300), (IMAGES,), ValueError, r"\[0, 255\]"),
    (T.RandomErasing(value="random"), (IMAGES,), TypeError, "noise of mean 0 and deviation 1"),
    (T.RandomErasing(value=(1, 2)), (IMAGES,), ValueError, "3 channels, got 2"),
    (T.RandomErasing(value=-1), (IMAGES,), ValueError, r"\[0, 255\]"),
    (T.Normalize(MEAN, STD), (IMAGES,), TypeError, r"images of floats, got torch\.uint8; put ToDtype"),
    (T.Normalize(MEAN, STD), (FLOATS[:, :2],), ValueError, "has mean and std for 3 channels, got images of 2"),
    (T.ToNormalized(MEAN, STD), (IMAGES[:, :2],), ValueError, "has mean and std for 3 channels, got images of 2"),
    (T.RandomSolarize(128, p=1.0), (FLOATS,), TypeError, "threshold must be at most 1 for images of floats"),
    (T.ColorJitter(brightness=1), (IMAGES[:, :2],), TypeError, "takes images of 1 or 3 channels, got 2"),
    (T.ColorJitter(hue=0.5), (IMAGES[:, :2],), TypeError, "takes images of 1 or 3 channels, got 2"),
    (T.RandomAutocontrast(1), (IMAGES[:, :2],), TypeError, "takes images of 1 or 3 channels, got 2"),
    (T.GaussianBlur((9, 3)), (FLOATS[..., :4],), ValueError, "narrower than twice the image"),
    (T.GaussianBlur((3, 13)), (FLOATS,), ValueError, "use a smaller"),
    (T.Resize(None, max_size=4), (FLOATS.new_zeros(1, 3, 1, 20),), ValueError, "leaves no pixel of the shorter side"),
    (MIX, (IMAGES, [0, 1]), TypeError, "labels as a tensor, got list"),
    (MIX, (IMAGES, CLASSES[[0, 0, 0]]), ValueError, "for 2 images, got shape"),
    (MIX, (IMAGES, torch.zeros(2, 5, 1)), ValueError, r"labels \[N\] or \[N, num_classes\]"),
    (MIX, (IMAGES, torch.zeros(2)), TypeError, "integers, the classes, got torch.float32"),
    (MIX, (IMAGES, torch.zeros(2, 4)), ValueError, "has num_classes=5, got labels of shape"),
    (MIX, (IMAGES[0], CLASSES), ValueError, "add the missing dimension"),
    (MIX, (IMAGES, torch.tensor([0, 5])), RuntimeError, "out of bounds"),
    (T.MixUp(), (IMAGES, CLASSES), ValueError, "needs num_classes for labels that are classes"),
]


@pytest.mark.parametrize(("transform", "given", "error", "message"), GIVEN, ids=lambda value: type(value).__name__)
def test_images_and_labels_that_do_not_fit_are_refused(transform, given, error, message):
    with pytest.raises(error, match=message):
        transform(*given)


def test_draws_of_other_samples_are_refused():
    with pytest.raises(ValueError, match="got draws for 3 samples, and 2 images"):
        MIX(IMAGES, CLASSES, draws=Draws(bytes(16), np.arange(3)))


# -- Normal forms ------------------------------------------------------------------------------------------------------


def test_fill_values_are_cast_as_torchvision_casts_them():
    images = torch.zeros(1, 2, 1, 1, dtype=torch.uint8)
    assert fill_values("fill", (2.7, 255.9), images).flatten().tolist() == [2, 255]
    assert fill_values("fill", (2.5,), images, torch.float32).tolist() == [[[2.5]]]
    assert check_fill("fill", 0.1) == (0.1,)
    assert in_float32(check_fill("fill", [0.1, 0.5])) == (torch.tensor(0.1).item(), 0.5)
    for bad in ("0", None, [], [0, "1"], True):
        with pytest.raises(ConfigError, match="fill"):
            check_fill("fill", bad)
    for value in (-1.0, 256.0):
        with pytest.raises(ValueError, match=r"\[0, 255\] for uint8"):
            fill_values("fill", (value,), images)


def test_ranges_are_two_numbers_in_order():
    assert check_range("scale", [0, 1], low=0) == (0.0, 1.0)
    assert check_range("ratio", (2, 2), above=0) == (2.0, 2.0)
    for bad in (1.0, (1,), ("0", 1)):
        with pytest.raises(ConfigError, match="scale"):
            check_range("scale", bad, low=0)
    with pytest.raises(ConfigError, match="above 0"):
        check_range("ratio", (0, 1), above=0)


def test_interpolations_are_taken_as_torchvision_takes_them():
    allowed = ("nearest", "bilinear", "bicubic")
    for wanted, name in (("bilinear", "bilinear"), (InterpolationMode.BICUBIC, "bicubic"), (0, "nearest")):
        assert check_interpolation(wanted, allowed) == name
    for bad in ("lanczos", InterpolationMode.LANCZOS, 1, True, None, 2.0, ["bilinear"]):
        with pytest.raises(ConfigError, match="interpolation must be one of 'nearest'"):
            check_interpolation(bad, allowed)
