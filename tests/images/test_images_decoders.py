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
from fastload.native.rows import whole

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


def all_by_pillow(data: bytes) -> np.ndarray[Any, Any]:
    return np.asarray(PIL.Image.open(io.BytesIO(data)).convert("RGB"))


def outcome(function: Any, *args: Any) -> tuple[Any, ...]:
    """Return the pixels, or the error's class and words."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            pixels = np.asarray(function(*args))
        except Exception as error:
            return type(error), str(error).split("<")[0]  # the address of a BytesIO
    return pixels.shape, pixels.tobytes()


@pytest.mark.parametrize("bears", [False, True])
def test_any_bytes_are_pillows_image_or_error(name, bears, monkeypatch):
    monkeypatch.setattr(PIL.ImageFile, "LOAD_TRUNCATED_IMAGES", bears)
    # What a header says can be large, and is a matter of time alone.
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 20_000)
    damaged = mutants(np.random.default_rng(5), [data for kind, data in FILES.items() if kind.endswith("jpg")])
    cut_off = [data[: len(data) * percent // 100] for data in FILES.values() for percent in (5, 60, 99)]
    for data in [b"", b"no image", *FILES.values(), *cut_off, *itertools.islice(damaged, 300)]:
        assert outcome(decode, data) == outcome(all_by_pillow, data), data
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 1000)
    assert outcome(decode, FILES["size7.jpg"])[0] is PIL.Image.DecompressionBombError


@pytest.mark.parametrize(
    ("kind", "left"),
    [("size7.jpg", None), ("gray.jpg", None), ("cmyk.jpg", "colors"), ("alpha.png", "no JPEG file")],
)
def test_what_decoded_an_image_is_told_with_pillows_reason(name, kind, left):
    row = torch.empty((3, *size_of(FILES[kind])), dtype=torch.float32)
    table = torch.arange(256, dtype=torch.float32).repeat(3, 1)
    by = write_row(FILES[kind], whole(*row.shape[1:]), table, row)
    assert by == (f"pillow ({left})" if left and name != "pillow" else name)


def test_it_is_the_library_where_it_is_there_and_else_pillow_and_says_so(monkeypatch):
    monkeypatch.setattr(decoder, "why_not_native", lambda: None)
    assert decoder_in_words().startswith("native: ")
    monkeypatch.setattr(decoder, "why_not_native", lambda: "it was not built")
    assert decoder_in_words() == f"pillow: Pillow {PIL.__version__}; native is not available: it was not built"
    monkeypatch.setattr(PIL, "__version__", "9.5.0.post2")
    assert "Pillow-SIMD 9.5.0.post2" in decoder_in_words()


def test_the_library_is_not_taken_where_pillow_resizes_in_a_way_of_its_own(monkeypatch):
    monkeypatch.setattr(jpeg.native, "unavailable_reason", lambda: None)
    monkeypatch.setattr(jpeg, "pillow_agrees", lambda: True)
    monkeypatch.setattr(jpeg, "pillow_order", lambda: None)
    assert "resizes to other values" in (jpeg.why_not_as_pillow.__wrapped__() or "")
