"""Unmodified torchvision pipelines with ``fuse=True``: ImageFolder from JPEG files, and CIFAR-10's size in memory.

Claim: ImageFolder, RandomResizedCrop(224) and a flip, 2 workers: 3 times torch's images per second to normalised
float32, 2.4 times to uint8. CIFAR's size, pad-crop, flip, normalised float32: 40 times.

Meaningless if: as for imagefolder.py.
"""

import functools

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import datasets, transforms

from benchmarks.cases import imagefolder
from benchmarks.loops import kept, make_loader, time_epoch
from benchmarks.spec import TORCH, Case, Measurement, Metric, Side, rates

FUSED = Side(name="fastload fuse=True", package="fastload", options={"fuse": True}, compared_with="torch")
FUSED_THREADS = Side(
    name="fastload fuse=True, threads",
    package="fastload",
    options={"fuse": True, "worker_method": "thread"},
    compared_with="torch",
)


class CifarSizedImages(Dataset[tuple[torch.Tensor, int]]):
    """Images of 32x32 pixels in memory, augmented as CIFAR scripts do it."""

    def __init__(self, num_samples: int) -> None:
        generator = np.random.default_rng(0)
        self.images = generator.integers(0, 256, size=(num_samples, 32, 32, 3), dtype=np.uint8)
        self.labels = generator.integers(0, 10, size=num_samples).tolist()
        self.transform = transforms.Compose(
            [
                transforms.RandomCrop(32, padding=4),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
            ]
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(Image.fromarray(self.images[index])), self.labels[index]


class InMemory(datasets.CIFAR10):
    """The same as CIFAR-10 once it is read."""

    def __init__(self, num_samples: int) -> None:
        made = CifarSizedImages(num_samples)
        datasets.VisionDataset.__init__(self, transform=made.transform)
        self.data, self.targets, self.train = made.images, made.labels, True


_in_memory = functools.cache(InMemory)


def cifar_epoch(side: Side, *, num_samples: int, torch_samples: int, num_workers: int) -> Measurement:
    """Time a shuffled epoch, in batches of 512; torch's side of fewer samples, since it takes so much longer."""
    torch.manual_seed(0)
    dataset = _in_memory(torch_samples if side.package == "torch" else num_samples)
    loader = kept(
        "loader",
        lambda: make_loader(side, dataset, batch_size=512, shuffle=True, drop_last=True, num_workers=num_workers),
    )
    return time_epoch(loader, samples_per_batch=512, num_warm_batches=2 * num_workers or 1)


def _image_folder(name: str, version: str, least_ratio: float) -> Case:
    return Case(
        name=name,
        measure="benchmarks.cases.imagefolder:epoch",
        metrics=rates(least_ratio, None),
        arguments={"version": version, "num_images": 4000, "batch_size": 100},
        quick={"num_images": 2000},
        sides=(TORCH, FUSED, FUSED_THREADS),
        needs_images=True,
    )


def _cifar(name: str, num_workers: int) -> Case:
    return Case(
        name=name,
        measure="benchmarks.cases.fuse:cifar_epoch",
        metrics=(
            Metric(name="samples/s steady", more_is_better=True, least_ratio=40),
            Metric(name="CPU us/sample", least_ratio=None),
        ),
        arguments={"num_samples": 51200, "torch_samples": 10240, "num_workers": num_workers},
        quick={"torch_samples": 5120},
        sides=(TORCH, FUSED, FUSED_THREADS) if num_workers else (TORCH, FUSED),
    )


CASES = (
    _image_folder("fuse-imagefolder-float32", "v1", 3.0),
    _image_folder("fuse-imagefolder-uint8", "uint8", 2.4),
    Case(
        name="fuse-imagefolder-first-batch",
        measure="benchmarks.cases.imagefolder:first_batch",
        metrics=imagefolder.FIRST_BATCH_METRICS,
        arguments={"version": "v1", "num_images": 2000, "batch_size": 100},
        sides=(TORCH, FUSED, FUSED_THREADS),
        needs_images=True,
    ),
    _cifar("fuse-cifar", 2),
    _cifar("fuse-cifar-inline", 0),
)
