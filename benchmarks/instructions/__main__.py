"""Count the instructions that decoding takes on 64-bit ARM, under qemu, beside libjpeg-turbo's own NEON build.

    uv run python -m benchmarks.instructions imagenet=DIR --turbo FOLDER [--files 24] [--functions 0]

Claims: at most 0.8 of libjpeg-turbo's for the same work. These are instructions, not time: a processor takes them at
very different speeds, and nothing here was run on one. FOLDER has libjpeg-turbo for that processor, as a static library
with its headers. On Debian 12 (count.c speaks the plugins' interface of qemu up to 8):

    apt-get install gcc gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user
    dpkg --add-architecture arm64 && apt-get update && apt-get download libjpeg62-turbo-dev:arm64
    dpkg -x libjpeg62-turbo-dev_*_arm64.deb FOLDER

Each folder of images is a kind of files; others are made of the first one's, by Pillow. Of each kind three requests:
the whole image, a box as RandomResizedCrop draws it, and that box resized to 224 x 224, beside libjpeg-turbo's of the
box alone, as it cannot resize. A count is that of two passes over all files less that of one, so starting is not in it.
That libjpeg-turbo uses NEON is checked: with JSIMD_FORCENONE=1 it must take far more.

Meaningless if: compilers of very different age built the two.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import math
import random
import subprocess
import tempfile
from pathlib import Path

from PIL import Image

from fastload import native

HERE = Path(__file__).parent
SOURCES = native.LIBRARY.with_name("src")
COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
# Those of setup.py.
FLAGS = ["-std=c11", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off"]
KINDS = {
    "4:4:4, quality 90": {"quality": 90, "subsampling": 0},
    "4:2:2, quality 85": {"quality": 85, "subsampling": 1},
    "4:2:0, quality 75": {"quality": 75, "subsampling": 2},
    "grey, quality 85": {"quality": 85, "mode": "L"},
    "progressive 4:2:0, quality 80": {"quality": 80, "subsampling": 2, "progressive": True},
    "32 x 32": {"quality": 75, "size": (32, 32)},
    "1920 x 1280": {"quality": 88, "size": (1920, 1280)},
}
SIDE = 224


def files_of(folder: Path, most: int) -> list[Path]:
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    if not found:
        raise SystemExit(f"there is no JPEG file under {folder}")
    return random.Random(1).sample(found, min(most, len(found)))


def made_files(paths: list[Path], kind: dict[str, object], folder: Path) -> list[Path]:
    options = dict(kind)
    mode, size = str(options.pop("mode", "RGB")), options.pop("size", None)
    found = []
    for path in paths:
        with Image.open(path) as opened:
            image = opened.convert(mode)
        image = image if size is None else image.resize(size)  # type: ignore[arg-type]  # it is a size
        found.append(folder / f"{len(list(folder.iterdir()))}.jpg")
        image.save(found[-1], "JPEG", **options)
    return found


def box_of(width: int, height: int, rng: random.Random) -> tuple[int, int, int, int]:
    """Return top, left, height and width, drawn as RandomResizedCrop draws them."""
    while True:
        area, ratio = width * height * rng.uniform(0.08, 1), math.exp(rng.uniform(-1, 1) * math.log(4 / 3))
        across, down = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < across <= width and 0 < down <= height:
            return rng.randint(0, height - down), rng.randint(0, width - across), down, across


def requests_of(paths: list[Path]) -> dict[str, str]:
    rng = random.Random(2)
    found: dict[str, list[str]] = {"whole": [], "box": [], "box, resized": []}
    for path in paths:
        with Image.open(path) as image:
            width, height = image.size
        box = box_of(width, height, rng)
        for name, part, size in (
            ("whole", (0, 0, height, width), (height, width)),
            ("box", box, box[2:]),
            ("box, resized", box, (SIDE, SIDE)),
        ):
            found[name].append(" ".join(map(str, (*part, *size, path))))
    return {name: "\n".join(lines) + "\n" for name, lines in found.items()}


class Counter:
    """The programs, built in a folder."""

    def __init__(self, folder: Path, turbo: Path) -> None:
        libraries, headers = list(turbo.rglob("libjpeg.a")), list(turbo.rglob("jpeglib.h"))
        configured = list(turbo.rglob("jconfig.h"))
        if not (libraries and headers and configured):
            raise SystemExit(f"{turbo} has no libjpeg.a, jpeglib.h and jconfig.h: see --help")
        self.version = next(
            line for line in configured[0].read_text().splitlines() if " LIBJPEG_TURBO_VERSION " in line
        )
        self._program, self._plugin, self._out = folder / "decode", folder / "count.so", folder / "counts"
        subprocess.run(
            ["gcc", "-O2", "-shared", "-fPIC", str(HERE / "count.c"), "-o", str(self._plugin)],
            check=True,
        )
        includes = [f"-I{path.parent}" for path in (SOURCES / "fastload.h", headers[0], configured[0])]
        sources = [HERE / "decode.c", *sorted(SOURCES.glob("*.c"))]
        command = [COMPILER, *FLAGS, *includes, "-static", *map(str, sources), str(libraries[0]), "-lm"]
        subprocess.run([*command, "-o", str(self._program)], check=True)

    def count(self, who: str, requests: str, environment: tuple[str, ...] = ()) -> collections.Counter[str]:
        """Return the instructions of a pass over all requests, by function."""
        counts = []
        for repeats in (1, 2):
            named = itertools.chain.from_iterable(("-E", one) for one in environment)
            command = [EMULATOR, *named, "-plugin", f"{self._plugin},out={self._out}", str(self._program)]
            subprocess.run(
                [*command, who, str(repeats)], input=requests, text=True, check=True, stdout=subprocess.DEVNULL
            )
            found: collections.Counter[str] = collections.Counter()
            for line in self._out.read_text().splitlines():
                number, name = line.split(maxsplit=1)
                found[name] += int(number)
            counts.append(found)
        return counts[1] - counts[0]


def first_line(*command: str) -> str:
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout.splitlines()[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--turbo", type=Path, required=True, help="the unpacked package")
    parser.add_argument("--files", type=int, default=24, help="of each folder; a third of them for kinds that are made")
    parser.add_argument("--functions", type=int, default=0, help="print so many functions of each side")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        images = Path(folder, "images")
        images.mkdir()
        kinds = {}
        for name, _, place in (one.partition("=") for one in args.folders):
            kinds[name] = files_of(Path(place), args.files)
        first = next(iter(kinds.values()))[: max(1, args.files // 3)]
        kinds |= {name: made_files(first, kind, images) for name, kind in KINDS.items()}
        counter = Counter(Path(folder), args.turbo)
        print(f"{first_line(EMULATOR, '--version')}; {first_line(COMPILER, '--version')}; {counter.version.strip()}")
        print()
        print("| files | n | request | fastload | libjpeg-turbo | ratio |\n| --- | --- | --- | --- | --- | --- |")
        checked = False
        for name, paths in kinds.items():
            requests = requests_of(paths)
            turbo = {
                request: counter.count("turbo", lines) for request, lines in requests.items() if "," not in request
            }
            if not checked:
                without = counter.count("turbo", requests["whole"], ("JSIMD_FORCENONE=1",)).total()
                if without < 1.3 * turbo["whole"].total():
                    raise SystemExit("this libjpeg-turbo does not use NEON")
                checked = True
            for request, lines in requests.items():
                own, other = counter.count("fastload", lines), turbo[request.split(",")[0]]
                millions = [counts.total() / len(paths) / 1e6 for counts in (own, other)]
                print(f"| {name} | {len(paths)} | {request} | {millions[0]:.2f} M | {millions[1]:.2f} M | ", end="")
                print(f"{millions[0] / millions[1]:.2f} |", flush=True)
                for side in (own, other) if args.functions else ():
                    for function, number in side.most_common(args.functions):
                        print(f"    {number / other.total():7.1%} of libjpeg-turbo's: {function}")


if __name__ == "__main__":
    main()
