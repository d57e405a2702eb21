"""A folder of images whose lists are shared by ``fastload.share`` is loaded as with its own lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import fastload


@pytest.mark.parametrize("fuse", [True, "auto", False])
def test_batches_are_those_of_the_lists_and_fused_alike(tmp_path: Path, fuse: Any) -> None:
    rng = np.random.default_rng(0)
    for number in range(8):
        folder = tmp_path / f"class{number % 2}"
        folder.mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (40, 48, 3), np.uint8)).save(folder / f"{number}.jpg")
    steps = [v2.RandomResizedCrop(16), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]

    def loader(*, shared: bool) -> fastload.DataLoader[Any]:
        dataset = ImageFolder(str(tmp_path), v2.Compose(steps))
        if shared:
            dataset.samples = dataset.imgs = fastload.share(dataset.samples)  # type: ignore[assignment]
            dataset.targets = fastload.share(dataset.targets)  # type: ignore[assignment]
        return fastload.DataLoader(dataset, 4, shuffle=True, seed=1, fuse=fuse)

    with_lists, with_shared = loader(shared=False), loader(shared=True)
    for (images, targets), (others, other_targets) in zip(with_lists, with_shared, strict=True):
        assert torch.equal(images, others)
        assert torch.equal(targets, other_targets)
    fused = [
        [line for line in one.explain().splitlines() if "ImageFolder" in line] for one in (with_lists, with_shared)
    ]
    assert fused[0] == fused[1]
