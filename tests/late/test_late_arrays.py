"""Functions that return whole images give in workers what they give elsewhere: bits, strides, errors."""

from __future__ import annotations

import functools
import io
import os
import pickle
import random
import re
import shutil
import subprocess
import sys
import threading
import unittest.mock
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.io
from comparing import Function, jpeg, picture
from kit.datasets import Made
from kit.stores import written
from PIL import Image
from whole_images import (
    FLAGS,
    IS_OLD,
    LIBRARIES,
    assert_workers_read_the_same,
    folder_of,
    memory,
    needs_library,
    num_taken,
    of_any_kind,
    same,
    samples_of,
    seen,
    tensor,
)

import fastload
from fastload.base import overrides
from fastload.cache import shared, store
from fastload.cache.records import NOT_KEPT, OTHER_WAY, Records, take_not_kept
from fastload.late import LateSamples, arrays
from fastload.native import jpeg as native_jpeg
from fastload.native import png

cv2 = pytest.importorskip("cv2")
pytestmark = [
    pytest.mark.filterwarnings("ignore:The image decoding and encoding capabilities:DeprecationWarning"),
    needs_library,
]


NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (120, 144, 3), dtype=np.uint8))
IMREAD, DECODE_IMAGE, DECODE_JPEG = "cv2.imread", "torchvision.io.decode_image", "torchvision.io.decode_jpeg"


def exif(orientation: int, order: str = "little", kind: int = 3, tag: int = 0x0112, entries: int = 1) -> bytes:
    """Return an EXIF segment's content that names an orientation, in that byte order and as that type."""
    entry = tag.to_bytes(2, order) + kind.to_bytes(2, order) + (1).to_bytes(4, order)  # type: ignore[arg-type]
    entry += orientation.to_bytes(2, order) + b"\0\0"  # type: ignore[arg-type]
    head = (b"II*\0" if order == "little" else b"MM\0*") + (8).to_bytes(4, order)  # type: ignore[arg-type]
    return b"Exif\0\0" + head + entries.to_bytes(2, order) + entry + bytes(4)  # type: ignore[arg-type]


def with_segment(data: bytes, content: bytes, marker: int = 0xE1) -> bytes:
    """Return a file with one more segment behind its first marker."""
    return data[:2] + bytes((0xFF, marker)) + (len(content) + 2).to_bytes(2, "big") + content + data[2:]


def files_with_a_fault() -> Iterator[tuple[str, bytes]]:
    """Return files of which libjpeg warns, most of them."""
    for options in ({}, {"progressive": True}, {"subsampling": 0}):
        whole = jpeg(61, 47, **options)
        scan = whole.index(b"\xff\xda")
        middle = (scan + len(whole)) // 2
        plain = whole[:2] + whole[4 + int.from_bytes(whole[4:6], "big") :]  # without JFIF
        yield "whole", whole
        yield "3 bytes before the end", whole[:-2] + bytes(3) + whole[-2:]
        yield "20 bytes before the end", whole[:-2] + bytes(20) + whole[-2:]
        yield "filled before the end", whole[:-2] + b"\xff\xff" + whole[-2:]
        yield "no end", whole[:-2]
        yield "half", whole[:middle]
        yield "half, and an end", whole[:middle] + whole[-2:]
        yield "bytes between markers", whole[:scan] + b"\0\1\2" + whole[scan:]
        yield "a restart", whole[:middle] + b"\xff\xd3" + whole[middle:]
        yield "bad codes", whole[:middle] + b"\xfe" * 30 + whole[middle + 30 :]
        yield "another JFIF", whole.replace(b"JFIF\0\1", b"JFIF\0\2")
        yield "other colours", with_segment(plain, b"Adobe\0\x64\0\0\0\0\2", 0xEE)
        second = whole.find(b"\xff\xda", scan + 2)
        if second > 0:
            yield "bytes before the second scan", whole[:second] + bytes(20) + whole[second:]


@pytest.mark.parametrize("library", ["cv2", "torchvision.io"])
@pytest.mark.parametrize("cache", [None, "8MiB"])
def test_libjpegs_warnings_are_printed_as_without_us(library, cache, capfd):
    data = list(files_with_a_fault())

    def sample(index: int) -> Any:
        os.write(2, f"sample {index}\n".encode())
        file = np.frombuffer(bytearray(data[index][1]), dtype=np.uint8)
        if library == "cv2":
            return seen(lambda: cv2.imdecode(file, cv2.IMREAD_COLOR))
        return seen(lambda: torchvision.io.decode_image(torch.from_numpy(file), "RGB"))

    def said(kind: Any, **options: Any) -> tuple[list[Any], list[str]]:
        dataset = Made(len(data), sample)
        samples = list(kind(dataset, None, collate_fn=same, num_workers=1, **options))
        words = re.split(r"sample \d+\n", capfd.readouterr().err)[1:]
        return samples, [f"{name}: {text}" for (name, _), text in zip(data, words, strict=True)]

    expected = said(torch.utils.data.DataLoader)
    assert len([text for text in expected[1] if "Corrupt JPEG" in text]) > 5
    try:
        assert said(fastload.DataLoader, cache=cache) == expected
    finally:
        shared.forget()


def files() -> Iterator[tuple[str, bytes]]:
    for subsampling in (0, 1, 2):
        for progressive in (False, True):
            yield f"{subsampling}{progressive}", jpeg(61, 47, subsampling=subsampling, progressive=progressive)
    plain = jpeg(50, 34, seed=1)
    yield "grey", jpeg(41, 30, "L")
    yield "CMYK", jpeg(41, 30, "CMYK")
    yield "no YCbCr", jpeg(40, 30, keep_rgb=True)
    yield "a pixel", jpeg(1, 1)
    yield "a row", jpeg(37, 1)
    yield "a column", jpeg(1, 37)
    yield "restarts", jpeg(50, 34, restart_marker_rows=1)
    yield "with ICC", jpeg(50, 34, icc_profile=b"profile" * 20)
    for orientation in range(10):
        yield f"turned {orientation}", with_segment(plain, exif(orientation))
    yield "big endian", with_segment(plain, exif(6, "big"))
    yield "big endian, upright", with_segment(plain, exif(1, "big"))
    yield "as long", with_segment(plain, exif(6, kind=4))
    yield "another tag", with_segment(plain, exif(6, tag=0x0110))
    yield "two", with_segment(with_segment(plain, exif(6)), exif(1))
    yield "two, the other way", with_segment(with_segment(plain, exif(1)), exif(6))
    yield "too many entries", with_segment(plain, exif(6, entries=3))
    yield "no entries", with_segment(plain, exif(6, entries=0))
    yield "cut EXIF", with_segment(plain, exif(6)[:17])
    yield "XMP first", with_segment(with_segment(plain, exif(6)), b"http://ns.adobe.com/xap/1.0/\0<x/>")
    yield "comment", with_segment(plain, exif(6), 0xFE)
    if not IS_OLD:
        yield "half", plain[: len(plain) // 2]
        yield "no end", plain[:-2]
    yield "bytes behind it", plain + b"behind"
    yield "no image", plain[:100]
    yield "nothing", b""
    yield "a record of a pack", native_jpeg.record_of_jpeg(plain)  # type: ignore[misc]
    for kind in ("PNG", "BMP", "WEBP", "GIF"):
        file = io.BytesIO()
        picture(20, 15).save(file, kind)
        yield kind, file.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(tmp_path_factory.mktemp("files"), [*files(), ("ünïcode", jpeg(20, 30))], "jpg")


@pytest.mark.parametrize("cache", [None, "32MiB"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_whole_images_are_those_of_the_functions_as_they_are_in_every_epoch(
    folder: Path, library: str, cache: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "SETTLED_NS", 0)
    found = assert_workers_read_the_same(folder, library, cache=cache)
    shared.forget()
    names = {"cv2": ("imread", "imdecode"), "torchvision.io": ("decode_image", "decode_jpeg")}
    for name in names.get(library, ("decode_jpeg",)):
        assert found.decoded[f"at once, for {library}.{name}"] > 20
    assert cache is None or found.cached_files > 20


def test_damaged_files_give_the_same_or_are_left_to_the_original() -> None:
    draw = random.Random(0)
    whole = [data for name, data in files() if data[:2] == b"\xff\xd8" and len(data) > 200]
    taken = 0
    for _ in range(2000):
        data = bytearray(draw.choice(whole))
        for _ in range(draw.choice((0, 1, 1, 2, 5))):
            place = draw.randrange(draw.choice((len(data), 400)) if len(data) > 400 else len(data))
            data[place] = draw.choice((0, 0xFF, draw.randrange(256)))
        taken += num_taken(np.frombuffer(bytes(data), dtype=np.uint8), "jpeg", [1])
    assert taken > 400


class Holder(Made):
    """Has a function as an attribute, which is pickled with it where it is sent to workers."""

    def __init__(self, path: str) -> None:
        super().__init__(4, self.sample)
        self.read, self.path = cv2.imread, path

    def sample(self, index: int) -> Any:
        copied = pickle.loads(pickle.dumps(cv2.imread))
        return [seen(lambda read=read: read(self.path)) for read in (self.read, copied)]


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.thorough)])
def test_a_dataset_may_hold_a_function_and_what_has_its_place_is_pickled_by_name(folder: Path, context: str) -> None:
    path = str(folder / "0False.jpg")
    samples, decoded = samples_of(Holder(path), multiprocessing_context=context)
    assert samples == [[seen(lambda: cv2.imread(path))] * 2] * 4
    assert decoded


def scripted(folder: Path) -> Any:
    data = tensor(folder / "0False.jpg")
    torchvision.io.decode_jpeg(data)
    with pytest.raises((RuntimeError, TypeError), match="pickle"):
        pickle.dumps(torch.ops.image.decode_jpeg)
    return seen(lambda: torch.jit.script(torchvision.io.decode_jpeg)(data))


def enlarged(form: str, folder: Path) -> Any:
    made = getattr(torch.ops.image, f"decode_{form}")(tensor(folder / f"to enlarge.{form}"), 3)
    return made.untyped_storage().resizable(), made._is_view(), made.resize_(3, 900, 900).shape


def where_open_was_replaced(folder: Path) -> Any:
    with unittest.mock.patch("builtins.open", side_effect=TypeError("a user's own")):
        return seen(lambda: cv2.imread(str(folder / "0False.jpg")))


def in_a_mode(folder: Path) -> Any:
    data = tensor(folder / "0False.jpg")
    with Function() as mode:
        torch.ops.image.decode_jpeg(data, 3)
    assert len(mode.noted) == 1
    return mode.noted


def by_a_thread_that_makes_no_sample(folder: Path) -> Any:
    path, found = str(folder / "0False.jpg"), []
    cv2.imread(path)
    thread = threading.Thread(target=lambda: found.append(cv2.imread(path)))
    thread.start()
    thread.join()
    return seen(lambda: found[0])


USES: list[tuple[Callable[[Path], Any], dict[str, int]]] = [
    (scripted, {f"at once, for {DECODE_JPEG}": 4}),
    (functools.partial(enlarged, "jpeg"), {f"at once, for {DECODE_JPEG}": 2}),
    (functools.partial(enlarged, "png"), {"at once, for torchvision.io.decode_png": 2}),
    (where_open_was_replaced, {f"at once, for {IMREAD}": 2}),
    (in_a_mode, {f"at once, for {DECODE_JPEG}": 2}),
    (by_a_thread_that_makes_no_sample, {f"at once, for {IMREAD}": 2}),
]


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is")
@pytest.mark.parametrize(("use", "decoded"), USES)
def test_however_they_are_used_functions_give_what_they_give_elsewhere(
    folder: Path, tmp_path: Path, use: Callable[[Path], Any], decoded: dict[str, int]
) -> None:
    shutil.copy(folder / "0False.jpg", tmp_path)
    shutil.copy(folder / "0False.jpg", tmp_path / "to enlarge.jpeg")
    NOISE.save(tmp_path / "to enlarge.png")
    assert samples_of(lambda index: use(tmp_path)) == ([use(tmp_path)] * 2, decoded)


TRIALS = {one: next(native_jpeg.trial_files(NOISE, one)) for one in ("4:4:4", "4:4:0", "4:2:0")}
OTHER_PIXELS: dict[str, tuple[Callable[..., bool], list[tuple[str, str, int]], dict[str, str]]] = {
    # What is damaged; functions, files and modes that are read; what a function decodes itself, by function.
    "of all": (lambda *_: True, [(IMREAD, "4:4:4", 1), (DECODE_IMAGE, "4:4:4", 0)], {IMREAD: "JPEG 4:4:4"}),
    "of a kind": (
        lambda sampling, *_: sampling == "4:4:0",
        [(DECODE_JPEG, "4:4:0", 0), (DECODE_JPEG, "4:2:0", 0)],
        {DECODE_JPEG: "JPEG 4:4:0"},
    ),
    # OpenCV before 4.11 has no IMREAD_COLOR_RGB, and makes grey images of it.
    "in a mode": (
        lambda _, *layout: layout == ("RGB",),
        [(IMREAD, "4:2:0", 1), (IMREAD, "4:2:0", 256)],
        {IMREAD: "JPEG 4:2:0"},
    ),
    "of PNG files": (
        lambda kind, *_: kind == "PNG",
        [(IMREAD, "PNG", 1), (IMREAD, "4:2:0", 1), (DECODE_IMAGE, "PNG", 0), (DECODE_IMAGE, "4:2:0", 0)],
        {IMREAD: "PNG", DECODE_IMAGE: "PNG"},
    ),
}


def damage(monkeypatch: pytest.MonkeyPatch, is_damaged: Callable[..., bool]) -> None:
    """Let the library make other pixels of some JPEG files, or of PNG files."""

    def made(make: Any, data: Any, cut: Any, *layout: str, **named: Any) -> Any:
        pixels = make(data, cut, *layout, **named)
        if is_damaged(native_jpeg.read_size(data).sampling, *layout):
            pixels ^= 1
        return pixels

    def made_of_png(make: Any, *arguments: Any) -> Any:
        pixels = make(*arguments)
        if is_damaged("PNG"):
            pixels ^= 1
        return pixels

    monkeypatch.setattr(overrides, "results", {})
    for name in ("pixels_of_image", "row_of_image"):
        monkeypatch.setattr(arrays, name, functools.partial(made, getattr(arrays, name)))
    monkeypatch.setattr(png, "whole_image", functools.partial(made_of_png, png.whole_image))


@pytest.mark.parametrize("name", OTHER_PIXELS)
def test_files_with_other_pixels_are_left_to_the_function_and_no_others(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_damaged, reads, itself = OTHER_PIXELS[name]
    for kind, data in TRIALS.items():
        (tmp_path / kind).write_bytes(data)
    NOISE.save(tmp_path / "PNG", "PNG")

    def read(function: str, kind: str, mode: int) -> Any:
        path = tmp_path / kind
        if function == IMREAD:
            return cv2.imread(str(path), mode)
        return getattr(torchvision.io, function.rpartition(".")[2])(tensor(path), torchvision.io.ImageReadMode(mode))

    def sample(index: int) -> Any:
        return [seen(lambda one=one: read(*one)) for one in reads]  # type: ignore[misc]

    damage(monkeypatch, is_damaged)
    loader = fastload.DataLoader(Made(2, sample), None, collate_fn=same, num_workers=1)
    assert list(loader) == [sample(0)] * 2
    decoded = loader.statistics().decoded
    for function, kind in itself.items():
        words = f"at once, by {function} itself: it decodes {kind} files to other pixels"
        assert decoded[words] == 2
        assert words in str(loader.explain())
    others = sum(count for words, count in decoded.items() if "itself" not in words)
    assert others == (0 if name == "of all" else 2 * len(itself))


@pytest.mark.parametrize("limit", [f"OPENCV_IO_MAX_IMAGE_{what}" for what in ("PIXELS", "WIDTH", "HEIGHT")])
def test_opencv_decodes_by_itself_where_the_environment_limits_its_images_and_without_avx2_and_explain_says_so(
    monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    def explained() -> str:
        return " ".join(str(fastload.DataLoader(Made(1, same), num_workers=1).explain()).split())

    assert re.search("where workers call cv2 .*, fastload decodes JPEG and PNG files, to the same", explained())
    with monkeypatch.context() as patch:
        patch.setattr(arrays, "processor_level", lambda: "plain")
        assert "cv2 in worker processes is as it was: without AVX2" in explained()
    monkeypatch.setenv(limit, "1000000")
    kinds, _ = samples_of(lambda i: [type(cv2.imread).__name__, type(torch.ops.image.decode_jpeg._op).__name__])
    assert kinds == [["builtin_function_or_method", "_InPlaceOfBuiltin"]] * 2
    assert f"cv2 in worker processes is as it was: {limit} is set, which OpenCV alone follows" in explained()


def test_a_buffer_that_is_rewritten_meanwhile_is_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, smaller = memory(folder / "0False.jpg"), memory(folder / "a pixel.jpg")
    expected = cv2.imdecode(data, 1)
    read_size = native_jpeg.read_size

    def rewritten(file: Any) -> Any:
        size = read_size(file)
        buffer[: smaller.size] = smaller
        return size

    monkeypatch.setattr(native_jpeg, "read_size", rewritten)
    buffer = data.copy()
    assert np.array_equal(arrays._imdecode(of_any_kind, buffer, 1), expected)  # type: ignore[arg-type]
    buffer = data.copy()
    made = arrays._tensor(of_any_kind, torch.from_numpy(buffer), 3)
    assert made is not None
    assert np.array_equal(made.permute(1, 2, 0), expected[:, :, ::-1])


def kept_by(cache: Records, decode: Callable[..., Any], *arguments: Any) -> Any:
    with LateSamples(cache):
        return decode(of_any_kind, *arguments)


def test_a_kept_file_is_not_read_again(cache: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(written(tmp_path / "a.jpg", jpeg(60, 40)))
    kept_by(cache, arrays._imread, path)
    assert cache.store.contents().entries == 1
    monkeypatch.setattr(os, "pread", None)
    for flags in sorted(arrays._KNOWN[arrays.JPEG] & set(FLAGS)):
        assert seen(lambda flags=flags: kept_by(cache, arrays._imread, path, flags)) == seen(
            lambda flags=flags: cv2.imread(path, flags)
        )


def test_a_file_that_changes_while_it_is_read_is_not_kept(cache: Records, tmp_path: Path, monkeypatch: Any) -> None:
    path = written(tmp_path / "a.jpg", jpeg(60, 40))
    pread = os.pread

    def changing(*arguments: Any) -> bytes:
        path.chmod(0o600)
        return pread(*arguments)

    monkeypatch.setattr(os, "pread", changing)
    path.chmod(0o640)
    written(path, path.read_bytes())
    assert kept_by(cache, arrays._imread, str(path)) is not None
    assert cache.store.contents().entries == 0


def test_a_file_that_is_left_to_the_original_is_not_kept_and_counted_as_read_in_another_way(
    cache: Records, tmp_path: Path
) -> None:
    turned = dict(files())["turned 6"]
    path = written(tmp_path / "a.jpg", turned)
    take_not_kept()
    assert kept_by(cache, arrays._imread, str(path), cv2.IMREAD_GRAYSCALE) is None
    assert take_not_kept() == {NOT_KEPT + OTHER_WAY: 1}
    assert kept_by(cache, arrays._imread, str(path)) is None
    assert kept_by(cache, arrays._tensor, tensor(path), 3, True) is None
    assert cache.store.contents().entries == 0
    upright = kept_by(cache, arrays._imread, str(path), 1 | 128)
    assert np.array_equal(upright, cv2.imread(str(path), 1 | 128))
    assert cache.store.contents().entries == 1
    assert kept_by(cache, arrays._imread, str(path)) is None  # its record has the header that says so


@pytest.mark.slow
def test_a_script_that_has_not_imported_pillow_is_reached_too(folder: Path) -> None:
    script = f"""
import cv2, fastload
from torch.utils.data import Dataset

class Photos(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return cv2.imread({str(folder / "0False.jpg")!r})

loader = fastload.DataLoader(Photos(), 2, num_workers=1)
list(loader)
print(loader.statistics().decoded)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout == "{'at once, for cv2.imread': 4}\n", done.stderr
