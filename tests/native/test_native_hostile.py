"""Any bytes give an image or a status: a short run of the fuzzer. The long runs are those of fuzz.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import png_files
import pytest
from fuzz import PIECES, build, build_pieces, build_threads, made_files, start
from hand_jpeg import AC, DC, END, EOI, Scan, coded, drawn, file_of, frame, grey
from kit.cuts import cut_of

from fastload.native import jpeg, png
from fastload.native.rows import Status, pixels_of_image

ROUNDS = 4000


def built(build: Callable[[Path], Path], folder: Path) -> Path:
    try:
        return build(folder)
    except subprocess.CalledProcessError as error:
        if os.environ.get("FASTLOAD_REQUIRE_NATIVE", "") not in ("", "0"):
            raise
        pytest.skip(f"the compiler here has no sanitizers, or finds no libjpeg or libpng: {error}")


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_damaged_files_do_no_harm_under_the_sanitizers(tmp_path):
    program = built(partial(build, level="-O0"), tmp_path)
    said, errors = start(program, 200, 1, made_files(tmp_path), rounds=ROUNDS).communicate(timeout=220)
    assert errors == ""
    rounds, refused, *counts, compared, records, returned, waited = map(
        int, re.findall(r"\d+", said.partition("digest")[0])
    )
    assert rounds == ROUNDS
    assert min(counts[Status.DONE], counts[Status.DAMAGED]) > 50
    assert min(refused, compared, records, returned, waited) > 10


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_png_files_colors_columns_caches_arrays_and_numbers_do_no_harm_under_the_sanitizers(tmp_path):
    program = built(partial(build_pieces, level="-O0"), tmp_path)
    for piece in PIECES:
        done = subprocess.run([program, "60", "1", piece, "1500"], capture_output=True, text=True, timeout=100)
        assert (done.returncode, done.stderr) == (0, "")
        rounds, *counts = map(int, re.findall(r"\d+", done.stdout))
        assert rounds == 1500
        assert min(counts[: {"distort": 1, "affine": 2, "cache": 2}.get(piece, 3)]) > 10


@pytest.mark.thorough
def test_many_threads_decode_at_a_time_without_a_race_and_to_the_same_pixels(tmp_path):
    program = built(build_threads, tmp_path)
    files = made_files(tmp_path)
    done = subprocess.run([program, "4", "1", *files], capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout.split()[0]) > 4 * len(files)


@contextmanager
def little_memory() -> Iterator[None]:
    """Let the process have 32 MB more than it has."""
    resource = pytest.importorskip("resource")
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (32 << 20), limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit address space")
def test_a_header_that_claims_a_large_image_costs_no_memory():
    hundred_bytes = grey(8, coded(DC.of[0] + AC.of[END]) + EOI)
    for width, height in [(8192, 8192), (1 << 26, 1), (1, 1 << 26)]:
        data = png_files.file_of(
            png_files.header(width, height, 16, 6), png_files.in_pieces(zlib.compress(bytes(1000)))
        )
        with little_memory():
            assert png.inflate(data, png.read_size(data)) is Status.DAMAGED
    for width, height in [(8192, 8192), (65500, 1000), (1000, 65500)]:
        data = hundred_bytes.replace(frame(8, 8), frame(width, height))
        several = file_of(drawn(np.random.default_rng(0), 8, 8), [Scan((0,), 0, 0), Scan((0,), 1)])
        several = several.replace(frame(8, 8, marker=0xC2), frame(width, height, marker=0xC2))
        with little_memory():
            found = [jpeg.record_of_jpeg(data), pixels_of_image(data, cut_of((0, 0, 500, min(width, 5000))))]
            found.append(pixels_of_image(several, cut_of((0, 0, 500, min(width, 5000)))))
        assert found == [Status.DAMAGED] * 3
