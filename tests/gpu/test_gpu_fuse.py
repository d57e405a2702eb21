"""A fused loader whose values a real GPU makes: the CPU's batches, and a host that never waits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision import datasets
from torchvision import transforms as v1
from torchvision.transforms import v2

from fastload import DataLoader
from fastload import transforms as T

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
CHAINS: dict[str, list[Any]] = {
    "crop, flip, normalise": [
        v1.RandomCrop(32, padding=4),
        v1.RandomHorizontalFlip(),
        v1.ToTensor(),
        v1.Normalize(MEAN, STD),
    ],
    "half": [v2.ToImage(), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float16, scale=True), v2.Normalize(MEAN, STD)],
    "bytes": [v1.RandomCrop(32, padding=4, padding_mode="reflect"), v1.PILToTensor()],
}


class Small(datasets.CIFAR10):
    """CIFAR-10 as it is in memory, of random pixels."""

    def __init__(self, chain: str) -> None:
        datasets.VisionDataset.__init__(self, transform=v1.Compose(CHAINS[chain]))
        noise = np.random.default_rng(0)
        self.data = noise.integers(0, 256, (96, 32, 32, 3), dtype=np.uint8)
        self.targets = list(range(96))


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"channels_last": True}, {"fixed_buffers": True}], ids=str)
@pytest.mark.parametrize("chain", CHAINS)
def test_batches_are_those_of_the_cpu(chain, options):
    loader = DataLoader(Small(chain), 16, shuffle=True, seed=3, fuse=True, device="cuda", **options)
    assert any(line.endswith("device") for line in loader.explain().splitlines()) == (chain != "bytes")
    plain = DataLoader(Small(chain), 16, shuffle=True, seed=3, fuse=True)
    for _ in range(2):
        for (images, targets), (others, labels) in zip(loader, plain, strict=True):
            assert images.device.type == targets.device.type == "cuda"
            assert (images.dtype, images.shape) == (others.dtype, others.shape)
            layout = torch.channels_last if "channels_last" in options else torch.contiguous_format
            assert images.is_contiguous(memory_format=layout)
            assert torch.equal(images.cpu(), others)
            assert torch.equal(targets.cpu(), labels)
    loader.close()


@pytest.mark.parametrize("transform", [None, T.RandomHorizontalFlip()], ids=str)
@pytest.mark.parametrize("chain", CHAINS)
def test_nothing_waits_for_the_device(without_waiting, chain, transform):
    loader = DataLoader(
        Small(chain), 16, shuffle=True, seed=3, fuse=True, device="cuda", batch_transform=transform, num_workers=1
    )
    kept: list[Tensor] = [images for images, _ in loader]  # what is compiled or allocated once has been
    with without_waiting():
        kept += [images for images, _ in loader]
    assert len(kept) == 12
    loader.close()
