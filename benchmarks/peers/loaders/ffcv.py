"""FFCV, from files of its own: JPEGs written anew, or half of the images as raw pixels; and arrays of CIFAR's size."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from ffcv.fields import IntField, RGBImageField
from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder, SimpleRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import (
    NormalizeImage,
    RandomHorizontalFlip,
    RandomTranslate,
    Squeeze,
    ToTensor,
    ToTorchImage,
)
from ffcv.writer import DatasetWriter
from torchvision.datasets import ImageFolder

from benchmarks.cases.fuse import InMemory
from benchmarks.peers.loaders import MEAN, STD, Work

_CIFAR_MEAN = (0.4914, 0.4822, 0.4465)
_CIFAR_STD = (0.2470, 0.2435, 0.2616)


def pack(work: Work, *, file: str) -> None:
    if file == "arrays":
        dataset, field = InMemory(work.num_images), RGBImageField()
        dataset.transform = None
    else:
        dataset = ImageFolder(str(work.images))
        field = RGBImageField(write_mode="jpg", jpeg_quality=90)
        if file == "half raw":
            field = RGBImageField(
                write_mode="proportion", compress_probability=0.5, max_resolution=500, jpeg_quality=90
            )
    writer = DatasetWriter(_path(work), {"image": field, "label": IntField()}, num_workers=work.num_workers)
    writer.from_indexed_dataset(dataset)


def load(work: Work, *, file: str) -> Iterable[Any]:
    image: list[Any]
    if file == "arrays":
        image = [SimpleRGBImageDecoder(), RandomHorizontalFlip(), RandomTranslate(padding=4, fill=(0, 0, 0))]
        mean, std = _CIFAR_MEAN, _CIFAR_STD
    else:
        image = [RandomResizedCropRGBImageDecoder((224, 224)), RandomHorizontalFlip()]
        mean, std = MEAN, STD
    if work.normalised:
        image.append(NormalizeImage(255 * np.array(mean), 255 * np.array(std), np.float32))
    return Loader(
        _path(work),
        batch_size=work.batch_size,
        num_workers=work.num_workers,
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=True,
        pipelines={
            "image": [*image, ToTensor(), ToTorchImage()],
            "label": [IntDecoder(), ToTensor(), Squeeze()],
        },
    )


def _path(work: Work) -> str:
    return str(work.packed / "images.beton")
