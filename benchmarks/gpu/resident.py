"""An epoch over images that lie on the device: ``DataLoader(resident="device")`` against airbench's way.

Claim: at least as many images per second. Here each image of each epoch is drawn for from its own key; there the whole
set is augmented at once, with the device's generator.

The data: 50,000 images of 3 x 32 x 32 uint8, batches of 1,024, padded by 4, cropped, flipped, normalised; bfloat16 out.
An epoch is timed from before ``iter()`` to behind the last kernel; what is done once for all epochs (upload, and
airbench's normalising and padding) goes before. The consumer touches nothing of a batch.

Meaningless if: the data do not fit on the device beside the model, since then neither is possible.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from benchmarks.airbench import TransformedEpochs
from benchmarks.gpu.made_data import MEAN, STD, classes, noise
from benchmarks.gpu.measuring import measuring, seconds_of
from benchmarks.loops import kept
from benchmarks.spec import Measurement, Side
from fastload import DataLoader
from fastload import transforms as T  # noqa: N812

_DTYPE = torch.bfloat16
_SIZE = 32
_PADDING = 4


def array_loader(images: Tensor, labels: Tensor, batch_size: int, device: str, **options: Any) -> Any:
    """Return fastload's loader over images [N, 3, 32, 32] uint8, which lie on the device unless ``resident=None``."""
    options = {"resident": "device", "device": device, "batch_transform": augmentation(), **options}
    return DataLoader(TensorDataset(images, labels), batch_size, shuffle=True, seed=1, drop_last=True, **options)


def augmentation() -> T.Compose:
    crop = T.RandomCrop(_SIZE, padding=_PADDING, padding_mode="reflect")
    return T.Compose([crop, T.RandomHorizontalFlip(), T.ToNormalized(MEAN, STD, _DTYPE)])


@measuring
def epoch(side: Side, *, device: str, num_images: int, batch_size: int) -> Measurement:
    where = torch.device(device)
    epochs = kept(side.name, lambda: _epochs(side, num_images, batch_size, device))
    num_batches = 0

    def work() -> None:
        nonlocal num_batches
        for _batch in epochs:
            num_batches += 1

    seconds = seconds_of(work, where)
    if num_batches != num_images // batch_size:
        raise RuntimeError(f"{side.name} gave {num_batches} batches, expected {num_images // batch_size}")
    return {"images/s": num_batches * batch_size / seconds, "epoch ms": seconds * 1e3}


def _epochs(side: Side, num_images: int, batch_size: int, device: str) -> Any:
    images, labels = noise(num_images, 3, _SIZE, _SIZE), classes(num_images)
    if side.package == "fastload":
        return array_loader(images, labels, batch_size, device)
    mean, std = (torch.tensor(values, dtype=_DTYPE, device=device).view(1, -1, 1, 1) for values in (MEAN, STD))
    normalised = (images.to(device).to(_DTYPE) / 255 - mean) / std
    whole = num_images // batch_size * batch_size  # it drops no batch, and the other side does
    return TransformedEpochs(normalised[:whole], labels[:whole].to(device), batch_size)
