"""SPDL: its own decoding (FFmpeg's) in threads; and its loader for torch's datasets, in processes."""

import math
import random
from collections.abc import Iterable, Iterator
from typing import Any

import spdl.io
import torch
from spdl.dataloader import DataLoader, get_pytorch_dataloader

from benchmarks.peers.loaders import MEAN, STD, Work, image_files
from benchmarks.peers.loaders.standard import pillow_folder


def load(work: Work, *, style: str) -> Iterable[Any]:
    """Return the loader: style "threads" or "torch"."""
    if style == "torch":
        return get_pytorch_dataloader(
            pillow_folder(work),
            batch_size=work.batch_size,
            shuffle=True,
            num_workers=work.num_workers,
            drop_last=True,
        )
    mean = torch.tensor(MEAN).view(3, 1, 1).mul_(255)
    std = torch.tensor(STD).view(3, 1, 1).mul_(255)

    def collate(samples: list[tuple[Any, int]]) -> tuple[torch.Tensor, torch.Tensor]:
        images = spdl.io.to_torch(spdl.io.convert_frames([frames for frames, _ in samples])).permute(0, 3, 1, 2)
        labels = torch.tensor([label for _, label in samples])
        return ((images - mean).div_(std) if work.normalised else images), labels

    return DataLoader(
        Shuffled(image_files(work)),
        preprocessor=_decode,
        batch_size=work.batch_size,
        drop_last=True,
        aggregator=collate,
        num_threads=work.num_workers,
    )


class Shuffled:
    """A source that gives its items in a new order each time."""

    def __init__(self, items: list[tuple[str, int]]) -> None:
        self.items = items

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return iter(random.sample(self.items, len(self.items)))


def _decode(item: tuple[str, int]) -> tuple[Any, int]:
    """Decode a file, cut out a box as torchvision's RandomResizedCrop draws it, and resize that."""
    path, label = item
    packets = spdl.io.demux_image(path)
    top, left, height, width = _box(packets.height, packets.width)
    steps = [f"crop={width}:{height}:{left}:{top}", "scale=224:224:flags=bilinear"]
    if random.random() < 0.5:
        steps.append("hflip")
    chain = spdl.io.get_video_filter_desc(filter_desc=",".join(steps), pix_fmt="rgb24")
    return spdl.io.decode_packets(packets, filter_desc=chain), label


def _box(height: int, width: int) -> tuple[int, int, int, int]:
    """Draw top, left, height and width; after ten boxes that do not fit, the image's middle."""
    for _ in range(10):
        area = height * width * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        box_width, box_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < box_width <= width and 0 < box_height <= height:
            return (
                random.randint(0, height - box_height),
                random.randint(0, width - box_width),
                box_height,
                box_width,
            )
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side
