"""Every decoder gives Pillow's pixels and Pillow's errors."""

from __future__ import annotations

import io
import itertools
import warnings
from typing import Any

import numpy as np
import PIL
import PIL.Image
import PIL.ImageFile
import pytest
from damaged_files import mutants
from image_files import files

from fastload.images import decode, decoder
from fastload.native import jpeg

FILES = files()


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
@pytest.mark.parametrize("reason", [None, "it was not built"])
def test_any_bytes_are_pillows_image_or_error(reason, bears, monkeypatch):
    if reason is None and decoder.why_not_native() is not None:
        pytest.skip("the native library is not built")
    monkeypatch.setattr(decoder, "why_not_native", lambda: reason)
    monkeypatch.setattr(PIL.ImageFile, "LOAD_TRUNCATED_IMAGES", bears)
    # What a header says can be large, and is a matter of time alone.
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 20_000)
    damaged = mutants(np.random.default_rng(5), [data for kind, data in FILES.items() if kind.endswith("jpg")])
    cut_off = [data[: len(data) * percent // 100] for data in FILES.values() for percent in (5, 60, 99)]
    for data in [b"", b"no image", *FILES.values(), *cut_off, *itertools.islice(damaged, 300)]:
        assert outcome(decode, data) == outcome(all_by_pillow, data), data
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 1000)
    assert outcome(decode, FILES["size7.jpg"])[0] is PIL.Image.DecompressionBombError


def test_the_library_is_not_taken_where_pillow_resizes_in_a_way_of_its_own(monkeypatch):
    monkeypatch.setattr(jpeg.native, "unavailable_reason", lambda: None)
    monkeypatch.setattr(jpeg, "pillow_agrees", lambda: True)
    monkeypatch.setattr(jpeg, "pillow_order", lambda: None)
    assert "resizes to other values" in (jpeg.why_not_as_pillow.__wrapped__() or "")
