"""What ``fastload pack`` gains: sizes, the processor's time to pack and to load, time to read from the disk.

    python -m benchmarks.pack SRC FOLDER [--rounds 9] [--rows benchmarks/rows/pack.csv]

SRC is an ImageFolder tree, FOLDER where packs are written.

Packs are compared with the files by turns, so that what else the machine does meets all; printed are the medians, and
the median of the ratios of neighbours. Packing and loading are counted in milliseconds of the processor for an image,
which others leave alone; reading from the disk by the clock. That wants the page cache emptied, which only root may do;
elsewhere the column is left out. The pipeline is RandomResizedCrop(224), flip, ToTensor, Normalize, fused.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torchvision import datasets

import fastload
from benchmarks.cases.imagefolder import build_transform
from benchmarks.figures.parts import packs
from benchmarks.figures.rows import Row, Rows, append_rows
from benchmarks.neighbours import cores_used_by_others, read_cpu
from benchmarks.options import add_rows, check_outputs
from benchmarks.report import look_around, spread_row, stamp, with_ratio
from benchmarks.summary import Ratio
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


def epoch(loader: Any) -> float:
    """Return the milliseconds of the processor that an image of an epoch takes."""
    began = time.process_time()
    for _ in loader:
        pass
    return 1e3 * (time.process_time() - began) / len(loader.dataset)


def drop_caches() -> None:
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


@dataclass
class Found:
    """What was measured of the files, and of each kind of pack."""

    count: int
    """How many files there are."""
    sizes: dict[str, int]
    """Bytes, of the files and of each pack."""
    packing: dict[str, float]
    """Milliseconds of the processor for an image that is packed."""
    taken: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Milliseconds of the processor for an image of each epoch."""
    ratios: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """The files' epoch before a pack's, divided by the pack's."""
    first: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Milliseconds for an image that is read from the disk."""
    read: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """The files' neighbouring read, divided by the pack's."""

    @property
    def kinds(self) -> list[str]:
        return list(self.packing)


def measure(source: str, where: Path, rounds: int) -> Found:
    """Pack the files in all ways, and read and load the packs beside them."""
    torch.set_num_threads(1)
    folder = datasets.ImageFolder(source, build_transform("v1"))
    made = {}
    found = Found(len(folder), {"files": sum(os.path.getsize(path) for path, _ in folder.samples)}, {})
    for name, options in KINDS.items():
        done = pack(source, where / name.replace(" ", "_").replace(",", ""), options)
        found.sizes[name], found.packing[name] = done.num_bytes, packing(folder, options)
        made[name] = PackedImages(where / name.replace(" ", "_").replace(",", ""), build_transform("v1"))
    print(f"{len(folder)} files, {found.sizes['files'] / 1e6:.1f} MB; {os.cpu_count()} cores", flush=True)
    if os.access(_DROP, os.W_OK):
        read_cold(folder, made, rounds, found)  # before anything is mapped for longer: what is mapped stays in memory

    loaders = {name: fastload.DataLoader(one, 50, shuffle=True, seed=1, fuse=True) for name, one in made.items()}
    files = fastload.DataLoader(folder, 50, shuffle=True, seed=1, fuse=True)
    for loader in (files, *loaders.values()):
        epoch(loader)
    for _ in range(rounds):
        for name, loader in loaders.items():
            found.taken["files"].append(epoch(files))
            found.taken[name].append(epoch(loader))
            found.ratios[name].append(found.taken["files"][-1] / found.taken[name][-1])
    return found


def read_cold(folder: datasets.ImageFolder, made: Mapping[str, PackedImages], rounds: int, found: Found) -> None:
    """Read files and packs by turns, each with an empty page cache."""
    generator = torch.Generator().manual_seed(0)
    for turn in range(rounds):
        for name, one in made.items():
            order = torch.randperm(len(folder), generator=generator).tolist()
            ways: list[Any] = [
                ("files", read_files, lambda: folder),
                (name, read_pack, lambda root=one.root: PackedImages(root)),
            ]
            for what, function, dataset in ways[:: -1 if turn % 2 else 1]:
                drop_caches()
                began = time.perf_counter()
                function(dataset(), order)
                found.first[what].append(1e3 * (time.perf_counter() - began) / len(folder))
            found.read[name].append(found.first["files"][-1] / found.first[name][-1])


def rows_of(found: Found, common: Mapping[str, str]) -> list[Row]:
    """Return the rows: of the files and of each pack sizes, times, and ratios to the files."""
    note = f"{found.count} files; RandomResizedCrop(224), flip, ToTensor, Normalize, fused, one process"
    common = {**common, "note": note}

    def turns(side: str, metric: str, values: list[float], neighbours: list[float]) -> Row:
        row = spread_row("pack", side, metric, values, common)
        if not neighbours:
            return row
        ratio = Ratio(value=statistics.median(neighbours), low=min(neighbours), high=max(neighbours))
        return dataclasses.replace(with_ratio(row, ratio, f"{side} / files"), ratio_spread="min, max")

    rows = []
    for side in ("files", *found.kinds):
        once = {"size MB": found.sizes[side] / 1e6}
        if side != "files":
            once["size, of the files"] = found.sizes[side] / found.sizes["files"]
            once["packing, CPU ms/image"] = found.packing[side]
        rows += [Row(case="pack", side=side, metric=name, value=value, n=1, **common) for name, value in once.items()]
        rows.append(turns(side, "loading, CPU ms/image", found.taken[side], found.ratios[side]))
        if found.first[side]:
            rows.append(turns(side, "reading cold, ms/image", found.first[side], found.read[side]))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", metavar="SRC", type=Path)
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    add_rows(parser)
    options = parser.parse_args()
    check_outputs(parser, options)
    surroundings = look_around(sys.argv[1:], module="benchmarks.pack")
    before = read_cpu()
    found = measure(str(options.source), options.folder, options.rounds)
    rows = rows_of(found, stamp(surroundings, cores_used_by_others(before, read_cpu())))
    print(packs(Rows({"pack": rows})))
    append_rows(options.rows, rows)


if __name__ == "__main__":
    main()
