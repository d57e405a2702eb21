"""The way of airbench (Jordan, "94% on CIFAR-10 in 3.29 seconds on a single GPU", 2024), in code of our own."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

_PAD = 4


class TransformedEpochs:
    """A loader that transforms all images at the beginning of an epoch, and hands out parts of the result.

    Images are normalised and padded once; in an epoch, all those that are moved by the same number of rows are cropped
    at once, then all that are moved by the same number of columns; half of them are flipped; batches are gathered by
    index.
    """

    def __init__(self, images: Tensor, labels: Tensor, batch_size: int, num_threads: int = 0) -> None:
        self.padded = functional.pad(images, (_PAD,) * 4)
        self.labels, self.batch_size, self.num_threads = labels, batch_size, num_threads

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        if self.num_threads:
            torch.set_num_threads(self.num_threads)
        num, channels, height, width = self.padded.shape
        tall = self.padded.new_empty(num, channels, height - 2 * _PAD, width)
        images = self.padded.new_empty(num, channels, height - 2 * _PAD, width - 2 * _PAD)
        rows, cols = torch.randint(0, 2 * _PAD + 1, (2, num), device=images.device)
        for shift in range(2 * _PAD + 1):
            chosen = rows == shift
            tall[chosen] = self.padded[chosen, :, shift : shift + images.shape[2]]
        for shift in range(2 * _PAD + 1):
            chosen = cols == shift
            images[chosen] = tall[chosen, :, :, shift : shift + images.shape[3]]
        flip = torch.rand(num, device=images.device) < 0.5
        images = torch.where(flip.view(-1, 1, 1, 1), images.flip(-1), images)
        for rows_of_batch in torch.randperm(num, device=images.device).split(self.batch_size):
            yield images[rows_of_batch], self.labels[rows_of_batch]
