"""PNG files of functions that return whole images: in workers the same bits, strides, errors and words as elsewhere."""

from __future__ import annotations

import ctypes
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torchvision.io
from png_files import KINDS, chunk, damaged, drawn, file_of, header, in_pieces
from whole_images import LIBRARIES, assert_workers_read_the_same, folder_of, needs_library, num_taken

from fastload import native
from fastload.late import arrays

cv2 = pytest.importorskip("cv2")
pytestmark = [
    pytest.mark.filterwarnings("ignore:The image decoding and encoding capabilities:DeprecationWarning"),
    needs_library,
]


SRGB = bytes.fromhex("00007a26000080840000fa00000080e8000075300000ea6000003a9800001770")
TAKEN = {
    "density": chunk(b"pHYs", bytes([0, 0, 11, 19, 0, 0, 11, 19, 1])),
    "sRGB": chunk(b"sRGB", b"\0"),
    "gamma": chunk(b"gAMA", (45455).to_bytes(4, "big")),
    "chromaticities": chunk(b"cHRM", SRGB),
}
EXIF = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\1\0\6\0\0\0\0\0\0"
LEFT = {
    "EXIF": chunk(b"eXIf", EXIF),
    "another gamma": chunk(b"gAMA", (100000).to_bytes(4, "big")),
    "no gamma": chunk(b"gAMA", bytes(4)),
    "gamma twice": 2 * TAKEN["gamma"],
    "other chromaticities": chunk(b"cHRM", SRGB[:-1] + b"\0"),
    "no density": chunk(b"pHYs", bytes(8)),
    "another intent": chunk(b"sRGB", b"\7"),
    "a profile": chunk(b"iCCP", b"name\0\0" + zlib.compress(bytes(200))),
    "colours of video": chunk(b"cICP", bytes([9, 16, 0, 1])),
    "transparency": chunk(b"tRNS", bytes(6)),
    "text": chunk(b"tEXt", b"Comment\0text"),
    "a background": chunk(b"bKGD", bytes(6)),
    "time": chunk(b"tIME", bytes(7)),
    "an animation": chunk(b"acTL", bytes([0, 0, 0, 1, 0, 0, 0, 0])),
    "a suggested palette": chunk(b"PLTE", bytes(6)),
    "an unknown chunk": chunk(b"abCd", b"abc"),
    "a wrong sum": chunk(b"pHYs", bytes([0, 0, 11, 19, 0, 0, 11, 19, 1]), crc=7),
}


def file_with(rng: Any, before: bytes = b"", behind: bytes = b"", bits: int = 8, color: int = 2) -> bytes:
    """Return a file that is not small, with chunks behind its first."""
    data = drawn(rng, 103, 104, bits, color, behind=behind)
    return data[:33] + before + data[33:]


def files() -> Iterator[tuple[str, bytes]]:
    rng = np.random.default_rng(0)
    for bits, color in KINDS:
        yield f"kind {bits} {color}", drawn(rng, 127, 101, bits, color)
    yield "small", drawn(rng, 20, 10, 8, 2)
    yield "grey of 16", drawn(rng, 103, 104, 16, 0)
    for name, more in (TAKEN | LEFT).items():
        yield name, file_with(rng, more)
        yield f"{name}, behind", file_with(rng, behind=more)
    yield "gamma and grey", file_with(rng, TAKEN["gamma"], color=0)
    yield "all", file_with(rng, b"".join(TAKEN.values()), color=6)
    palette = chunk(b"PLTE", rng.bytes(96))
    colors = np.zeros((104, 104), dtype=np.uint8)
    colors[:, 1:] = rng.integers(0, 32, (104, 103))
    few = in_pieces(zlib.compress(colors.tobytes()))
    for name, more in {"few": b"", "density": TAKEN["density"], "gamma": TAKEN["gamma"]}.items():
        yield f"a palette with {name}", file_of(header(103, 104, 8, 3), few, before=palette + more)
    yield "a palette, transparent", file_of(header(103, 104, 8, 3), few, before=palette + chunk(b"tRNS", bytes(9)))
    yield "a palette that lacks", file_of(header(103, 104, 8, 3), few, before=chunk(b"PLTE", bytes(9)))
    yield "a palette too large", drawn(rng, 103, 104, 4, 3, colors=20)
    plain = file_with(rng)
    at = plain.index(b"IDAT") + 30
    yield "interlaced", interlaced()
    yield "half", plain[: len(plain) // 2]
    yield "no end", plain[:-12]
    yield "bytes behind it", plain + b"behind"
    yield "another bit", plain[:at] + bytes([plain[at] ^ 1]) + plain[at + 1 :]
    yield "a wrong sum of the end", plain[:-1] + b"\0"
    yield "a wrong sum of the first", plain[:32] + bytes([plain[32] ^ 1]) + plain[33:]
    rows = bytes(104 * (3 * 103 + 1))
    stream = zlib.compress(rows)
    yield "a wrong Adler sum", file_of(header(103, 104, 8, 2), in_pieces(stream[:-1] + b"\7"))
    yield "too little", file_of(header(103, 104, 8, 2), in_pieces(zlib.compress(rows[:-1])))
    yield "too much", file_of(header(103, 104, 8, 2), in_pieces(zlib.compress(rows + b"\0")))
    yield "a wrong filter", file_of(header(103, 104, 8, 2), in_pieces(zlib.compress(b"\5" + rows[1:])))
    yield "pieces of nothing", file_of(header(103, 104, 8, 2), in_pieces(stream, [0, 0, 5, len(stream)]))


def interlaced() -> bytes:
    noise = np.random.default_rng(0).integers(0, 256, (104, 103), dtype=np.uint8)
    passes = [(0, 8, 0, 8), (0, 8, 4, 8), (4, 8, 0, 4), (0, 4, 2, 4), (2, 4, 0, 2), (0, 2, 1, 2), (1, 2, 0, 1)]
    rows = b"".join(
        b"\0" + noise[y, left::right].tobytes() for top, down, left, right in passes for y in range(top, 104, down)
    )
    return file_of(header(103, 104, 8, 0, b"\0\0\1"), in_pieces(zlib.compress(rows)))


# Where libpng raises an error, torchvision 0.29 may end the process; and of palettes it leaves some memory unwritten.
# What of these is taken, the test of damaged files compares.
NOT_BY_TORCHVISION = {"another bit", "a wrong Adler sum", "too little", "a wrong filter"}
NOT_BY_TORCHVISION |= {name for name, data in files() if data[25:26] == b"\3"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(tmp_path_factory.mktemp("files"), files(), "png")


@pytest.mark.parametrize("library", LIBRARIES)
def test_whole_images_are_those_of_the_functions_as_they_are(folder: Path, library: str) -> None:
    without = NOT_BY_TORCHVISION if library == "torchvision.io" else ()
    decoded = assert_workers_read_the_same(folder, library, without).decoded
    names = {"cv2": ("imread", "imdecode"), "torchvision.io": ("decode_image", "decode_png")}.get(
        library, ("decode_png",)
    )
    words = {f"at once, for {library}.{name}" for name in names}
    assert set(decoded) == words
    assert min(decoded.values()) > 80


ROUNDS = int(os.environ.get("FASTLOAD_PNG_ROUNDS", "1500"))


@pytest.fixture
def _level_restored() -> Iterator[None]:
    yield
    native.library.limit_level(len(native.LEVELS) - 1)


@pytest.mark.usefixtures("_level_restored")
def test_damaged_files_give_the_same_without_a_word_or_are_left_to_the_original(
    capfd: pytest.CaptureFixture[str],
) -> None:
    rng = np.random.default_rng(int(os.environ.get("FASTLOAD_PNG_SEED", "0")))
    wholes = [
        drawn(rng, 23, 19, *kind, before=b"".join(TAKEN.values()) * (n % 3 == 0))
        for n, kind in enumerate(KINDS * 3)
        if kind[0] < 16 and kind[1] != 3
    ]
    wholes += [drawn(rng, 17, 14, bits, 3) for bits in (1, 2, 4, 8)]
    wholes += [interlaced(), drawn(rng, 23, 19, 16, 2)]
    taken = 0
    for number in range(ROUNDS):
        native.library.limit_level(number % len(native.LEVELS))
        data = np.frombuffer(damaged(rng, wholes) if number % 8 else wholes[number // 8 % len(wholes)], np.uint8)
        taken += num_taken(data, "png") if data.size else 0
    assert taken > ROUNDS
    ctypes.CDLL(None).fflush(None)  # what C code holds back
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("library", LIBRARIES)
def test_each_function_agrees_with_what_decodes_in_its_place(library: str) -> None:
    if library == "torchcodec.decoders":
        pytest.importorskip("torchcodec.decoders", reason="needs TorchCodec", exc_type=Exception)
    # torchvision's wheels contain libjpeg-turbo 2.0.0 up to 0.27.
    is_old = library == "torchvision.io" and tuple(map(int, torchvision.__version__.split(".")[:2])) < (0, 28)
    for one in arrays.OVERRIDES:
        if one.library == library:
            different = {kind for kind, mode in one.cases(usual=False) if not one.agrees(kind, mode)}
            assert different == ({"JPEG 4:4:0"} if is_old and len(one.kinds) > 1 else set()), one.path
