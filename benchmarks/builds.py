"""Builds of the native library beside each other: what compilers make of it.

    CC=gcc python setup.py build_ext --inplace --force && cp fastload/native/_fastload.so gcc.so
    CC=ziglang python setup.py build_ext --inplace --force && cp fastload/native/_fastload.so zig.so
    uv run -m benchmarks.builds gcc.so zig.so --images FOLDER [--rounds 60] [--files 100]

Claim: for each kind of work the second takes at most 1.05 of the first's time. Each build has a process; they take
turns with the same files, one after the other, in changing order. Printed are milliseconds of processor time for a
file, the least of all rounds, and the ratio of the second to the first: that of the least times, and the median of
those of the rounds with its quartiles. The fused row is what ``fuse=True`` does for ImageFolder: file, crop, 224
pixels, float32. malloc keeps what was freed: else it is chance which of the processes gets its results' pages anew from
the kernel for each file, which takes a fifth of a whole file's time.

Meaningless if: other work runs on the core's other hardware thread.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.neighbours import cores_used_by_others, read_cpu
from benchmarks.progress import progress
from benchmarks.report import look_around, stamp
from fastload import native

KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}  # glibc's


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("builds", nargs=2, type=Path)
    parser.add_argument("--images", type=Path, required=True, help="a folder with JPEG files")
    parser.add_argument("--files", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--levels", nargs="+", default=["avx512", "avx2"], choices=native.LEVELS)
    options = parser.parse_args()
    children = []
    for build in options.builds:
        words = [sys.executable, "-m", __spec__.name if __spec__ else "benchmarks.builds", "--child", build]
        children.append(
            subprocess.Popen(
                [*words, options.images, str(options.files), *options.levels],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, **KEEP_MEMORY},
            )
        )
    kinds, _ = (_read(child).split("\t") for child in children)
    found: dict[str, list[list[float]]] = {kind: [[], []] for kind in kinds}
    before = read_cpu()
    with progress(options.rounds) as advance:
        for turn in range(options.rounds):
            advance("rounds")
            for kind in kinds:
                for which in (0, 1) if turn % 2 else (1, 0):
                    print(kind, file=children[which].stdin, flush=True)
                    found[kind][which].append(float(_read(children[which])))
    for child in children:
        child.stdin.close()
        child.wait()
    others = cores_used_by_others(before, read_cpu())
    print(
        ", ".join(
            f"{name} {value}"
            for name, value in stamp(look_around(sys.argv[1:], module="benchmarks.builds"), others).items()
        )
    )
    print(f"{'':28} {'first':>8} {'second':>8} {'of least':>9} {'of rounds (quartiles)':>24}")
    for kind, (first, second) in found.items():
        ratios = [b / a for a, b in zip(first, second, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        least = min(first), min(second)
        print(
            f"{kind:28} {least[0]:8.3f} {least[1]:8.3f} {least[1] / least[0]:9.3f}"
            f" {middle:10.3f} ({low:.3f}-{high:.3f})"
        )
    return 0


def _read(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    line = child.stdout.readline()
    assert line, "a child has ended"
    return line.rstrip("\n")


def child(build: str, folder: str, num_files: str, *levels: str) -> None:
    """Measure one build, as often as it is asked."""
    native.LIBRARY = Path(build)
    works = list(kinds_of_work(Path(folder), int(num_files), levels))
    print("\t".join(name for name, _ in works), flush=True)
    of_name = dict(works)
    for line in sys.stdin:
        start = time.process_time()
        count = of_name[line.rstrip("\n")]()
        print((time.process_time() - start) / count * 1e3, flush=True)


def kinds_of_work(folder: Path, num_files: int, levels: tuple[str, ...]) -> list[tuple[str, Callable[[], int]]]:
    """Return functions that decode all files, and return how many these are, by name."""
    from fastload.native.jpeg import pixels_of_jpeg, read_size, record_of_jpeg, row_of_jpeg
    from fastload.native.rows import Cut, whole

    assert native.available(), native.why_not()
    files, progressive, records, cuts = [], [], [], []
    random = np.random.default_rng(0)
    for path in sorted(folder.rglob("*.[jJ][pP]*[gG]")):
        data = path.read_bytes()
        record = record_of_jpeg(data)
        if not isinstance(record, bytes) or read_size(data).components != 3:
            continue
        height, width = (size := read_size(data)).height, size.width
        side = int(min(height, width) * random.uniform(0.4, 1))
        box = (int(random.integers(height - side + 1)), int(random.integers(width - side + 1)), side, side)
        cuts.append(Cut(box, (224, 224), "bilinear", (0, 0, 224, 224), (bool(random.integers(2)), False)))
        files.append(data)
        records.append(record)
        out = io.BytesIO()
        Image.open(path).save(out, "JPEG", quality=90, progressive=True)
        progressive.append(out.getvalue())
        if len(files) == num_files:
            break
    assert files, f"no usable JPEG files in {folder}"
    out = torch.empty(3, 224, 224)
    table = torch.linspace(-2, 2, 768).reshape(3, 256).contiguous()

    def rows(sources: list[bytes], level: str) -> Callable[[], int]:
        return lambda: len(
            [row_of_jpeg(data, cut, table, out, level=level) for data, cut in zip(sources, cuts, strict=True)]
        )

    def wholes(sources: list[bytes], level: str) -> Callable[[], int]:
        cut = [whole(size.height, size.width) for size in map(read_size, sources)]
        return lambda: len([pixels_of_jpeg(data, one, level=level) for data, one in zip(sources, cut, strict=True)])

    found = []
    for level in levels:
        found += [
            (f"fused row, {level}", rows(files, level)),
            (f"fused row of a record, {level}", rows(records, level)),
            (f"whole file, {level}", wholes(files, level)),
            (f"progressive, {level}", rows(progressive, level)),
        ]
    return found


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    else:
        sys.exit(main())
