"""Every decoder gives Pillow's pixels and Pillow's errors; what it leaves to Pillow is counted."""

from __future__ import annotations

import io
import itertools
import os
import pickle
import threading
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
from torchvision.datasets.folder import pil_loader

from fastload import native
from fastload.images import base, decode
from fastload.images.base import Decoder, Tally
from fastload.images.choice import decoder_in_words, make_decoder
from fastload.images.native_jpeg import NativeDecoder
from fastload.native import jpeg
from fastload.native.rows import Cut, whole

FILES = files()
DECODERS = {"native": NativeDecoder, "pillow": Decoder}


@pytest.fixture(params=DECODERS)
def name(request: pytest.FixtureRequest) -> str:
    """Each decoder's name."""
    reason = NativeDecoder.why_not() if request.param == "native" else None
    if reason is not None:
        insisted = os.environ.get("FASTLOAD_REQUIRE_NATIVE", "") not in ("", "0")
        (pytest.fail if insisted else pytest.skip)(reason)
    return str(request.param)


def decoded(data: bytes, name: str) -> np.ndarray[Any, Any]:
    """Return the pixels by one decoder."""
    decoder = DECODERS[name]()
    return decoder.pixels(data, whole(*decoder.size(data)))


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
def test_pixels_are_pillows_and_images_those_of_torchvisions_loader(name, kind, tmp_path):
    data, path = FILES[kind], tmp_path / kind
    found = decoded(data, name)
    assert found.dtype == np.uint8
    assert found.flags.c_contiguous
    assert found.flags.writeable
    np.testing.assert_array_equal(found, by_pillow(data))
    assert DECODERS[name]().size(data) == found.shape[:2]
    path.write_bytes(data)
    image, expected = DECODERS[name]().image(data), pil_loader(str(path))
    assert (image.mode, image.size, image.info) == (expected.mode, expected.size, expected.info)
    assert image.tobytes() == expected.tobytes()
    image.putpixel((0, 0), (1, 2, 3))
    assert image.getpixel((0, 0)) == (1, 2, 3)


class Doubled:
    """Levels times two, in int32: as the values of a fused pipeline."""

    table = (torch.arange(256, dtype=torch.uint8) * 2).expand(3, 256).contiguous()

    def write(self, levels: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(levels * 2)


def some_cut(rng: np.random.Generator, height: int, width: int) -> Cut:
    h, w = int(rng.integers(1, height + 1)), int(rng.integers(1, width + 1))
    box = (int(rng.integers(0, height - h + 1)), int(rng.integers(0, width - w + 1)), h, w)
    size = (h, w) if rng.random() < 0.3 else (int(rng.integers(1, 60)), int(rng.integers(1, 60)))
    high, wide = int(rng.integers(1, size[0] + 1)), int(rng.integers(1, size[1] + 1))
    window = (int(rng.integers(0, size[0] - high + 1)), int(rng.integers(0, size[1] - wide + 1)), high, wide)
    if rng.random() < 0.5:
        window = (0, 0, *size)
    way = str(rng.choice(["bilinear", "bicubic", "lanczos", "nearest"]))
    source = (0.25 * w, 0.0, float(w), 0.5 * h) if rng.random() < 0.2 else None
    return Cut(box, size, way, window, (bool(rng.integers(2)), bool(rng.integers(2))), source)


def carried_out(data: bytes, cut: Cut) -> np.ndarray[Any, Any]:
    """Do what a cut says, step by step."""
    top, left, height, width = cut.box
    image = PIL.Image.fromarray(by_pillow(data)[top : top + height, left : left + width])
    if cut.size != (height, width) or cut.source is not None:
        image = image.resize(cut.size[::-1], getattr(PIL.Image.Resampling, cut.interpolation.upper()), cut.source)
    top, left, height, width = cut.window
    found = np.asarray(image)[top : top + height, left : left + width]
    return found[:: -1 if cut.flips[1] else 1, :: -1 if cut.flips[0] else 1]


@pytest.mark.parametrize("kind", ["size6.jpg", "progressive.jpg", "gray.jpg", "cmyk.jpg", "alpha.png", "sixteen.png"])
def test_cuts_and_rows_are_pillows(name, kind):
    data, decoder = FILES[kind], DECODERS[name]()
    rng = np.random.default_rng(0)
    height, width = decoder.size(data)
    for _ in range(40):
        cut = some_cut(rng, height, width)
        expected = carried_out(data, cut)
        found = decoder.pixels(data, cut)
        np.testing.assert_array_equal(found, expected, str(cut))
        assert found.flags.c_contiguous
        assert found.flags.writeable
        row = torch.full((3, *cut.window[2:]), 7, dtype=torch.uint8)
        decoder.row(data, cut, Doubled(), row)
        np.testing.assert_array_equal(row.permute(1, 2, 0).numpy(), expected * 2)


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
    assert same(outcome(decoded, data, name), outcome(by_pillow, data))


def test_any_bytes_are_pillows_image_or_error(name):
    source = mutants(np.random.default_rng(5), [data for kind, data in FILES.items() if kind.endswith("jpg")])
    for damaged in itertools.islice(source, 300):
        assert same(outcome(decoded, damaged, name), outcome(by_pillow, damaged)), damaged


def test_bombs_are_pillows_to_judge(name, monkeypatch):
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(PIL.Image.DecompressionBombError):
        decoded(FILES["size7.jpg"], name)
    with pytest.raises(PIL.Image.DecompressionBombError):
        DECODERS[name]().image(FILES["size7.jpg"])


@pytest.mark.parametrize(
    ("kind", "left"),
    [("size7.jpg", None), ("gray.jpg", None), ("cmyk.jpg", "colors"), ("alpha.png", "no JPEG file")],
)
def test_each_image_is_counted_once(name, kind, left):
    decoder = DECODERS[name]()
    cut = whole(*decoder.size(FILES[kind]))
    assert decoder.counted() == {}
    decoder.pixels(FILES[kind], cut)
    decoder.image(FILES[kind])
    decoder.row(FILES[kind], cut, Doubled(), torch.empty(3, *cut.size, dtype=torch.uint8))
    assert decoder.counted() == {f"pillow ({left})" if left and name != "pillow" else name: 3}
    assert decoder.counted() == {}


def test_an_interpolation_that_the_library_has_not_is_left_with_its_name():
    if not native.available():
        pytest.skip("the native library is not there")
    decoder = NativeDecoder()
    decoder.pixels(FILES["size7.jpg"], whole(100, 101)._replace(size=(7, 9), window=(0, 0, 7, 9)))
    assert decoder.counted() == {"pillow (interpolation nearest)": 1}


def test_counts_of_many_threads_add_up_and_are_not_pickled():
    tally = Tally()
    threads = [threading.Thread(target=lambda: [tally.add("a") for _ in range(2000)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pickle.loads(pickle.dumps(tally)).take() == {}
    assert tally.take() == {"a": 16_000}


def test_a_decoder_can_be_pickled(name):
    decoder: Decoder = pickle.loads(pickle.dumps(DECODERS[name]()))
    np.testing.assert_array_equal(decoder.image(FILES["gray.jpg"]), by_pillow(FILES["gray.jpg"]))


def test_pillow_simd_is_known_by_its_version(monkeypatch):
    monkeypatch.setattr(PIL, "__version__", "9.5.0.post2")
    assert base.pillow_name() == "Pillow-SIMD"
    monkeypatch.setattr(PIL, "__version__", "13.0.0")
    assert base.pillow_name() == "Pillow"


# -- the choice --------------------------------------------------------------------------------------------------------


def test_it_is_the_library_where_it_is_there_and_else_pillow_and_says_so(monkeypatch):
    monkeypatch.setattr(NativeDecoder, "why_not", lambda: None)
    assert type(make_decoder()) is NativeDecoder
    assert decoder_in_words().startswith("native: ")
    monkeypatch.setattr(NativeDecoder, "why_not", lambda: "it was not built")
    assert type(make_decoder()) is Decoder
    assert decoder_in_words() == f"pillow: Pillow {PIL.__version__}; native is not available: it was not built"
    np.testing.assert_array_equal(decode(FILES["gray.jpg"]), by_pillow(FILES["gray.jpg"]))


def test_the_library_is_not_taken_where_pillow_resizes_in_a_way_of_its_own(monkeypatch):
    monkeypatch.setattr(jpeg, "why_not", lambda: None)
    monkeypatch.setattr(jpeg, "pillow_agrees", lambda: True)
    monkeypatch.setattr(jpeg, "pillow_order", lambda: None)
    assert "resizes to other values" in (jpeg.why_not_as_pillow.__wrapped__() or "")
