"""Classification: torchvision's datasets, and Dataset classes of one's own around Pillow."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms
from torchvision.datasets import MNIST, ImageFolder
from torchvision.transforms import v2

from benchmarks.cases.imagefolder import MEAN, STD, build_transform
from benchmarks.pipelines.source import Source

TRAINING = build_transform("v1")
*_CROP_AND_FLIP, _, _NORMALIZE = TRAINING.transforms
_EVALUATION = transforms.Compose(
    [transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor(), _NORMALIZE]
)


def imagefolder(source: Source, loader_class: Any, num_workers: int) -> Any:
    return loader_class(ImageFolder(str(source.images), TRAINING), batch_size=32, shuffle=True, num_workers=num_workers)


def imagefolder_png(source: Source, loader_class: Any, num_workers: int) -> Any:
    def make(folder: Path) -> None:
        for path, _ in source.files():
            (folder / path.parent.name).mkdir(exist_ok=True)
            Image.open(path).convert("RGB").save(folder / path.parent.name / f"{path.stem}.png")

    dataset = ImageFolder(str(source.folder("png", make)), TRAINING)
    return loader_class(dataset, batch_size=32, shuffle=True, num_workers=num_workers)


def imagefolder_resize(source: Source, loader_class: Any, num_workers: int) -> Any:
    return loader_class(ImageFolder(str(source.images), _EVALUATION), batch_size=32, num_workers=num_workers)


def imagefolder_trivial(source: Source, loader_class: Any, num_workers: int) -> Any:
    transform = transforms.Compose(
        [
            *_CROP_AND_FLIP,
            transforms.TrivialAugmentWide(),
            transforms.ToTensor(),
            _NORMALIZE,
            transforms.RandomErasing(p=0.1),
        ]
    )
    dataset = ImageFolder(str(source.images), transform)
    return loader_class(dataset, batch_size=32, shuffle=True, num_workers=num_workers)


class OwnDataset(Dataset[Any]):
    """The class that most scripts have."""

    def __init__(self, files: list[tuple[Path, Any]], transform: Callable[..., Any]) -> None:
        self.files = files
        self.transform = transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        path, label = self.files[index]
        image = Image.open(path).convert("RGB")
        return self.transform(image), label


def own_v1(source: Source, loader_class: Any, num_workers: int) -> Any:
    return loader_class(OwnDataset(source.files(), TRAINING), batch_size=32, shuffle=True, num_workers=num_workers)


def own_v2(source: Source, loader_class: Any, num_workers: int) -> Any:
    dataset = OwnDataset(source.files(), build_transform("v2"))
    return loader_class(dataset, batch_size=32, shuffle=True, num_workers=num_workers)


def own_v2_tensors(source: Source, loader_class: Any, num_workers: int) -> Any:
    transform = v2.Compose(
        [
            v2.ToImage(),
            v2.RandomResizedCrop(224, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )
    return loader_class(OwnDataset(source.files(), transform), batch_size=32, shuffle=True, num_workers=num_workers)


def own_resize(source: Source, loader_class: Any, num_workers: int) -> Any:
    return loader_class(OwnDataset(source.files(), _EVALUATION), batch_size=32, num_workers=num_workers)


class TwoViews:
    """Two views of an image, as MoCo's TwoCropsTransform makes them."""

    def __init__(self, transform: Callable[[Any], Any]) -> None:
        self.transform = transform

    def __call__(self, image: Any) -> list[Any]:
        return [self.transform(image), self.transform(image)]


def two_views(source: Source, loader_class: Any, num_workers: int) -> Any:
    dataset = OwnDataset(source.files(), TwoViews(TRAINING))
    return loader_class(dataset, batch_size=32, shuffle=True, num_workers=num_workers, drop_last=True)


def simclr(source: Source, loader_class: Any, num_workers: int) -> Any:
    transform = transforms.Compose(
        [
            *_CROP_AND_FLIP,
            transforms.RandomApply([transforms.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
            transforms.RandomGrayscale(p=0.2),
            transforms.GaussianBlur(kernel_size=23),
            transforms.ToTensor(),
        ]
    )
    dataset = ImageFolder(str(source.images), TwoViews(transform))
    return loader_class(dataset, batch_size=32, shuffle=True, num_workers=num_workers, drop_last=True)


def mnist(source: Source, loader_class: Any, num_workers: int) -> Any:
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
    dataset = MNIST(str(source.folder("mnist", _make_mnist)), train=True, transform=transform)
    return loader_class(dataset, batch_size=64, shuffle=True, num_workers=num_workers)


def _make_mnist(folder: Path) -> None:
    """Write 16,000 images of noise in MNIST's format; nothing here depends on what they show."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for part, num_images in (("train", 16_000), ("t10k", 1_000)):
        images = generator.integers(0, 256, (num_images, 28, 28), dtype=np.uint8)
        labels = generator.integers(0, 10, num_images, dtype=np.uint8)
        for name, values in (("images-idx3", images), ("labels-idx1", labels)):
            # IDX: two zero bytes, 8 for unsigned bytes, the number of dimensions, then each size as a big-endian word.
            header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, dtype=">u4").tobytes()
            (raw / f"{part}-{name}-ubyte").write_bytes(header + values.tobytes())
