"""Datasets of torchvision made without their files, pipelines, and torchvision's objects with forced parameters."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
import PIL.Image
import torch
from image_files import files, pixels
from torch import nn
from torchvision import datasets
from torchvision import transforms as v1
from torchvision.transforms import autoaugment, v2
from torchvision.transforms.functional import get_dimensions

from fastload.fusion import FusedDataset, recognise
from fastload.fusion.recognition import members_of
from fastload.transforms.erasing import normal_noise

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def made(kind: type, transform: Any = None, target_transform: Any = None, **own: Any) -> Any:
    """Return a dataset of torchvision's, of any class, without what its constructor reads."""
    dataset = object.__new__(kind)
    datasets.VisionDataset.__init__(dataset, "nowhere", transform=transform, target_transform=target_transform)
    vars(dataset).update(own)
    return dataset


def cifar(
    transform: Any = None, *, size: tuple[int, int] = (32, 32), count: int = 12, seed: int = 0, **more: Any
) -> Any:
    data = pixels(count, 3, *size, seed=seed).transpose(0, 2, 3, 1)  # as it lies in torchvision's
    return made(datasets.CIFAR10, transform, data=data, targets=list(range(count)), **more)


def mnist(transform: Any = None, *, kind: type = datasets.MNIST, count: int = 12, **more: Any) -> Any:
    data = torch.from_numpy(pixels(count, 28, 28))
    return made(kind, transform, data=data, targets=torch.arange(count), **more)


def planes(kind: type, transform: Any = None, *, count: int = 12, labels: Any = True, **more: Any) -> Any:
    if kind is datasets.SVHN:  # as loadmat gives it: the samples last
        data = np.transpose(np.asfortranarray(pixels(32, 32, 3, count)), (3, 2, 0, 1))
    else:
        data = np.transpose(pixels(count, 3, 96, 96), (0, 1, 3, 2))
    return made(kind, transform, data=data, labels=np.arange(count) if labels else None, **more)


def folder(root: Any, transform: Any = None, **more: Any) -> datasets.ImageFolder:
    """Return an ImageFolder of two classes, with the files there or made."""
    if not (root / "a").exists():
        for name in "ab":
            (root / name).mkdir()
        for turn, (name, data) in enumerate(files().items()):
            (root / "ab"[turn % 2] / name).write_bytes(data)
    return datasets.ImageFolder(root, transform, **more)


def fused(dataset: Any, seed: int = 7) -> FusedDataset:
    plan = recognise(dataset)
    assert plan.fused, plan.reason
    return FusedDataset(dataset, plan, seed)


def geometry(module: Any) -> dict[str, list[Any]]:
    """Return what can be done with PIL images and tensors, in v1 or v2, leading to 20 x 24 or each its own size."""
    T = module
    bicubic = v1.InterpolationMode.BICUBIC
    return {
        "resized crop, flip": [T.RandomResizedCrop((20, 24)), T.RandomHorizontalFlip()],
        "resized crop, bicubic": [
            T.RandomResizedCrop((20, 24), (0.3, 1.0), (0.5, 2.0), bicubic),
            T.RandomVerticalFlip(),
        ],
        "eval": [T.Resize(30), T.CenterCrop((20, 24))],
        "eval, longer side bounded": [T.Resize(30, max_size=60), T.CenterCrop((20, 24))],
        "resize, crop, flips": [
            T.Resize((40, 50)),
            T.RandomCrop((20, 24)),
            T.RandomHorizontalFlip(),
            T.RandomVerticalFlip(),
        ],
        "flip first": [T.RandomHorizontalFlip(), T.RandomVerticalFlip(), T.CenterCrop(30), T.RandomCrop((20, 24))],
        "flip, then resize": [T.RandomHorizontalFlip(), T.Resize((20, 24), v1.InterpolationMode.NEAREST)],
        "two resizes": [T.Resize(25), T.Resize((20, 24))],
        "pad": [
            T.Resize((20, 24)),
            T.RandomCrop((20, 24), padding=(4, 2), fill=(9, 200, 31)),
            T.RandomHorizontalFlip(),
        ],
        "pad, mirrored": [T.Resize((20, 24)), T.RandomCrop((20, 24), padding=3, padding_mode="reflect")],
        "pad if needed": [T.RandomCrop((20, 24), pad_if_needed=True, padding_mode="edge")],
        "pad twice": [T.RandomCrop((20, 24), padding=1, pad_if_needed=True, padding_mode="symmetric")],
        "center crop alone": [T.CenterCrop((20, 24)), T.RandomHorizontalFlip(1.0)],
    }


def to_values(module: Any) -> dict[str, list[Any]]:
    """Return ways from a PIL image to a tensor."""
    ways: dict[str, list[Any]] = {
        "to uint8": [module.PILToTensor()],
        "converted": [module.PILToTensor(), module.ConvertImageDtype(torch.float32), module.Normalize(MEAN, STD)],
        "double": [module.PILToTensor(), module.ConvertImageDtype(torch.float64), module.Normalize([0.5], [0.25])],
    }
    if module is v1:
        ways["to tensor"] = [v1.ToTensor()]
        ways["normalised"] = [v1.ToTensor(), v1.Normalize(MEAN, STD)]
        ways["in place"] = [v1.ToTensor(), v1.Normalize(MEAN, STD, inplace=True)]
    else:
        to_float = v2.ToDtype(torch.float32, scale=True)
        ways["normalised"] = [v2.ToImage(), to_float, v2.Normalize(MEAN, STD)]
        ways["pure"] = [v2.ToImage(), v2.ToDtype(torch.float32), v2.ToPureTensor()]
        ways["half"] = [v2.ToImage(), v2.ToDtype(torch.bfloat16, scale=True), v2.Normalize(MEAN, STD)]
        ways["two dtypes"] = [v2.ToImage(), to_float, v2.Normalize(MEAN, STD), v2.ToDtype(torch.float16)]
        ways["there and back"] = [v2.ToImage(), to_float, v2.ToDtype(torch.uint8, scale=True)]
        ways["wide integers"] = [v2.ToImage(), v2.ToDtype(torch.int32, scale=True)]
    return ways


def colors(module: Any) -> dict[str, list[Any]]:
    T = module
    bilinear = v1.InterpolationMode.BILINEAR
    return {
        "jitter": [T.ColorJitter(0.4, 0.4, 0.4, 0.1), T.RandomGrayscale(0.5)],
        "jitter, some": [T.ColorJitter(brightness=(0.5, 1.5), hue=0.2)],
        "rand augment": [T.RandAugment()],
        "rand augment, many": [T.RandAugment(4, 17, 20, bilinear, fill=[3, 77, 255])],
        "trivial augment": [T.TrivialAugmentWide(), T.RandomHorizontalFlip()],
        "trivial augment, few bins": [T.TrivialAugmentWide(7, bilinear, fill=[200, 1, 2])],
    }


def pil_pipelines(module: Any) -> dict[str, list[Any]]:
    """Return pipelines that begin with a PIL image, and give tensors of one size."""
    name = module.__name__.rsplit(".", 1)[-1]
    name = "v2" if name == "v2" else "v1"
    normalised = to_values(module)["normalised"]
    found = {f"{name}, {key}": [*steps, *normalised] for key, steps in geometry(module).items()}
    found |= {f"{name}, {key}": [module.Resize((20, 24)), *steps] for key, steps in to_values(module).items()}
    found |= {
        f"{name}, {key}": [module.RandomResizedCrop((20, 24)), *steps, *normalised]
        for key, steps in colors(module).items()
    }
    erasing = {
        "erase": [module.RandomErasing(0.8)],
        "erase in color": [module.RandomErasing(0.8, value=[0.5, 1.5, -2.0]), module.RandomErasing(0.5, value=3)],
        "erase by noise": [module.RandomErasing(1.0, (0.1, 0.5), (0.5, 2.0), "random")],
    }
    found |= {
        f"{name}, {key}": [module.RandomResizedCrop((20, 24)), *normalised, *steps] for key, steps in erasing.items()
    }
    return found


def tensor_pipelines() -> dict[str, list[Any]]:
    """Return pipelines that work on tensors: v2's after ToImage, and v1's after a conversion."""
    to_float = v2.ToDtype(torch.float32, scale=True)
    found = {
        f"tensors, {key}": [v2.ToImage(), *steps, to_float, v2.Normalize(MEAN, STD)]
        for key, steps in geometry(v2).items()
        if key != "pad twice"
    }
    found |= {
        f"tensors, {key}": [v2.ToImage(), v2.RandomResizedCrop((20, 24)), *steps, to_float]
        for key, steps in colors(v2).items()
    }
    found |= {
        f"plain tensors, {key}": [v1.PILToTensor(), *steps, v1.ConvertImageDtype(torch.float32)]
        for key, steps in geometry(v1).items()
        if key not in ("pad", "pad twice")  # v1 pads tensors with one number only, and none by more than they have
    }
    found["floats, jitter"] = [
        v1.Resize((20, 24)),
        v1.ToTensor(),
        v1.ColorJitter(0.3, 0.3, 0.3, 0.1),
        v1.Normalize(MEAN, STD),
    ]
    found["floats, crop"] = [
        v1.Resize((20, 24)),
        v1.ToTensor(),
        v1.RandomCrop(18, 2, fill=0.5),
        v1.RandomHorizontalFlip(),
    ]
    return found


NEAREST, EXACT = v1.InterpolationMode.NEAREST, v1.InterpolationMode.NEAREST_EXACT
MORE = {
    "to the nearest pixel": [v2.ToImage(), v2.Resize((20, 24), NEAREST)],
    "crop to the nearest pixel": [v2.ToImage(), v2.RandomResizedCrop((20, 24), interpolation=EXACT)],
    "nearest, then moved": [v1.PILToTensor(), v1.Resize((25, 30), EXACT), v1.RandomCrop(20), v1.RandomVerticalFlip()],
    "wide": [v1.CenterCrop(20), v1.PILToTensor(), v1.ConvertImageDtype(torch.int16)],
    "wide, of floats": [v1.CenterCrop(20), v1.ToTensor(), v2.ToDtype(torch.int64)],
    "boolean": [v1.CenterCrop(20), v1.PILToTensor(), v2.ToDtype(torch.bool)],
    "not antialiased": [v2.ToImage(), v2.RandomResizedCrop(20, antialias=False)],
    **{
        f"by {mode}": [v1.RandomResizedCrop(20, interpolation=v1.InterpolationMode(mode)), v1.PILToTensor()]
        for mode in ("box", "hamming", "lanczos", "nearest-exact")
    },
}
PIPELINES = {**pil_pipelines(v1), **pil_pipelines(v2), **tensor_pipelines(), **MORE}


def forced(transform: Any, image: Any, given: Any) -> Any:
    """Return what torchvision's own transform does, where its random numbers are these."""
    t = copy.copy(transform)
    second = type(t).__module__.startswith("torchvision.transforms.v2")
    name = type(t).__name__
    if name in ("RandomHorizontalFlip", "RandomVerticalFlip", "RandomGrayscale"):
        t.p = float(given)
        return t(image)
    if name == "RandomResizedCrop":
        return (
            t.transform(image, dict(zip(("top", "left", "height", "width"), given, strict=True)))
            if second
            else _v1(t, image, given)
        )
    if name == "RandomCrop":
        if not second:
            return _v1(t, image, (*given, *t.size))
        return t.transform(image, {**t.make_params([image]), "top": given[0], "left": given[1]})
    if name == "ColorJitter":
        places = ("brightness", "contrast", "saturation", "hue")
        order = torch.tensor([places.index(what) for what, _ in given], dtype=torch.int64)
        factors = dict(given)
        if not second:
            return _v1(t, image, (order, *(factors.get(what) for what in places)))
        return t.transform(image, {"fn_idx": order, **{f"{what}_factor": factors.get(what) for what in places}})
    if name in ("RandAugment", "TrivialAugmentWide"):
        return _augmented(t, image, given, second)
    if name == "RandomErasing":
        t.p = float(given is not None)
        if given is None:
            return t(image)
        top, left, height, width, words = given
        if words is not None:
            every = torch.arange(image.numel()).view(image.shape)
            v = normal_noise(torch.tensor(words), every[:, top : top + height, left : left + width])
        else:
            v = torch.tensor([float(t.value)] if isinstance(t.value, (int, float)) else list(t.value))[:, None, None]
        if not second:
            return _v1(t, image, (top, left, height, width, v))
        return t.transform(image, {"i": top, "j": left, "h": height, "w": width, "v": v})
    return t(image)


def _v1(t: Any, image: Any, params: Any) -> Any:
    t.get_params = lambda *args, **kwargs: params
    return t(image)


def _augmented(t: Any, image: Any, given: Any, second: bool) -> Any:
    height, width = get_dimensions(image)[1:]
    bins = t.num_magnitude_bins
    wide = type(t).__name__ == "TrivialAugmentWide"
    for operation, place, sign in given:
        if second:
            magnitudes = t._AUGMENTATION_SPACE[operation][0](bins, height, width)
            size = 0.0 if magnitudes is None else sign * float(magnitudes[place])
            image = t._apply_image_or_video_transform(
                image, operation, size, interpolation=t.interpolation, fill=t._fill
            )
        else:
            space = t._augmentation_space(bins) if wide else t._augmentation_space(bins, (height, width))
            magnitudes = space[operation][0]
            size = sign * float(magnitudes[place]) if magnitudes.ndim else 0.0
            image = autoaugment._apply_op(image, operation, size, interpolation=t.interpolation, fill=t.fill)
    return image


def unfused(dataset: Any, leaf: Any, index: int, given: Any) -> Any:
    """Return a leaf's image by torchvision's own objects, with forced parameters."""
    bare = copy.copy(leaf)
    bare.transform = None
    image = bare[index][0]
    members = [one for one in members_of(leaf.transform) if type(one) is not nn.Identity]
    for transform, values in itertools.zip_longest(members, given):
        image = forced(transform, image, values)
    return image


def same(one: Any, other: Any, *, layout: bool = False) -> bool:
    """Return whether two images are the same: type, dtype, shape and every bit."""
    if type(one) is not type(other):
        return False
    if isinstance(one, PIL.Image.Image):
        return one.mode == other.mode and one.size == other.size and one.tobytes() == other.tobytes()
    if layout and one.stride() != other.stride():
        return False
    return one.dtype == other.dtype and torch.equal(one, other)
