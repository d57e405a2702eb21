"""Fuzzes the JPEG decoder under ASan and UBSan, from made files and records and, where given, real files.

    python tests/native/fuzz.py --seconds 3600 [--seed 1] [--real FOLDER] [--libjpeg FOLDER] [--memory]
    python tests/native/fuzz.py --seconds 3600 --piece png|distort|affine|table|cache|arrays|words|order|states

The second does the same with other functions: what they do is said in fuzz_pieces.c.

Prints the rounds, how many requests were refused and how many ended in which status, and how many rows were compared
with libjpeg's own. The file that caused a crash is kept, and named. The short run of the tests uses the same program.

The libjpeg of the system is not instrumented, so what it reads beyond the file's end is not seen. ``--libjpeg`` names a
folder with the headers and the ``libjpeg.a`` of one that was built with ``-fsanitize=address``. ``--memory`` looks for
uses of memory that was never written, with clang's MSan, in the portable code alone and without libjpeg.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from jpeg_files import SAMPLINGS, SOURCES, Maker, compiler

SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
# MSan does not follow vectors whose bytes trade places.
MEMORY = ["-fsanitize=memory", "-fno-omit-frame-pointer", "-DFASTLOAD_NEW_MEMORY=1", "-DFASTLOAD_PORTABLE=1"]
FLAGS = ["-std=c11", "-g", "-ffp-contract=off", "-D_POSIX_C_SOURCE=200809L"]


PIECES = ("png", "distort", "affine", "table", "cache", "arrays", "words", "order", "states")


def compiled(folder: Path, name: str, *flags: str, libraries: Sequence[str] = ("-lm",), cc: str | None = None) -> Path:
    """Return a program of this folder's and the library's sources, built in a folder."""
    program = folder / name
    sources = [str(Path(__file__).with_name(f"{name}.c")), *map(str, sorted(SOURCES.glob("*.c")))]
    command = [cc or compiler(), *FLAGS, *flags, f"-iquote{SOURCES}", *sources, "-o", str(program), *libraries]
    subprocess.run(command, check=True, cwd=folder)
    return program


def build(folder: Path, *, memory: bool = False, libjpeg: Path | None = None, level: str = "-O1") -> Path:
    """Return the program that tries the JPEG decoder; by "-O0" in less than half of the time, and half as fast."""
    if memory:
        return compiled(folder, "fuzz_jpeg", level, *MEMORY, cc="clang")
    headers, library = ([f"-I{libjpeg}"], str(libjpeg / "libjpeg.a")) if libjpeg else ([], "-ljpeg")
    flags = ["-DFUZZ_WITH_LIBJPEG=1", *headers, *SANITIZE]
    return compiled(folder, "fuzz_jpeg", level, *flags, libraries=(library, "-lm"))


def build_pieces(folder: Path, *, level: str = "-O1") -> Path:
    """Return the program that tries :data:`PIECES`; it needs libpng and zlib."""
    libraries = ("-lpng", "-lz", "-lm")
    return compiled(folder, "fuzz_pieces", level, "-DFUZZ_WITH_LIBPNG=1", *SANITIZE, libraries=libraries)


def build_threads(folder: Path) -> Path:
    """Return the program that decodes in many threads, under ThreadSanitizer."""
    return compiled(folder, "threads_jpeg", "-O1", "-D_DEFAULT_SOURCE", "-pthread", "-fsanitize=thread")


def made_files(folder: Path) -> list[Path]:
    """Return small files of every kind that the decoder knows, and some that it does not."""
    maker = Maker(folder)
    for kind in ("-", "o", "p", "m", "n", "r"):
        for sampling in SAMPLINGS:
            for restart in (0, 2):
                maker.make(67, 45, quality=80, kind=kind, sampling=sampling, restart=restart)
    for kind in ("g", "gp", "c", "a", "i"):
        maker.make(50, 60, kind=kind)
    return sorted(folder.glob("*.jpg"))


def start(
    program: Path, seconds: float, seed: int, files: list[Path], rounds: int | None = None
) -> subprocess.Popen[str]:
    """Start a run, which ends after so many seconds or rounds; the file at which it fails is ``last-SEED.jpg``."""
    environment = {**os.environ, "FUZZ_LAST": str(program.with_name(f"last-{seed}.jpg"))}
    environment |= {} if rounds is None else {"FUZZ_ROUNDS": str(rounds)}
    environment["ASAN_OPTIONS"] = "detect_leaks=1:allocator_may_return_null=1"
    command = [str(program), str(seconds), str(seed), *map(str, files)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--real", type=Path, help="a folder with JPEG files; 200 of them are used")
    parser.add_argument("--libjpeg", type=Path, help="a folder with an instrumented libjpeg.a and its headers")
    parser.add_argument("--piece", choices=PIECES, help="try another part of the library")
    parser.add_argument("--memory", action="store_true", help="look for unwritten memory")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fastload-fuzz-"))
    if options.piece:
        return subprocess.run([build_pieces(folder), str(options.seconds), str(options.seed), options.piece]).returncode
    program = build(folder, memory=options.memory, libjpeg=options.libjpeg)
    files = made_files(folder)
    if options.real:
        real = sorted(path for path in options.real.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
        files += real[:: max(1, len(real) // 200)]
    run = start(program, options.seconds, options.seed, files)
    print(*run.communicate(), sep="\n")
    if run.returncode:
        print(f"exit code {run.returncode}; the file: {program.with_name(f'last-{options.seed}.jpg')}")
    return run.returncode


if __name__ == "__main__":
    sys.exit(main())
