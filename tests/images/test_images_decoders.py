"""Every decoder gives Pillow's pixels and Pillow's errors; what it leaves to Pillow is counted."""

from __future__ import annotations

import io
import itertools
import os
import warnings
from typing import Any

import numpy as np
import PIL
import PIL.Image
import PIL.ImageFile
import pytest
import torch
from damaged_files import mutants
from image_files import files

from fastload.images import decode, decoder
from fastload.images.decoder import decoder_in_words, size_of, write_row
from fastload.native import jpeg
from fastload.native.rows import Cut, whole

FILES = files()


@pytest.fixture(params=["native", "pillow"])
def name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each decoder's name."""
    if request.param == "pillow":
        monkeypatch.setattr(decoder, "why_not_native", lambda: "it was not built")
    reason = decoder.why_not_native() if request.param == "native" else None
    if reason is not None:
        insisted = os.environ.get("FASTLOAD_REQUIRE_NATIVE", "") not in ("", "0")
        (pytest.fail if insisted else pytest.skip)(reason)
    return str(request.param)


def row_of(data: Any, cut: Cut, table: torch.Tensor | None = None) -> np.ndarray[Any, Any]:
    """Return the row of a cut as pixels: [height, width, C]."""
    row = torch.full((3, *cut.window[2:]), 7, dtype=torch.uint8 if table is None else table.dtype)
    write_row(data, cut, table, row)
    return row.permute(1, 2, 0).numpy()


def by_pillow(data: bytes) -> np.ndarray[Any, Any]:
    return np.asarray(PIL.Image.open(io.BytesIO(data)).convert("RGB"))


def outcome(function: Any, *args: Any) -> Any:
    """Return the pixels, or the error's class and words."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return np.asarray(function(*args))
        except Exception as error:
            words = str(error)
            return type(error), words.split("<")[0]  # the address of a BytesIO


def same(one: Any, other: Any) -> bool:
    if isinstance(one, tuple) or isinstance(other, tuple):
        return isinstance(one, tuple) and isinstance(other, tuple) and one == other
    return np.array_equal(one, other)


@pytest.mark.parametrize("kind", FILES)
def test_pixels_are_pillows(name, kind):
    np.testing.assert_array_equal(decode(FILES[kind]), by_pillow(FILES[kind]))
    assert size_of(FILES[kind]) == by_pillow(FILES[kind]).shape[:2]


def some_cut(rng: np.random.Generator, height: int, width: int) -> Cut:
    h, w = int(rng.integers(1, height + 1)), int(rng.integers(1, width + 1))
    box = (int(rng.integers(0, height - h + 1)), int(rng.integers(0, width - w + 1)), h, w)
    size = (h, w) if rng.random() < 0.3 else (int(rng.integers(1, 60)), int(rng.integers(1, 60)))
    high, wide = int(rng.integers(1, size[0] + 1)), int(rng.integers(1, size[1] + 1))
    window = (int(rng.integers(0, size[0] - high + 1)), int(rng.integers(0, size[1] - wide + 1)), high, wide)
    if rng.random() < 0.5:
        window = (0, 0, *size)
    way = str(rng.choice(["bilinear", "bicubic"]))
    return Cut(box, size, way, window, (bool(rng.integers(2)), bool(rng.integers(2))))


def carried_out(data: bytes, cut: Cut) -> np.ndarray[Any, Any]:
    """Do what a cut says, step by step."""
    top, left, height, width = cut.box
    image = PIL.Image.fromarray(by_pillow(data)[top : top + height, left : left + width])
    if cut.size != (height, width):
        image = image.resize(cut.size[::-1], getattr(PIL.Image.Resampling, cut.interpolation.upper()))
    top, left, height, width = cut.window
    found = np.asarray(image)[top : top + height, left : left + width]
    return found[:: -1 if cut.flips[1] else 1, :: -1 if cut.flips[0] else 1]


@pytest.mark.parametrize("kind", ["size6.jpg", "progressive.jpg", "gray.jpg", "cmyk.jpg", "alpha.png", "sixteen.png"])
def test_rows_are_pillows(name, kind):
    data = FILES[kind]
    rng = np.random.default_rng(0)
    height, width = size_of(data)
    pixels = by_pillow(data)
    for turn in range(40):
        cut = some_cut(rng, height, width)
        expected = carried_out(data, cut)
        np.testing.assert_array_equal(row_of(data, cut), expected, str(cut))
        np.testing.assert_array_equal(row_of(pixels, cut), expected, str(cut))
        table = (torch.arange(256) * 2).repeat(3, 1).to([torch.float32, torch.int32][turn % 2])
        np.testing.assert_array_equal(row_of(data, cut, table), expected * 2.0)


def test_grey_pixels_in_memory_are_one_channel(name):
    pixels = np.random.default_rng(0).integers(0, 256, (9, 11), dtype=np.uint8)
    row = torch.empty(1, 9, 11, dtype=torch.uint8)
    write_row(pixels, whole(9, 11), None, row)
    np.testing.assert_array_equal(row[0].numpy(), pixels)


def broken() -> dict[str, bytes]:
    found = {"nothing": b"", "words": b"no image", "a beginning": b"\xff\xd8\xff"}
    for kind in ("size7.jpg", "progressive.jpg", "gray.jpg", "cmyk.jpg", "exif.jpg", "size7.png"):
        data = FILES[kind]
        for percent in (5, 30, 60, 95):
            found[f"{percent} % of {kind}"] = data[: len(data) * percent // 100]
        found[f"{kind} without its last byte"] = data[:-1]
        found[f"{kind} without its last two"] = data[:-2]
        found[f"{kind} and more"] = data + b"more"
        short = b"\xff\xe2\x00\x0fICC_PROFILE\x00\x01"  # of a profile, over which Pillow stumbles
        if kind.endswith("jpg"):
            found[f"{kind} with a short profile"] = data[:2] + short + data[2:]
    return found


@pytest.mark.parametrize("bears", [False, True])
@pytest.mark.parametrize("what", broken())
def test_a_damaged_file_is_pillows_image_or_error(name, what, bears, monkeypatch):
    monkeypatch.setattr(PIL.ImageFile, "LOAD_TRUNCATED_IMAGES", bears)
    data = broken()[what]
    assert same(outcome(decode, data), outcome(by_pillow, data))


def test_any_bytes_are_pillows_image_or_error(name):
    source = mutants(np.random.default_rng(5), [data for kind, data in FILES.items() if kind.endswith("jpg")])
    for damaged in itertools.islice(source, 300):
        assert same(outcome(decode, damaged), outcome(by_pillow, damaged)), damaged


def test_bombs_are_pillows_to_judge(name, monkeypatch):
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(PIL.Image.DecompressionBombError):
        decode(FILES["size7.jpg"])


@pytest.mark.parametrize(
    ("kind", "left"),
    [("size7.jpg", None), ("gray.jpg", None), ("cmyk.jpg", "colors"), ("alpha.png", "no JPEG file")],
)
def test_what_decoded_an_image_is_told_with_pillows_reason(name, kind, left):
    row = torch.empty((3, *size_of(FILES[kind])), dtype=torch.float32)
    table = torch.arange(256, dtype=torch.float32).repeat(3, 1)
    by = write_row(FILES[kind], whole(*row.shape[1:]), table, row)
    assert by == (f"pillow ({left})" if left and name != "pillow" else name)


# -- the choice --------------------------------------------------------------------------------------------------------


def test_it_is_the_library_where_it_is_there_and_else_pillow_and_says_so(monkeypatch):
    monkeypatch.setattr(decoder, "why_not_native", lambda: None)
    assert decoder_in_words().startswith("native: ")
    monkeypatch.setattr(decoder, "why_not_native", lambda: "it was not built")
    assert decoder_in_words() == f"pillow: Pillow {PIL.__version__}; native is not available: it was not built"
    np.testing.assert_array_equal(decode(FILES["gray.jpg"]), by_pillow(FILES["gray.jpg"]))
    monkeypatch.setattr(PIL, "__version__", "9.5.0.post2")
    assert "Pillow-SIMD 9.5.0.post2" in decoder_in_words()


def test_the_library_is_not_taken_where_pillow_resizes_in_a_way_of_its_own(monkeypatch):
    monkeypatch.setattr(jpeg.native, "unavailable_reason", lambda: None)
    monkeypatch.setattr(jpeg, "pillow_agrees", lambda: True)
    monkeypatch.setattr(jpeg, "pillow_order", lambda: None)
    assert "resizes to other values" in (jpeg.why_not_as_pillow.__wrapped__() or "")
