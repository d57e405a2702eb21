"""Arguments that make no sense, and images or parameters that do not fit, are refused by an error that names them."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from references import made_images
from torchvision.transforms import InterpolationMode

from fastload import ConfigError
from fastload import transforms as T
from fastload.transforms import Draws
from fastload.transforms.params import check_params, params_to

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
ARGUMENTS: list[tuple[Any, dict[str, Any], str]] = [
    (T.ColorJitter, {"brightness": (-0.1, 1)}, r"brightness\[0\] must be at least 0"),
    (T.ColorJitter, {"contrast": -0.1}, "contrast must be at least 0"),
    (T.ColorJitter, {"saturation": (0.3, 0.1)}, "saturation must be .* in this order"),
    (T.ColorJitter, {"hue": (0.1, 0.2, 0.3)}, r"hue must be one number or \(minimum, maximum\)"),
    (T.ColorJitter, {"hue": True}, "hue must be a number"),
    (T.ColorJitter, {"hue": 0.6}, r"hue\[0\] must be in \[-0.5, 0.5\]"),
    (T.Compose, {"transforms": []}, "needs at least one transform"),
    (T.Compose, {"transforms": None}, "takes a list of transforms, got None"),
    (T.Compose, {"transforms": T.RandomHorizontalFlip()}, r"got RandomHorizontalFlip\(p=0.5\); put it in brackets"),
    (T.Compose, {"transforms": [torch.nn.ReLU()]}, r"takes batched transforms of fastload's, got ReLU\(\) at place 0"),
    (T.Compose, {"transforms": [T.RandomHorizontalFlip()], "layout": "CHWN"}, "layout must be 'NCHW' or 'NHWC', got"),
    (T.CutMix, {"alpha": -1.0}, "alpha must be above 0"),
    (T.CutMix, {"num_classes": 0}, "num_classes must be an integer of at least 1"),
    (T.Cutout, {"size": 0}, "size"),
    (T.GaussianBlur, {"kernel_size": 4}, "kernel_size must be odd"),
    (T.GaussianBlur, {"kernel_size": 3, "sigma": 0}, r"sigma\[0\] must be above 0"),
    (T.MixUp, {"alpha": 0}, "alpha must be above 0"),
    (T.MixUpOrCutMix, {"cutmix_p": 1.1}, r"cutmix_p must be in \[0, 1\]"),
    (T.Normalize, {"mean": MEAN, "std": (1.0, 0.0, 1.0)}, "std must not be 0"),
    (T.Normalize, {"mean": MEAN, "std": STD[:2]}, "mean and std must have one number for each channel"),
    (T.Normalize, {"mean": 0.5, "std": STD}, "mean must be a sequence"),
    (T.RandomAdjustSharpness, {"sharpness_factor": -1}, "sharpness_factor must be at least 0"),
    (T.RandomAffine, {"degrees": 5, "translate": (0.1, 1.1)}, "translate"),
    (T.RandomAffine, {"degrees": 5, "scale": (0, 1)}, "scale"),
    (T.RandomAffine, {"degrees": 5, "shear": (1, 2, 4, 3)}, "shear"),
    (T.RandomCrop, {"size": 0}, "size"),
    (T.RandomCrop, {"size": 4, "padding": -1}, "padding"),
    (T.RandomCrop, {"size": 4, "padding_mode": "mirror"}, "padding_mode"),
    (T.RandomCrop, {"size": 4, "fill": (1, 2, 3), "padding_mode": "edge"}, "fill"),
    (T.RandomCrop, {"size": 4, "pad_if_needed": "yes"}, "pad_if_needed must be True or False, got pad_if_needed='yes'"),
    (T.RandomErasing, {"scale": (0.5, 1.5)}, "scale"),
    (T.RandomErasing, {"ratio": (0.0, 0.1)}, "ratio"),
    (T.RandomErasing, {"value": "noise"}, "value"),
    (T.RandomErasing, {"inplace": True}, "inplace"),
    (T.RandomGrayscale, {"p": 1.5}, r"p must be in \[0, 1\]"),
    (T.RandomHorizontalFlip, {"p": -0.1}, "p must be"),
    (T.RandomPosterize, {"bits": 9}, r"bits must be an integer in \[0, 8\]"),
    (T.RandomResizedCrop, {"size": 8, "antialias": 1}, "antialias must be True or False"),
    (T.RandomResizedCrop, {"size": 8, "ratio": (0, 1)}, "ratio"),
    (T.RandomResizedCrop, {"size": 8, "interpolation": "box"}, "interpolation"),
    (T.RandomRotation, {"degrees": -1}, "degrees"),
    (T.RandomRotation, {"degrees": 5, "center": 3}, "center"),
    (T.RandomRotation, {"degrees": 5, "expand": True}, "images of one batch have one size"),
    (T.RandomSolarize, {"threshold": 256}, "threshold must be at most 255"),
    (T.Resize, {"size": 0}, "size"),
    (T.Resize, {"size": None}, "max_size"),
    (T.Resize, {"size": 8, "max_size": 8}, "max_size"),
    (T.Resize, {"size": 8, "antialias": "x"}, "antialias must be True or False, got antialias='x'"),
    (T.ToDtype, {"dtype": torch.int64}, "dtype must be one of uint8, float16"),
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
    (T.RandomRotation(10, fill=256), (IMAGES,), ValueError, r"\[0, 255\]"),
    (T.RandomErasing(value="random"), (IMAGES,), TypeError, "noise of mean 0 and deviation 1"),
    (T.RandomErasing(value=(1, 2)), (IMAGES,), ValueError, "3 channels, got 2"),
    (T.RandomErasing(value=-1), (IMAGES,), ValueError, r"\[0, 255\]"),
    (T.Normalize(MEAN, STD), (IMAGES,), TypeError, r"images of floats, got torch\.uint8; put ToDtype"),
    (T.Normalize(MEAN, STD), (FLOATS[:, :2],), ValueError, "has mean and std for 3 channels, got images of 2"),
    (T.ToNormalized(MEAN, STD), (IMAGES[:, :2],), ValueError, "has mean and std for 3 channels, got images of 2"),
    (T.RandomSolarize(128, p=1.0), (FLOATS,), TypeError, "threshold must be at most 1 for images of floats"),
    (T.ColorJitter(brightness=1), (IMAGES[:, :2],), TypeError, "takes images of 1 or 3 channels, got 2"),
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
    (partial(MIX, draws=Draws(bytes(16), np.arange(3))), (IMAGES, CLASSES), ValueError, "draws for 3 samples, and 2"),
]
BLUR, BOTH = T.GaussianBlur(3), T.Compose([T.RandomCrop(4), T.RandomGrayscale()])
ONES = torch.ones(2, dtype=torch.int64)
CROP = {"top": ONES, "left": ONES}
PARAMS: list[tuple[Any, Any, type[Exception], str]] = [
    (BLUR, {"sigma": torch.tensor([1.0, math.nan])}, ValueError, r"GaussianBlur got params\['sigma'\] with nan in it"),
    (BLUR, {"sigma": torch.tensor([math.inf, 1.0])}, ValueError, r"GaussianBlur got params\['sigma'\] with inf in it"),
    (T.RandomCrop(4), CROP | {"top": ONES.float()}, TypeError, r"\['top'\] of torch.float32, and takes torch.int64"),
    (T.RandomCrop(4), CROP | {"top": [1, 1]}, TypeError, r"\['top'\] of list, and takes a tensor of torch.int64"),
    (BOTH, {"RandomCrop": CROP, "RandomGrayscale": 3}, TypeError, r"Compose got params\['RandomGrayscale'\] of int"),
]


GIVEN += [(partial(transform, params=params), (IMAGES,), *refused) for transform, params, *refused in PARAMS]


@pytest.mark.parametrize(("transform", "given", "error", "message"), GIVEN, ids=lambda value: type(value).__name__)
def test_images_labels_draws_and_parameters_that_do_not_fit_are_refused(transform, given, error, message):
    with pytest.raises(error, match=message):
        transform(*given)


def test_floats_of_another_precision_fit_and_those_on_a_device_are_not_read():
    assert not BLUR(FLOATS, params={"sigma": ONES.double()}).any()
    there = torch.tensor([1.0, math.nan]).to("meta")
    check_params("GaussianBlur got params", {"sigma": there}, {"sigma": ONES.float()})


def test_parameters_that_a_graph_would_read_from_the_host_are_an_error(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match=r"a CUDA graph is captured.*params="):
        params_to({"flip": torch.tensor([True])}, torch.device("cuda", 0))


def test_interpolations_are_taken_as_torchvision_takes_them():
    for wanted, name in (("bilinear", "bilinear"), (InterpolationMode.BICUBIC, "bicubic"), (0, "nearest")):
        assert T.Resize(8, wanted).interpolation == name
    for bad in ("lanczos", InterpolationMode.LANCZOS, 1, True, None, 2.0, ["bilinear"]):
        with pytest.raises(ConfigError, match="interpolation must be one of 'nearest'"):
            T.Resize(8, bad)
