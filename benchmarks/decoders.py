"""JPEG decoders on one core, beside each other; and what each step of fastload's own costs.

    uv run --with simplejpeg --with opencv-python-headless python -m benchmarks.decoders NAME=FOLDER ... [--files 100]
        [--rows benchmarks/rows/decoders.csv]

Claims: a whole file takes at most 1/1.25 of the time of libjpeg-turbo 3 (simplejpeg); from a coefficient record, half
of that. Each folder is a kind of files (``imagenet=DIR photos=DIR cifar=DIR``). The decoders take turns, file by file;
of each file the minimum of the repeats counts, in processor time; printed are milliseconds a file and nanoseconds a
pixel, means over the files. Of a folder of progressive files there are no records, and no steps. Decoders that are not
installed are left out. A C compiler is needed for the steps.

Meaningless if: other work runs on the core's other hardware thread.
"""

from __future__ import annotations

import argparse
import collections
import importlib
import io
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import distributions
from pathlib import Path

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
from fastload.native.rows import Status, whole

OTHERS = ("simplejpeg", "opencv-python-headless")
"""Distributions of decoders that are no dependency."""


def decoders(levels: list[str], *, records: bool) -> dict[str, Callable[[bytes, bytes], object]]:
    """Return what makes [H, W, 3] of a file and its record, by name; ``records``: whether there are any."""

    def own(level: str, *, packed: bool) -> Callable[[bytes, bytes], object]:
        def decode(data: bytes, record: bytes) -> object:
            size = jpeg.read_size(data)
            found = jpeg.pixels_of_jpeg(record if packed else data, whole(size.height, size.width), level=level)
            assert not isinstance(found, Status), found
            return found

        return decode

    found: dict[str, Callable[[bytes, bytes], object]] = {}
    for level in levels:
        found[f"fastload, file, {level}"] = own(level, packed=False)
        if records:
            found[f"fastload, record, {level}"] = own(level, packed=True)
    found["Pillow"] = lambda data, record: np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    mode = torchvision.io.ImageReadMode.RGB
    found["torchvision.io"] = lambda data, record: torchvision.io.decode_jpeg(
        torch.frombuffer(bytearray(data), dtype=torch.uint8), mode
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
            found["OpenCV"] = lambda data, record, f=function: f(np.frombuffer(data, np.uint8), 1)  # type: ignore[misc]
        else:
            found["simplejpeg (libjpeg-turbo 3)"] = lambda data, record, f=function: f(data, "RGB")  # type: ignore[misc]
    return found


def files_of(folder: Path, most: int) -> list[tuple[Path, bytes, bytes]]:
    """Return paths, files and records; these are empty where the first file is progressive.

    Others of which no record can be made are left out.
    """
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    found = []
    for path in paths[:: max(1, len(paths) // most)][:most]:
        data = path.read_bytes()
        progressive = jpeg.read_size(data).progressive
        record = b"" if progressive else jpeg.record_of_jpeg(data)
        if not isinstance(record, Status) and (not found or bool(found[0][2]) != progressive):
            found.append((path, data, record))
    return found


def compare(files: list[tuple[Path, bytes, bytes]], repeats: int) -> dict[tuple[str, str], float]:
    """Print a line for each decoder; return what it takes, by decoder and unit."""
    levels = list(native.LEVELS[: native.LEVELS.index(native.processor_level()) + 1])
    sides = decoders(levels, records=bool(files[0][2]))
    best = dict.fromkeys(sides, 0)
    pixels = 0
    for done, (_, data, record) in enumerate(files, 1):
        width, height = jpeg.read_size(data)[:2]
        pixels += width * height
        least = dict.fromkeys(sides, 1 << 62)
        for _ in range(repeats):
            for name, decode in sides.items():
                began = time.thread_time_ns()
                decode(data, record)
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


def steps(files: list[tuple[Path, bytes, bytes]], repeats: int) -> dict[tuple[str, str], float]:
    """Print a line for each step, at the best level; return what it takes with those before it."""
    sources = native.LIBRARY.with_name("src")
    level = str(native.LEVELS.index(native.processor_level()))
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "decode_steps")
        names = [str(Path(__file__).with_name("decode_steps.c")), *map(str, sorted(sources.glob("*.c")))]
        flags = ["-std=gnu11", "-O3", "-ffp-contract=off", f"-I{sources}"]
        subprocess.run(["cc", *flags, *names, "-o", str(program), "-lm"], check=True)
        command = [str(program), level, str(repeats), *(str(path) for path, _, _ in files)]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    sums: dict[tuple[str, str], list[int]] = collections.defaultdict(lambda: [0, 0, 0])
    for line in said.splitlines():
        kind, step, *numbers = line.split("\t")
        sums[kind, step] = [a + int(b) for a, b in zip(sums[kind, step], numbers, strict=True)]
    print("| data | step | ns a pixel | ns a byte |\n| --- | --- | --- | --- |")
    found = {}
    for (kind, step), (taken, pixels, size) in sums.items():
        found[f"fastload, {kind}, up to {step}", "CPU ns/pixel"] = taken / pixels
        found[f"fastload, {kind}, up to {step}", "CPU ns/byte"] = taken / size
        print(f"| {kind} | {step} | {taken / pixels:.3f} | {taken / size:.3f} |")
    return found


def main() -> None:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--files", type=int, default=100, help="of each folder, at most")
    parser.add_argument("--repeats", type=int, default=9)
    add_rows(parser)
    options = parser.parse_args()
    check_outputs(parser, options)
    surroundings = look_around(sys.argv[1:], module="benchmarks.decoders")
    others = {found.name: found.version for found in distributions() if found.name in OTHERS}
    versions = {**surroundings.versions, **others}
    torch.set_num_threads(1)
    for given in options.folders:
        name, _, folder = given.partition("=")
        files = files_of(Path(folder), options.files)
        if not files:
            parser.error(f"{folder} has no JPEG files that fastload decodes")
        plain, packed = (sum(len(file[place]) for file in files) for place in (1, 2))
        size, ratio = plain / len(files), packed / plain
        records = f", records {ratio:.2f} times" if packed else ""
        print(f"\n## {name}: {len(files)} files, {size:,.0f} bytes each{records}")
        before = read_cpu()
        taken = compare(files, options.repeats)
        if packed:
            taken |= steps(files, options.repeats)
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
