"""What ``fastload pack`` gains: sizes, the processor's time to pack and to load, time to read from the disk.

    python -m benchmarks.pack SRC FOLDER [ROUNDS]       SRC: an ImageFolder tree; FOLDER: where packs are written

Packs are compared with the files by turns, so that what else the machine does meets all; printed are the medians, and
the median of the ratios of neighbours. Packing and loading are counted in milliseconds of the processor for an image,
which others leave alone; reading from the disk by the clock. That wants the page cache emptied, which only root may do;
elsewhere the column is left out. The pipeline is RandomResizedCrop(224), flip, ToTensor, Normalize, fused.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torchvision import datasets
from torchvision import transforms as v1

import fastload
from fastload.images import PackedImages
from fastload.pack.description import PackOptions
from fastload.pack.encoding import encode
from fastload.pack.run import pack

KINDS = {
    "as they are": PackOptions(),
    "coefficients": PackOptions(coefficients=True),
    "max-side 500, quality 90": PackOptions(max_side=500, quality=90),
    "max-side 500, quality 90, coefficients": PackOptions(max_side=500, quality=90, coefficients=True),
    "min-side 256, quality 90": PackOptions(min_side=256, quality=90),
    "min-side 256, quality 90, coefficients": PackOptions(min_side=256, quality=90, coefficients=True),
    "raw": PackOptions(raw=True),
    "max-side 500, raw": PackOptions(max_side=500, raw=True),
    "min-side 256, raw": PackOptions(min_side=256, raw=True),
}
_DROP = Path("/proc/sys/vm/drop_caches")


def pipeline() -> v1.Compose:
    """Return what is done to each image."""
    normalise = v1.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    return v1.Compose([v1.RandomResizedCrop(224), v1.RandomHorizontalFlip(), v1.ToTensor(), normalise])


def epoch(loader: Any) -> float:
    """Return the milliseconds of the processor that an image of an epoch takes."""
    began = time.process_time()
    for _ in loader:
        pass
    return 1e3 * (time.process_time() - began) / len(loader.dataset)


def drop_caches() -> None:
    """Have the system forget what it has read."""
    os.sync()
    _DROP.write_text("3")


def packing(folder: datasets.ImageFolder, options: PackOptions, count: int = 60) -> float:
    """Return the milliseconds of the processor that an image takes to be packed, of some images."""
    encode(Path(folder.samples[0][0]).read_bytes(), options)  # imports what it needs
    some = [Path(path).read_bytes() for path, _ in folder.samples[:: max(1, len(folder) // count)]]
    began = time.process_time()
    for data in some:
        encode(data, options)
    return 1e3 * (time.process_time() - began) / len(some)


def read_files(folder: datasets.ImageFolder, order: list[int]) -> int:
    """Read all files, one after the other."""
    count = 0
    for index in order:
        with open(folder.samples[index][0], "rb", buffering=0) as file:
            count += len(file.readall())
    return count


def read_pack(images: PackedImages, order: list[int]) -> int:
    """Read all images, as the fused loader does: sixteen at once are asked for, then each is read."""
    count = 0
    for first in range(0, len(order), 16):
        some = order[first : first + 16]
        images.will_need(some)
        count += sum(len(bytes(images.encoded(index))) for index in some)
    return count


def main(source: str, where: str, rounds: int) -> None:
    """Measure, and print a table."""
    torch.set_num_threads(1)
    folder = datasets.ImageFolder(source, pipeline())
    count = len(folder)
    made, sizes, times = {}, {}, {}
    for name, options in KINDS.items():
        done = pack(source, Path(where) / name.replace(" ", "_").replace(",", ""), options)
        sizes[name], times[name] = done.num_bytes, packing(folder, options)
        made[name] = PackedImages(Path(where) / name.replace(" ", "_").replace(",", ""), pipeline())
    cold = os.access(_DROP, os.W_OK)
    size = sum(os.path.getsize(path) for path, _ in folder.samples)
    print(f"{count} files, {size / 1e6:.1f} MB; {os.cpu_count()} cores", flush=True)

    first: dict[str, list[float]] = {name: [] for name in ("files", *made)}
    read: dict[str, list[float]] = {name: [] for name in made}
    if cold:
        # Before anything is mapped for longer: what is mapped stays in memory.
        generator = torch.Generator().manual_seed(0)
        for turn in range(rounds):
            for name, one in made.items():
                order = torch.randperm(count, generator=generator).tolist()
                ways: list[Any] = [
                    ("files", read_files, lambda: folder),
                    (name, read_pack, lambda root=one.root: PackedImages(root)),
                ]
                for what, function, dataset in ways[:: -1 if turn % 2 else 1]:
                    drop_caches()
                    began = time.perf_counter()
                    function(dataset(), order)
                    first[what].append(1e3 * (time.perf_counter() - began) / count)
                read[name].append(first["files"][-1] / first[name][-1])

    loaders = {name: fastload.DataLoader(one, 50, shuffle=True, seed=1, fuse=True) for name, one in made.items()}
    files = fastload.DataLoader(folder, 50, shuffle=True, seed=1, fuse=True)
    for loader in (files, *loaders.values()):
        epoch(loader)
    taken: dict[str, list[float]] = {name: [] for name in ("files", *made)}
    ratios: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(rounds):
        for name, loader in loaders.items():
            taken["files"].append(epoch(files))
            taken[name].append(epoch(loader))
            ratios[name].append(taken["files"][-1] / taken[name][-1])

    def middle(values: list[float]) -> str:
        return f"{statistics.median(values):.2f} ms" if values else ""

    def ratio(values: list[float]) -> str:
        return f"{statistics.median(values):.2f}x ({min(values):.2f} to {max(values):.2f})" if values else ""

    print("| | size | of the files | packing | loading, fused | files / pack | reading, cold | files / pack |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    print(f"| files | {size / 1e6:.1f} MB | 1 | | {middle(taken['files'])} | 1 | {middle(first['files'])} | 1 |")
    for name in made:
        print(
            f"| {name} | {sizes[name] / 1e6:.1f} MB | {sizes[name] / size:.2f} | {times[name]:.1f} ms "
            f"| {middle(taken[name])} | {ratio(ratios[name])} | {middle(first[name])} | {ratio(read[name])} |"
        )


if __name__ == "__main__":
    main(*sys.argv[1:3], rounds=int(sys.argv[3]) if len(sys.argv) > 3 else 9)
