"""Samples of CIFAR's size: 32x32 images in memory, augmented one at a time; with 2 workers, and inline.

Claim: at least 0.97 times torch's samples per second. Seeding each sample costs about 6 us, so the row with
``seeding="torch"`` stands beside it.

Meaningless if: other work runs on the cores, or the machine has fewer cores than workers.
"""

import functools

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms

from benchmarks.loops import kept_loader, make_loader, time_epoch
from benchmarks.spec import WITH_TORCH_SEEDING, Benchmark, Measurement, Side, rates


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


_images = functools.cache(CifarSizedImages)


def epoch(side: Side, *, num_batches: int, num_workers: int) -> Measurement:
    """Time a shuffled epoch of ``num_batches`` batches of 128."""
    torch.manual_seed(0)
    dataset = _images(num_batches * 128)
    loader = kept_loader(
        side, lambda: make_loader(side, dataset, batch_size=128, shuffle=True, num_workers=num_workers)
    )
    return time_epoch(loader, samples_per_batch=128, num_warm_batches=2 * num_workers or 1)


BENCHMARKS = tuple(
    Benchmark(
        name=name,
        measure="benchmarks.cases.cifar:epoch",
        metrics=rates(),
        arguments={"num_batches": num_batches, "num_workers": num_workers},
        quick_arguments={"num_batches": num_batches // 4},
        sides=WITH_TORCH_SEEDING,
    )
    for name, num_batches, num_workers in (("cifar", 160, 2), ("inline", 80, 0))
)
