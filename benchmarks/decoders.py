"""JPEG decoders on one core, beside each other: whole files, and crops of them resized to 224 pixels.

    uv run --with simplejpeg --with opencv-python-headless python -m benchmarks.decoders NAME=FOLDER ... [--files 100]
        [--rows benchmarks/rows/decoders.csv]

Claims: a whole file takes at most 1/1.25 of the time of libjpeg-turbo 3 (simplejpeg); from a coefficient record, half
of that; a crop, resized, a third of what Pillow takes. Each folder is a kind of files (``imagenet=DIR photos=DIR
cifar=DIR``). The decoders take turns, file by file; of each file the minimum of the repeats counts, in processor time;
printed are milliseconds a file and nanoseconds a pixel of it, means over the files. Of a folder of progressive files
there are no records. Decoders that are not installed are left out.

``--library FILE`` measures another build of the library: run the command with each of them by turns.

Meaningless if: other work runs on the core's other hardware thread.
"""

from __future__ import annotations

import argparse
import importlib
import io
import random
import sys
import time
from collections.abc import Callable
from importlib.metadata import distributions
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torchvision
from PIL import Image

from benchmarks.figures.rows import Row, append_rows
from benchmarks.neighbours import cores_used_by_others, read_cpu
from benchmarks.options import add_rows, check_outputs
from benchmarks.report import look_around, stamp
from fastload import native
from fastload.native import jpeg
from fastload.native.rows import Cut, Status, whole

OTHERS = ("simplejpeg", "opencv-python-headless")
"""Distributions of decoders that are no dependency."""


class File(NamedTuple):
    """A file, and what is made of it."""

    data: bytes
    record: bytes
    """Empty where there is none."""
    whole: Cut
    crop: Cut
    """A square of 0.4 to 1 of the shorter side, resized to 224 pixels and perhaps mirrored."""


Decode = Callable[[File], object]


def decoders(levels: list[str], *, records: bool) -> dict[str, Decode]:
    """Return what decodes a file or its record, by name; ``records``: whether there are any."""

    def own(level: str, *, packed: bool, crop: bool) -> Decode:
        def decode(file: File) -> object:
            source, cut = file.record if packed else file.data, file.crop if crop else file.whole
            found = jpeg.pixels_of_jpeg(source, cut, level=level)
            assert not isinstance(found, Status), found
            return found

        return decode

    def by_pillow(file: File) -> Image.Image:
        top, left, height, width = file.crop.box
        image = Image.open(io.BytesIO(file.data)).convert("RGB").crop((left, top, left + width, top + height))
        image = image.resize((224, 224), Image.Resampling.BILINEAR)
        return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if file.crop.flips[0] else image

    found: dict[str, Decode] = {}
    for level in levels:
        for source in ("file", "record") if records else ("file",):
            found[f"fastload, {source}, {level}"] = own(level, packed=source == "record", crop=False)
            found[f"fastload, {source}, cropped and resized, {level}"] = own(
                level, packed=source == "record", crop=True
            )
    found["Pillow"] = lambda file: np.asarray(Image.open(io.BytesIO(file.data)).convert("RGB"))
    found["Pillow, cropped and resized"] = lambda file: np.asarray(by_pillow(file))
    mode = torchvision.io.ImageReadMode.RGB
    found["torchvision.io"] = lambda file: torchvision.io.decode_jpeg(
        torch.frombuffer(bytearray(file.data), dtype=torch.uint8), mode
    )
    for name, call in (("simplejpeg", "decode_jpeg"), ("cv2", "imdecode")):
        try:
            library = importlib.import_module(name)
        except ImportError:
            print(f"{name} is not installed: left out", file=sys.stderr)
            continue
        function = getattr(library, call)
        if name == "cv2":
            library.setNumThreads(1)
            found["OpenCV"] = lambda file, f=function: f(np.frombuffer(file.data, np.uint8), 1)  # type: ignore[misc]
        else:
            found["simplejpeg (libjpeg-turbo 3)"] = lambda file, f=function: f(file.data, "RGB")  # type: ignore[misc]
    return found


def files_of(folder: Path, most: int) -> list[File]:
    """Return files; they have no records where the first is progressive.

    Others of which no record can be made are left out.
    """
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    found: list[File] = []
    chance = random.Random(0)
    for path in paths[:: max(1, len(paths) // most)][:most]:
        data = path.read_bytes()
        size = jpeg.read_size(data)
        record = b"" if size.progressive else jpeg.record_of_jpeg(data)
        if isinstance(record, Status) or (found and bool(found[0].record) == size.progressive):
            continue
        side = int(min(size.height, size.width) * chance.uniform(0.4, 1))
        box = (chance.randrange(size.height - side + 1), chance.randrange(size.width - side + 1), side, side)
        crop = Cut(box, (224, 224), "bilinear", (0, 0, 224, 224), (chance.random() < 0.5, False))
        found.append(File(data, record, whole(size.height, size.width), crop))
    return found


def compare(files: list[File], repeats: int) -> dict[tuple[str, str], float]:
    """Print a line for each decoder; return what it takes, by decoder and unit."""
    levels = list(native.LEVELS[: native.LEVELS.index(native.processor_level()) + 1])
    sides = decoders(levels, records=bool(files[0].record))
    best = dict.fromkeys(sides, 0)
    pixels = 0
    for done, file in enumerate(files, 1):
        pixels += file.whole.size[0] * file.whole.size[1]
        least = dict.fromkeys(sides, 1 << 62)
        for _ in range(repeats):
            for name, decode in sides.items():
                began = time.thread_time_ns()
                decode(file)
                least[name] = min(least[name], time.thread_time_ns() - began)
        for name in sides:
            best[name] += least[name]
        print(f"\r{done} of {len(files)} files", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print("| decoder | ms a file | ns a pixel |\n| --- | --- | --- |")
    found = {}
    for name, taken in best.items():
        found[name, "CPU ms/file"] = taken / len(files) / 1e6
        found[name, "CPU ns/pixel"] = taken / pixels
        print(f"| {name} | {taken / len(files) / 1e6:.3f} | {taken / pixels:.2f} |")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--files", type=int, default=100, help="of each folder, at most")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--library", type=Path, default=native.LIBRARY, help="a build of fastload/native/_fastload.so")
    add_rows(parser)
    options = parser.parse_args()
    check_outputs(parser, options)
    native.LIBRARY = options.library
    surroundings = look_around(sys.argv[1:], module="benchmarks.decoders")
    others = {found.name: found.version for found in distributions() if found.name in OTHERS}
    versions = {**surroundings.versions, **others}
    torch.set_num_threads(1)
    for given in options.folders:
        name, _, folder = given.partition("=")
        files = files_of(Path(folder), options.files)
        if not files:
            parser.error(f"{folder} has no JPEG files that fastload decodes")
        plain, packed = (sum(len(file[place]) for file in files) for place in (0, 1))
        size, ratio = plain / len(files), packed / plain
        records = f", records {ratio:.2f} times" if packed else ""
        print(f"\n## {name}: {len(files)} files, {size:,.0f} bytes each{records}")
        before = read_cpu()
        taken = compare(files, options.repeats)
        if packed:
            taken["fastload, record", "size, of the files"] = ratio
        common = stamp(surroundings, cores_used_by_others(before, read_cpu()), versions)
        note = f"{len(files)} files of {size:,.0f} bytes on average; means of each file's minimum of {options.repeats}"
        append_rows(
            options.rows,
            [
                Row(case=name, side=side, metric=metric, value=value, n=len(files), **common, note=note)
                for (side, metric), value in taken.items()
            ],
        )


if __name__ == "__main__":
    main()
