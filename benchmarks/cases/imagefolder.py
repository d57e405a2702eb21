"""The standard ImageNet pipeline, unmodified, from JPEG files.

Claim: with 2 workers, at least 1.3 times torch's images per second and the first batch in at most half the time.

Meaningless if: the files are not in the file cache (the disk is measured), the files are not of ImageNet's size, other
work runs on the cores, or the machine has fewer cores than workers; or the
epoch is so short that starting the workers and their memory is much of it ("samples/s steady" leaves out ten batches).
"""

import functools
import multiprocessing
import time
from typing import Any

import torch
import torchvision
from torch.utils.data import RandomSampler

from benchmarks.loops import kept, make_loader, time_epoch, time_first_batch
from benchmarks.neighbours import read_cpu
from benchmarks.spec import FASTLOAD, TORCH, Case, Measurement, Metric, Side, rates

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


def build_transform(version: str) -> Any:
    """Build torchvision's training transform: a random crop of 224x224, a flip, float32, normalised.

    "v1" and "v2" as in torchvision's own reference scripts; "uint8": v1's, left as bytes.
    """
    if version in ("v1", "uint8"):
        from torchvision import transforms

        values = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
        return transforms.Compose(
            [
                transforms.RandomResizedCrop(224),
                transforms.RandomHorizontalFlip(),
                *(values if version == "v1" else [transforms.PILToTensor()]),
            ]
        )
    from torchvision.transforms import v2

    return v2.Compose(
        [
            v2.RandomResizedCrop(224),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )


@functools.cache
def _image_folder(image_root: str, version: str) -> torchvision.datasets.ImageFolder:
    return torchvision.datasets.ImageFolder(image_root, build_transform(version))


def _loader(side: Side, image_root: str, version: str, num_images: int, batch_size: int) -> Any:
    """Build the side's loader; drawing with replacement makes an epoch of any length out of a small folder."""
    dataset = _image_folder(image_root, version)
    sampler = RandomSampler(
        dataset, replacement=True, num_samples=num_images, generator=torch.Generator().manual_seed(0)
    )
    return make_loader(side, dataset, batch_size=batch_size, sampler=sampler, num_workers=2)


def epoch_or_none(side: Side, *, image_root: str, version: str, num_images: int, batch_size: int) -> Measurement:
    """Time an epoch; for the side without a loader, two processes that load the samples and drop them."""
    if side.package != NO_LOADER.package:
        return epoch(side, image_root=image_root, version=version, num_images=num_images, batch_size=batch_size)
    dataset = _image_folder(image_root, version)
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_load_and_drop, args=(dataset, first, num_images)) for first in range(2)]
    cpu_before = read_cpu().own_s
    start = time.perf_counter()
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    rate = num_images / (time.perf_counter() - start)
    cpu_us = (read_cpu().own_s - cpu_before) / num_images * 1e6
    return {"samples/s steady": rate, "samples/s": rate, "CPU us/sample": cpu_us, "statistics": {}}


def _load_and_drop(dataset: Any, first: int, num_images: int) -> None:
    torch.set_num_threads(1)  # as in a worker
    for number in range(first, num_images, 2):
        dataset[number % len(dataset)]


def epoch(side: Side, *, image_root: str, version: str, num_images: int, batch_size: int) -> Measurement:
    torch.manual_seed(0)
    loader = kept("loader", lambda: _loader(side, image_root, version, num_images, batch_size))
    return time_epoch(loader, samples_per_batch=batch_size, num_warm_batches=10)


def first_batch(side: Side, *, image_root: str, version: str, num_images: int, batch_size: int) -> Measurement:
    torch.manual_seed(0)
    return time_first_batch(_loader(side, image_root, version, num_images, batch_size))


FIRST_BATCH_METRICS = (Metric(name="first batch ms", least_ratio=2.0), Metric(name="iter ms", least_ratio=None))

NO_LOADER = Side(name="no loader", package="none", compared_with="torch")

CASES = (
    Case(
        name="imagefolder-bound",
        measure="benchmarks.cases.imagefolder:epoch_or_none",
        metrics=rates(None, None),
        arguments={"version": "v2", "num_images": 4000, "batch_size": 100},
        quick={"num_images": 2000},
        sides=(TORCH, FASTLOAD, NO_LOADER),
        needs_images=True,
    ),
    Case(
        name="imagefolder-v1",
        measure="benchmarks.cases.imagefolder:epoch",
        metrics=rates(1.3, 1.3),
        arguments={"version": "v1", "num_images": 4000, "batch_size": 100},
        quick={"num_images": 2000},
        needs_images=True,
    ),
    Case(
        name="imagefolder-first-batch",
        measure="benchmarks.cases.imagefolder:first_batch",
        metrics=FIRST_BATCH_METRICS,
        arguments={"version": "v2", "num_images": 2000, "batch_size": 100},
        repetitions=15,
        needs_images=True,
    ),
)
