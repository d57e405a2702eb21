"""CIFAR-size images in an array: pad by 4, crop, flip, normalise to float32, on the CPU; batches of 512.

Claim: at least 40 times the samples per second of torch's DataLoader with torchvision's v1 transforms, with as many
workers as fastload has threads; and at least 6 times those of a loader that transforms the whole set at the beginning
of an epoch, as airbench does. All sides draw a new order and new crops for each epoch.

Meaningless if: other work runs on the cores, or the machine has fewer cores than threads. fastload writes into batches
that it made room for before, as its loaders do; memory that is new costs as much again.
"""

import functools
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader

from benchmarks.cases.cifar import CifarSizedImages
from benchmarks.loops import kept_loader, time_epoch
from benchmarks.spec import Benchmark, Measurement, Metric, Side

BATCH = 512
PAD = 4


class TransformedEpochs:
    """A loader that transforms all images at the beginning of an epoch, and hands out parts of the result.

    The way of airbench (Jordan, "94% on CIFAR-10 in 3.29 seconds on a single GPU", 2024): images are
    normalised and padded once; in an epoch, all those that are moved by the same number of rows are cropped at once,
    then all that are moved by the same number of columns; half of them are flipped; batches are gathered by index.
    """

    def __init__(self, images: Tensor, labels: Tensor, batch_size: int = BATCH, num_threads: int = 0) -> None:
        self.padded = functional.pad(images, (PAD,) * 4)
        self.labels, self.batch_size, self.num_threads = labels, batch_size, num_threads

    @classmethod
    def of(cls, dataset: CifarSizedImages, num_threads: int) -> "TransformedEpochs":
        """Normalise a dataset's images, to float32."""
        *_, normalise = dataset.transform.transforms
        images = normalise(torch.from_numpy(dataset.images).permute(0, 3, 1, 2).contiguous().float() / 255)
        return cls(images, torch.tensor(dataset.labels), num_threads=num_threads)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        if self.num_threads:
            torch.set_num_threads(self.num_threads)
        num, channels, height, width = self.padded.shape
        tall = self.padded.new_empty(num, channels, height - 2 * PAD, width)
        images = self.padded.new_empty(num, channels, height - 2 * PAD, width - 2 * PAD)
        rows, cols = torch.randint(0, 2 * PAD + 1, (2, num), device=images.device)
        for shift in range(2 * PAD + 1):
            chosen = rows == shift
            tall[chosen] = self.padded[chosen, :, shift : shift + images.shape[2]]
        for shift in range(2 * PAD + 1):
            chosen = cols == shift
            images[chosen] = tall[chosen, :, :, shift : shift + images.shape[3]]
        flip = torch.rand(num, device=images.device) < 0.5
        images = torch.where(flip.view(-1, 1, 1, 1), images.flip(-1), images)
        for rows_of_batch in torch.randperm(num, device=images.device).split(self.batch_size):
            yield images[rows_of_batch], self.labels[rows_of_batch]


class GatheredBatches:
    """Batches made from the array by fastload's native kernel, ahead of the consumer and in order."""

    def __init__(self, dataset: CifarSizedImages, num_threads: int) -> None:
        from fastload.native import arrays
        from fastload.transforms import BatchShape, RandomCrop, RandomHorizontalFlip

        self.write = arrays.transformed
        self.images = torch.from_numpy(dataset.images).permute(0, 3, 1, 2)
        self.labels = torch.tensor(dataset.labels)
        self.members = RandomCrop(32, padding=PAD), RandomHorizontalFlip()
        self.shape = BatchShape(BATCH, 3, 32, 32)
        levels = Image.fromarray(np.repeat(np.arange(256, dtype=np.uint8)[None, :, None], 3, axis=2))
        _, _, to_tensor, normalise = dataset.transform.transforms
        self.table = normalise(to_tensor(levels))[:, 0].contiguous()
        self.pool = ThreadPoolExecutor(num_threads)
        self.ahead = num_threads + 1
        self.rooms = [torch.zeros(self.shape) for _ in range(self.ahead + 1)]
        self.epoch = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.epoch += 1
        order = torch.randperm(len(self.images))
        waiting: deque[Future[tuple[Tensor, Tensor]]] = deque()
        for place, rows_of_batch in enumerate(order.split(BATCH)):
            waiting.append(self.pool.submit(self._make, rows_of_batch, self.rooms[place % len(self.rooms)], self.epoch))
            if len(waiting) == self.ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _make(self, indices: Tensor, out: Tensor, epoch: int) -> tuple[Tensor, Tensor]:
        from fastload.transforms import Draws

        draws = Draws(epoch.to_bytes(8, "little"), indices.numpy())
        rows, cols = [], []
        for member in self.members:
            params = member.draw_for(draws, self.shape)
            its_rows, its_cols = member.steps(params, self.shape, out.device)
            rows += its_rows
            cols += its_cols
        self.write(self.images, rows, cols, out, indices=indices, fill=[0], table=self.table)
        return out, self.labels[indices]


_images = functools.cache(CifarSizedImages)


def _loader(side: Side, dataset: CifarSizedImages, num_threads: int) -> object:
    if side.name == "torch":
        return DataLoader(dataset, BATCH, shuffle=True, num_workers=num_threads)
    return (TransformedEpochs.of if side.name == "whole epochs" else GatheredBatches)(dataset, num_threads)


def epoch(side: Side, *, num_batches: int, num_threads: int) -> Measurement:
    """Time a shuffled epoch of ``num_batches`` batches of 512."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = _images(num_batches * BATCH)
    loader = kept_loader(side, lambda: _loader(side, dataset, num_threads))
    return time_epoch(loader, samples_per_batch=BATCH, num_warm_batches=2 * num_threads)


_TORCH = Side(name="torch", package="none")
_WHOLE = Side(name="whole epochs", package="none")


def _benchmark(other: Side, least_ratio: float, num_threads: int) -> Benchmark:
    return Benchmark(
        name=f"arrays-{other.name.replace(' ', '-')}-{num_threads}-threads",
        measure="benchmarks.cases.arrays:epoch",
        metrics=(
            Metric(name="samples/s", more_is_better=True, least_ratio=least_ratio),
            Metric(name="CPU us/sample", least_ratio=None),
        ),
        arguments={"num_batches": 40, "num_threads": num_threads},
        quick_arguments={"num_batches": 20},
        sides=(other, Side(name="fastload", package="none", compared_with=other.name)),
    )


BENCHMARKS = tuple(
    _benchmark(other, least_ratio, num_threads)
    for other, least_ratio in ((_TORCH, 40), (_WHOLE, 6))
    for num_threads in (1, 2)
)
