"""Every decoder gives Pillow's pixels and Pillow's errors; what it leaves to Pillow is counted."""

from __future__ import annotations

import io
import itertools
import os
import pickle
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import PIL.Image
import PIL.ImageFile
import pytest
import torch
import torchvision
from damaged_files import mutants
from fused_samples import sample
from image_files import files, pixels
from torch.utils.data import DataLoader as TorchDataLoader
from torchvision import datasets
from torchvision import transforms as v1
from torchvision.datasets.folder import pil_loader

import fastload
from fastload import ConfigError, images, native
from fastload.fusion import FusedDataset, recognise
from fastload.images import (
    Cut,
    Decoder,
    Loader,
    base,
    choice,
    decode,
    decoders,
    make_decoder,
    torchvision_io,
    whole,
)
from fastload.images.base import Tally
from fastload.images.choice import DECODERS
from fastload.images.native_jpeg import NativeDecoder
from fastload.images.torchvision_io import TorchvisionDecoder
from fastload.native import jpeg

FILES = files()


@pytest.fixture(params=DECODERS)
def name(request: pytest.FixtureRequest) -> str:
    """Each decoder's name."""
    reason = {info.name: info.why_not for info in images.decoders()}[request.param]
    if reason is not None:
        insisted = request.param == "torchvision" or os.environ.get("FASTLOAD_REQUIRE_NATIVE", "") not in ("", "0")
        (pytest.fail if insisted else pytest.skip)(f"{request.param}: {reason}")
    return str(request.param)


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
    data = FILES[kind]
    found = decode(data, name)
    assert found.dtype == np.uint8
    assert found.flags.c_contiguous
    assert found.flags.writeable
    np.testing.assert_array_equal(found, by_pillow(data))
    assert make_decoder(name).size(data) == found.shape[:2]


@pytest.mark.parametrize("kind", FILES)
def test_images_are_those_of_torchvisions_loader(name, kind, tmp_path):
    path = tmp_path / kind
    path.write_bytes(FILES[kind])
    found, expected = images.Loader(name)(path), pil_loader(str(path))
    assert (found.mode, found.size) == (expected.mode, expected.size)
    assert found.tobytes() == expected.tobytes()
    assert found.info == expected.info
    found.putpixel((0, 0), (1, 2, 3))
    assert found.getpixel((0, 0)) == (1, 2, 3)


@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("progressive", [False, True])
def test_common_jpeg_files_of_all_sizes_are_pillows(name, subsampling, progressive):
    rng = np.random.default_rng(subsampling)
    for turn in range(25):
        height, width = (int(side) for side in rng.integers(1, 90, 2)) if turn or progressive else (2, 40_000)
        image = PIL.Image.fromarray(pixels(height, width, 3, seed=turn))
        buffer = io.BytesIO()
        quality = int(rng.integers(1, 101))
        image.save(buffer, "JPEG", quality=quality, subsampling=subsampling, progressive=progressive)
        np.testing.assert_array_equal(decode(buffer.getvalue(), name), by_pillow(buffer.getvalue()))


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
    data, decoder = FILES[kind], make_decoder(name)
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
    assert same(outcome(decode, data, name), outcome(by_pillow, data))


def test_any_bytes_are_pillows_image_or_error(name):
    source = mutants(np.random.default_rng(5), [data for kind, data in FILES.items() if kind.endswith("jpg")])
    for damaged in itertools.islice(source, 300):
        assert same(outcome(decode, damaged, name), outcome(by_pillow, damaged)), damaged


def test_bombs_are_pillows_to_judge(name, monkeypatch):
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(PIL.Image.DecompressionBombError):
        decode(FILES["size7.jpg"], name)
    with pytest.raises(PIL.Image.DecompressionBombError):
        make_decoder(name).image(FILES["size7.jpg"])


@pytest.mark.parametrize(
    ("kind", "left"),
    [("size7.jpg", None), ("gray.jpg", None), ("cmyk.jpg", "colors"), ("alpha.png", "no JPEG file")],
)
def test_each_image_is_counted_once(name, kind, left):
    decoder = make_decoder(name)
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
    decoder = make_decoder("native")
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
    decoder: Decoder = pickle.loads(pickle.dumps(make_decoder(name)))
    np.testing.assert_array_equal(decoder.image(FILES["gray.jpg"]), by_pillow(FILES["gray.jpg"]))


def test_a_torchvision_that_decodes_nothing_or_otherwise_is_not_offered(monkeypatch):
    why_not = torchvision_io.TorchvisionDecoder.why_not.__wrapped__
    decoded = torchvision_io.decoded
    assert why_not() is None
    monkeypatch.setattr(torchvision_io, "decoded", lambda data: decoded(data) ^ 1)
    assert "other pixels than Pillow" in why_not()

    def without_libjpeg(data: bytes) -> Any:
        raise RuntimeError("decode_jpeg: torchvision not compiled with libjpeg support")

    monkeypatch.setattr(torchvision_io, "decoded", without_libjpeg)
    assert "not compiled with libjpeg" in why_not()


def test_a_library_that_is_not_installed_is_the_reason_why_a_decoder_is_not_offered():
    def without_library(data: Any) -> Any:
        raise ModuleNotFoundError("No module named 'it'")

    assert base.differs_from_pillow(without_library) == "does not decode JPEG files: No module named 'it'"
    assert base.differs_from_pillow(lambda data: np.asarray(base.opened(data))) is None


def test_a_torchvision_that_has_dropped_its_decoders_is_not_offered(monkeypatch):
    monkeypatch.setattr(torch.ops, "image", object())
    assert torchvision_io.TorchvisionDecoder.why_not.__wrapped__() == (
        f"torchvision {torchvision.__version__} does not decode JPEG files: it has no operator image::decode_jpeg"
    )


def test_pillow_simd_is_known_by_its_version(monkeypatch):
    monkeypatch.setattr(PIL, "__version__", "9.5.0.post2")
    assert base.pillow_name() == "Pillow-SIMD"
    assert Decoder.library().startswith("Pillow-SIMD 9.5.0.post2, libjpeg")
    monkeypatch.setattr(PIL, "__version__", "13.0.0")
    assert base.pillow_name() == "Pillow"


def test_real_files_are_pillows(name):
    root = os.environ.get("FASTLOAD_BENCH_DATA")
    if not root:
        pytest.skip("FASTLOAD_BENCH_DATA names no folder with JPEG files")
    found = sorted(path for path in Path(root).rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))[:500]
    decoder = make_decoder(name)
    for path in found:
        data = path.read_bytes()
        np.testing.assert_array_equal(decoder.pixels(data, whole(*decoder.size(data))), by_pillow(data), str(path))
    assert decoder.counted()[name] >= 0.95 * len(found)


# -- the choice --------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An ImageFolder tree with files of all kinds."""
    (tmp_path / "a").mkdir()
    for name, data in files().items():
        (tmp_path / "a" / name).write_bytes(data)
    return tmp_path


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NativeDecoder, "why_not", lambda: "it was not built")


def test_all_decoders_are_listed_with_what_is_missing_and_the_remedy(no_library):
    found = {info.name: info for info in decoders()}
    assert list(found) == [*DECODERS]
    assert found["torchvision"].available
    assert found["pillow"].available
    assert found["native"].why_not == "it was not built"
    assert "apt-get install gcc" in (found["native"].remedy or "")
    assert found["pillow"].remedy is None
    assert found["pillow"].library.startswith("Pillow")
    assert pickle.loads(pickle.dumps(list(found.values()))) == list(found.values())


def test_a_line_in_the_table_makes_a_decoder(monkeypatch):
    monkeypatch.setitem(DECODERS, "other", "torchvision_io:TorchvisionDecoder")
    assert make_decoder("other").name == "torchvision.io"
    assert "other" in {info.name for info in decoders()}


def test_auto_is_the_library_where_it_is_there_and_else_pillow_and_says_so(monkeypatch):
    monkeypatch.setattr(NativeDecoder, "why_not", lambda: None)
    assert choice.chosen("auto")[0] == "native"
    monkeypatch.setattr(NativeDecoder, "why_not", lambda: "it was not built")
    name, words = choice.chosen("auto")
    assert name == "pillow"
    assert "native is not available: it was not built" in words
    assert make_decoder().name.startswith("Pillow")


def test_the_library_is_not_taken_where_pillow_resizes_in_a_way_of_its_own(monkeypatch):
    monkeypatch.setattr(jpeg, "why_not", lambda: None)
    monkeypatch.setattr(jpeg, "pillow_agrees", lambda: True)
    monkeypatch.setattr(jpeg, "pillow_order", lambda: None)
    assert "resizes to other values" in (jpeg.why_not_as_pillow.__wrapped__() or "")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("natve", f"decoder must be 'auto' or one of {', '.join(map(repr, DECODERS))}, got decoder='natve'"),
        (None, "got decoder=None"),
        ("native", "decoder='native' is not available: it was not built; install a C compiler.*or use decoder='auto'"),
        ("torchvision", "decoder='torchvision' is not available: no libjpeg"),
    ],
)
def test_a_decoder_that_is_not_there_is_refused_with_the_reason(no_library, monkeypatch, name, words):
    monkeypatch.setattr(TorchvisionDecoder, "why_not", lambda: "no libjpeg")
    for use in (make_decoder, Loader, lambda decoder: decode(b"", decoder)):
        with pytest.raises(ConfigError, match=words):
            use(name)


@pytest.mark.parametrize("name", ["auto", "torchvision", "pillow"])
@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_torchvisions_dataset_without_fusion_takes_another_decoder(folder, name, num_workers):
    transform = v1.Compose([v1.Resize((20, 24)), v1.PILToTensor()])
    ours, theirs = (datasets.ImageFolder(folder, transform, **more) for more in ({"loader": Loader(name)}, {}))
    context: dict[str, Any] = {"multiprocessing_context": "forkserver"} if num_workers else {}
    found = list(TorchDataLoader(ours, 7, num_workers=num_workers, **context))
    for one, other in zip(found, TorchDataLoader(theirs, 7), strict=True):
        assert torch.equal(one[0], other[0])


def test_a_loader_is_a_value(folder):
    loader = pickle.loads(pickle.dumps(Loader("pillow")))
    assert loader == Loader("pillow") != Loader("torchvision")
    assert hash(loader) == hash(Loader("pillow"))
    assert repr(loader) == "Loader('pillow')"
    with pytest.raises(FileNotFoundError):
        loader(folder / "nowhere.jpg")


class Own(Loader):
    """Does something of its own."""


def test_fusion_knows_our_loader_and_no_class_derived_from_it(folder):
    transform = v1.Compose([v1.Resize((20, 24)), v1.ToTensor()])
    dataset = datasets.ImageFolder(folder, transform, loader=Loader("pillow"))
    plan = recognise(dataset)
    assert plan.fused
    for index in (0, len(dataset) - 1):
        assert torch.equal(sample(FusedDataset(dataset, plan, 1), index)[0], dataset[index][0])
    derived = datasets.ImageFolder(folder, transform, loader=Own("pillow"))
    assert "its loader is" in (recognise(derived).reason or "")


def test_the_package_has_it_under_its_name():
    assert fastload.images.decode is decode
