"""From JPEG files to rows of a batch, by the native kernels, beside Pillow with torchvision.

    uv run python -m benchmarks.native_rows --data DIR [--repeats 5] [--files 500]
        [--rows benchmarks/rows/native.csv]

Claim: RandomResizedCrop(224) and a flip to uint8 takes a third of the processor time that Pillow takes for it, and
resizing a mean crop at most 0.14 ms. The sides take turns in one process, with the same boxes; each number is the
median over the repetitions, in processor time, which other work on the machine disturbs less than the clock. The rows
of threads are by the clock.

The first line says which Pillow it was: run in an environment where pillow-simd stands in Pillow's place, the sides of
Pillow are pillow-simd's. There fastload leaves files to pillow-simd, whose values are others than Pillow's, so the
native sides then say what the library would take; "loader" is what a loader without workers takes, fused and not.

Meaningless if: the files are not of ImageNet's size, or, for the threads, other work runs on the cores.
"""

import argparse
import io
import json
import math
import os
import platform
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import PIL
import torch
import torchvision
from PIL import Image, features
from torchvision import datasets, transforms
from torchvision.transforms import functional

import fastload
from benchmarks.figures.rows import append_rows
from benchmarks.neighbours import cores_used_by_others, read_cpu
from benchmarks.options import add_rows, check_outputs
from benchmarks.report import look_around, spread_row, stamp
from fastload import native
from fastload.doctor.images import active, installed
from fastload.native import jpeg, rows

_SIZE = 224
_NORMALIZE = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


class Work:
    """Files in memory, each with a box, and whether it is flipped; the same for all sides."""

    def __init__(self, paths: list[Path]) -> None:
        draw = random.Random(0)
        torch.manual_seed(0)
        self.files = [path.read_bytes() for path in paths]
        self.boxes, self.flips = [], []
        for data in self.files:
            width, height = Image.open(io.BytesIO(data)).size
            blank = torch.empty(1, 1, 1).expand(3, height, width)
            self.boxes.append(transforms.RandomResizedCrop.get_params(blank, (0.08, 1.0), (3 / 4, 4 / 3)))
            self.flips.append(draw.random() < 0.5)
        size = (_SIZE, _SIZE)
        self.cuts = [
            rows.Cut(tuple(box), size, "bilinear", (0, 0, *size), (flip, False))
            for box, flip in zip(self.boxes, self.flips, strict=True)
        ]
        # All of each image, and the middle that most pipelines evaluate on.
        self.wholes, self.middles = [], []
        for data in self.files:
            width, height = jpeg.read_size(data)[:2]
            box = (0, 0, height, width)
            self.wholes.append(rows.Cut(box, (height, width), "bilinear", box, (False, False)))
            ratio = 256 / min(height, width)
            h, w = (256 if side == min(height, width) else int(ratio * side) for side in (height, width))
            window = ((h - _SIZE) // 2, (w - _SIZE) // 2, _SIZE, _SIZE)
            self.middles.append(rows.Cut(box, (h, w), "bilinear", window, (False, False)))


def by_pillow(work: Work, index: int) -> Image.Image:
    image = Image.open(io.BytesIO(work.files[index])).convert("RGB")
    image = functional.resized_crop(image, *work.boxes[index], [_SIZE, _SIZE])
    return functional.hflip(image) if work.flips[index] else image


def order() -> rows.Order:
    """Return the order of the installed Pillow, or some order for one whose values are its own."""
    found = rows.pillow_order()
    return rows.Order.COLUMNS_FIRST if found is None else found


def which_pillow() -> str:
    name, trouble = active(PIL.__version__, installed(Path(PIL.__file__).parent.parent))
    return f"{name} {PIL.__version__}{', ' if trouble else ''}{trouble}"


def sides(work: Work) -> dict[str, Callable[[int], object]]:
    """Return what is measured: functions of an index."""
    levels = torch.arange(256, dtype=torch.float32).expand(3, 1, 256)
    table = _NORMALIZE(levels.div(255)).reshape(3, 256)
    planes = torch.empty(3, _SIZE, _SIZE, dtype=torch.uint8)
    normal = torch.empty(3, _SIZE, _SIZE)
    to_tensor = transforms.ToTensor()
    decoded = [np.asarray(Image.open(io.BytesIO(data)).convert("RGB")) for data in work.files[:100]]

    def pixels(cuts: list[rows.Cut], layout: str = "RGB", level: str = native.LEVELS[-1]) -> Callable[[int], object]:
        def one(index: int) -> None:
            found = jpeg.pixels_of_jpeg(work.files[index], cuts[index], layout, order=order(), level=level)
            assert not isinstance(found, rows.Status), found

        return one

    def tensor(table: torch.Tensor | None, out: torch.Tensor) -> Callable[[int], object]:
        def one(index: int) -> None:
            found = jpeg.row_of_jpeg(work.files[index], work.cuts[index], table, out, order=order())
            assert found is out, found

        return one

    def resize(level: str) -> Callable[[int], object]:
        return lambda index: rows.pixels_of_image(
            decoded[index % 100], work.cuts[index % 100], order=order(), level=level
        )

    crops = []
    for image, (top, left, height, width) in zip(decoded, work.boxes, strict=False):
        crops.append(Image.fromarray(image[top : top + height, left : left + width]))

    best = native.LEVELS.index(native.processor_level())
    found: dict[str, Callable[[int], object]] = {
        "Pillow + torchvision, uint8": lambda index: functional.pil_to_tensor(by_pillow(work, index)),
        "Pillow + torchvision, float32": lambda index: _NORMALIZE(to_tensor(by_pillow(work, index))),
        "Pillow, decoding alone": lambda index: Image.open(io.BytesIO(work.files[index])).convert("RGB"),
        "Pillow, resizing crops of decoded files alone": lambda index: crops[index % 100].resize(
            (_SIZE, _SIZE), Image.Resampling.BILINEAR
        ),
        "native, headers alone": lambda index: jpeg.read_size(work.files[index]),
    }
    for level in native.LEVELS[: best + 1]:
        found[f"native, uint8 NHWC, {level}"] = pixels(work.cuts, level=level)
        found[f"native, resize alone, {level}"] = resize(level)
    for layout in ("RGB", "RGBX"):
        found[f"native, Resize(256) and CenterCrop(224), {layout}"] = pixels(work.middles, layout)
        found[f"native, whole files, {layout}"] = pixels(work.wholes, layout)
    found["native, uint8 NCHW"] = tensor(None, planes)
    found["native, float32 NCHW"] = tensor(table, normal)
    return found


def milliseconds(side: Callable[[int], object], num: int) -> float:
    """Return processor time an image."""
    start = time.process_time()
    for index in range(num):
        side(index)
    return (time.process_time() - start) / num * 1e3


def loader_milliseconds(folder: str, fuse: bool) -> float:
    """Return processor time an image of a whole pass by a loader without workers, to normalised float32."""
    steps = [
        transforms.RandomResizedCrop(_SIZE),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        _NORMALIZE,
    ]
    dataset = datasets.ImageFolder(folder, transforms.Compose(steps))
    loader = fastload.DataLoader(dataset, 100, seed=1, fuse=fuse)
    start = time.process_time()
    for _ in loader:
        pass
    return (time.process_time() - start) / len(dataset) * 1e3


def rate(work: Work, num_threads: int) -> float:
    """Return images a second by the clock, uint8, each thread its own row of one batch."""
    batch = torch.empty(num_threads, 3, _SIZE, _SIZE, dtype=torch.uint8)

    def run(row: int) -> None:
        for index in range(row, len(work.files), num_threads):
            jpeg.row_of_jpeg(work.files[index], work.cuts[index], None, batch[row], order=order())

    threads = [threading.Thread(target=run, args=(row,)) for row in range(num_threads)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(work.files) / (time.perf_counter() - start)


def main() -> None:
    """Measure, and print a line for each side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", default=os.environ.get("FASTLOAD_BENCH_DATA"), help="an ImageFolder tree of JPEG files"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--files", type=int, default=500)
    add_rows(parser)
    options = parser.parse_args()
    check_outputs(parser, options)
    surroundings, before = look_around(sys.argv[1:], module="benchmarks.native_rows"), read_cpu()
    if not options.data:
        parser.error("--data or FASTLOAD_BENCH_DATA must name an ImageFolder tree of JPEG files")
    torch.set_num_threads(1)
    paths = sorted(path for path in Path(options.data).rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    ready = [path for path in paths if jpeg.read_size(path.read_bytes()).status is rows.Status.DONE]
    work = Work(ready[: options.files])
    print(
        json.dumps(
            {
                "files": len(work.files),
                "left to Pillow": len(paths) - len(ready),
                "mean bytes": round(sum(map(len, work.files)) / len(work.files)),
                "mean side of a box": round(sum(math.sqrt(box[2] * box[3]) for box in work.boxes) / len(work.boxes)),
                "machine": platform.processor() or platform.machine(),
                "level": native.processor_level(),
                "cores": os.cpu_count(),
                "load before": os.getloadavg()[0],
                "torch": torch.__version__,
                "torchvision": torchvision.__version__,
                "Pillow": which_pillow(),
                "libjpeg-turbo of Pillow": features.version_feature("libjpeg_turbo"),
                "resizes as the library": rows.pillow_order() is not None,
            }
        )
    )
    measured: dict[str, list[float]] = {}
    for _ in range(options.repeats):
        for name, side in sides(work).items():
            measured.setdefault(name, []).append(milliseconds(side, len(work.files)))
        for fuse in (False, True):
            name = f"loader without workers, float32, fuse={fuse}"
            measured.setdefault(name, []).append(loader_milliseconds(options.data, fuse))
    for name, values in measured.items():
        print(
            json.dumps(
                {"side": name, "ms an image": round(statistics.median(values), 4), "all": [round(v, 4) for v in values]}
            )
        )
    rates = {num_threads: [rate(work, num_threads) for _ in range(options.repeats)] for num_threads in (1, 2)}
    for num_threads, values in rates.items():
        print(
            json.dumps(
                {
                    "threads": num_threads,
                    "images/s": round(statistics.median(values)),
                    "all": [round(v) for v in values],
                }
            )
        )
    common = stamp(surroundings, cores_used_by_others(before, read_cpu()))
    common["note"] = f"{len(work.files)} files; Pillow's sides are {which_pillow()}"
    case = "native, pillow-simd" if which_pillow().startswith("pillow-simd") else "native"
    append_rows(
        options.rows,
        [
            *(spread_row(case, name, "CPU ms/image", values, common) for name, values in measured.items()),
            *(spread_row(case, f"native, {num} threads", "images/s", found, common) for num, found in rates.items()),
        ],
    )


if __name__ == "__main__":
    main()
