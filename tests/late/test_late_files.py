"""Files of every kind, good and damaged, give what Pillow gives: bits, errors, warnings, and the file left as it is.

With a cache too, at each use of a file; and what can be kept of it is kept.
"""

from __future__ import annotations

import functools
import gzip
import io
import itertools
import os
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparing import as_sample, assert_equal, jpeg, opened, outcome, picture, png
from damaged_files import mutants
from kit.stores import written
from PIL import Image, ImageFile, JpegImagePlugin
from png_files import KINDS, chunk, damaged, drawn, file_of, filtered, header, in_pieces

from fastload.cache.records import CachedRecord, Records
from fastload.cache.store import key_of_bytes
from fastload.late import LateSamples, opener
from fastload.late.image import is_late
from fastload.native import jpeg as native_jpeg

EOI = b"\xff\xd9"


def used(data: bytes) -> list[Any]:
    """Return what a data set makes of a file, each step's error or result by itself."""
    made: list[Any] = []
    file = io.BytesIO(data)
    image: Any = None

    def by(step: Callable[[], Any]) -> None:
        try:
            made.append(step())
        except Exception as error:
            made.append(error)
        made.append(file.closed or file.tell())

    def open_file() -> None:
        nonlocal image
        image = Image.open(file)

    by(open_file)
    if image is not None:
        by(lambda: image.crop((0, 0, 1, 1)))
        by(lambda: image.crop((0, 0, 99, 98)))  # more than there is
        by(lambda: image.convert("RGB").crop((1, 1, 9, 9)).resize((5, 7), 2))
        by(lambda: image)
        by(lambda: [np.array(image), np.asarray(image), image.tobytes()])
        by(lambda: opened(data).rotate(30))
        by(lambda: [np.array(opened(data)) for _ in range(2)])
    return made


def marker_at(data: bytes, marker: int) -> int:
    return data.index(bytes([0xFF, marker]))


@functools.cache
def kinds() -> dict[str, bytes]:
    rgb = jpeg()
    exif = Image.Exif()
    exif[0x0112] = 6
    found = {
        "plain": rgb,
        "grey": jpeg(mode="L"),
        "cmyk": jpeg(mode="CMYK"),
        "ycck": jpeg(mode="CMYK").replace(b"Adobe\0d\0\0\0\0\0", b"Adobe\0d\0\0\0\0\2"),
        "progressive": jpeg(progressive=True),
        "grey, progressive": jpeg(mode="L", progressive=True),
        "progressive, several blocks": jpeg(600, 500, progressive=True, quality=98) + b"trailer" * 60_000,
        "progressive, restarts": jpeg(restart_marker_blocks=1, progressive=True),
        "progressive, no end": jpeg(progressive=True)[:-2],
        "progressive, junk in the last scan": jpeg(progressive=True)[:-30] + b"junk" * 20 + EOI,
        "progressive, a scan less": jpeg(progressive=True).rpartition(b"\xff\xc4")[0] + EOI,
        "restarts": jpeg(restart_marker_blocks=1),
        "restarts by rows": jpeg(90, 70, restart_marker_rows=1, subsampling=2),
        "4:4:4": jpeg(subsampling=0),
        "4:2:2": jpeg(subsampling=1),
        "kept RGB": jpeg(keep_rgb=True),
        "optimized": jpeg(optimize=True),
        "row": jpeg(77, 1),
        "column": jpeg(1, 77),
        "dot": jpeg(1, 1),
        "comment": jpeg(comment=b"a" * 300),
        "profile": jpeg(icc_profile=b"p" * 70_000),
        "trailer": rgb + b"\0\0\0\x18ftypmp42" + rgb * 3,
        "long trailer": rgb + b"video" * 30_000,
        "no end": rgb[:-2],
        "two ends": rgb + EOI,
        "stuffed": rgb[:2] + b"\xff\xff\xff" + rgb[2:],
        "junk between markers": rgb[: marker_at(rgb, 0xDB)] + b"junk" + rgb[marker_at(rgb, 0xDB) :],
        "junk before": b"junk" + rgb,
        "fill bytes before the end": rgb[:-2] + b"\xff\xff\xff" + EOI,
        "zeros before the end": rgb[:-2] + b"\0" * 50 + EOI,
        "a marker in the scan": rgb[:-40] + b"\xff\xc4" + rgb[-40:],
        "an unknown marker in the scan": rgb[:-40] + b"\xff\x02" + rgb[-40:],
        "a restart in the scan": rgb[:-40] + b"\xff\xd3" + rgb[-40:],
        "an end in the scan": rgb[:-40] + EOI + rgb[-40:],
        "a line count behind": rgb[:-2] + b"\xff\xdc\x00\x04\x00\x30" + EOI,
        "twelve bits": _changed(rgb, 0xC0, 4, 12),
        "arithmetic": rgb.replace(b"\xff\xc0", b"\xff\xc9", 1),
        "lossless": rgb.replace(b"\xff\xc0", b"\xff\xc3", 1),
        "extended": rgb.replace(b"\xff\xc0", b"\xff\xc1", 1),
        "no width": _changed(_changed(rgb, 0xC0, 7, 0), 0xC0, 8, 0),
        "no height": _changed(_changed(rgb, 0xC0, 5, 0), 0xC0, 6, 0),
        "higher than it is": _changed(rgb, 0xC0, 6, 99),
        "lower than it is": _changed(rgb, 0xC0, 6, 9),
        "wider than it is": _changed(rgb, 0xC0, 8, 99),
        "huge": _changed(_changed(rgb, 0xC0, 5, 255), 0xC0, 7, 255),
        "two components": _changed(rgb, 0xC0, 9, 2),
        "sequential, of several scans": jpeg(progressive=True).replace(b"\xff\xc2", b"\xff\xc0", 1),
        "two frames": rgb[: marker_at(rgb, 0xDA)] + rgb[marker_at(rgb, 0xC0) :],
        "mpo": _of_two_images("MPO"),
        "broken mpo": _of_two_images("MPO")[:-900],
        "broken exif": jpeg(exif=exif).replace(b"II*\0" if b"II*\0" in jpeg(exif=exif) else b"MM\0*", b"XX**"),
        **png_kinds(),
        "another format": b"GIF89a" + rgb,
        "empty": b"",
        "a start": rgb[:2],
    }
    for orientation in range(1, 9):
        exif[0x0112] = orientation
        found[f"orientation {orientation}"] = jpeg(40, 31, exif=exif)
    # The end of the image at, before and across the end of a block that Pillow reads.
    block = ImageFile.MAXBLOCK
    for end in (-2, -1, 0, 1, 2):
        padded = jpeg(comment=b"c")
        gap = block + end - len(padded)
        segments = b"".join(b"\xff\xfe" + (2 + n).to_bytes(2, "big") + b"x" * n for n in _parts(gap))
        found[f"ends {end} from a block"] = padded[:2] + segments + padded[2:] + b"trailer" * 20_000
    return found


def png_kinds() -> dict[str, bytes]:
    rng = np.random.default_rng(5)
    rgb = png()
    exif = Image.Exif()
    exif[0x0112] = 6
    text = chunk(b"tEXt", b"key\0value")
    data = in_pieces(zlib.compress(filtered(np.zeros((3, 9), np.uint8), 3, [0, 4, 1])))
    first = header(3, 3, 8, 2)
    stream = zlib.compress(bytes(30))
    found = {
        **{f"{bits} bits of {color}": drawn(rng, 40, 30, bits, color) for bits, color in KINDS},
        "wide grey": drawn(rng, 40, 30, 16, 0),
        "few colors": drawn(rng, 40, 30, 4, 3, colors=5),
        "exif": png(exif=exif),
        "profile": png(icc_profile=b"p" * 70_000),
        "large": png(900, 700),
        "trailer": rgb + b"trailer" * 300_000,
        "no end": rgb[:-12],
        "half an end": rgb[:-6],
        "text before": file_of(first, data, before=text),
        "text behind": file_of(first, data, behind=text),
        "private chunks": file_of(first, data, before=chunk(b"abCd", b"1"), behind=chunk(b"abCd", b"2")),
        "exif behind": file_of(first, data, behind=chunk(b"eXIf", exif.tobytes()[6:])),
        "transparent": file_of(first, data, before=chunk(b"tRNS", bytes(6))),
        "interlaced": file_of(header(3, 3, 8, 2, b"\0\0\1"), data),
        "animated": _of_two_images("PNG"),
        "data twice": file_of(first, data + data),
        "data in pieces": file_of(first, in_pieces(stream, [0, 0, 3, 9, len(stream)])),
        "data later": file_of(first, data + text + data),
        "a wrong checksum of the data": file_of(first, chunk(b"IDAT", stream, crc=7)),
        "a wrong checksum of a text": file_of(first, data, before=chunk(b"tEXt", b"key\0value", crc=7)),
        "a wrong sum": file_of(first, in_pieces(stream[:-1] + b"7")),
        "no sum": file_of(first, in_pieces(stream[:-4])),
        "more data": file_of(first, in_pieces(zlib.compress(bytes(90)))),
        "less data": file_of(first, in_pieces(zlib.compress(bytes(29)))),
        "an unknown filter": file_of(first, in_pieces(zlib.compress(bytes(20) + b"\7" + bytes(9)))),
        "damage in the last row": file_of(
            header(100, 90, 8, 0), in_pieces(zlib.compress(rng.bytes(9090), 0)[:-60] + bytes(60))
        ),
        "no data": file_of(first, b""),
        "no first chunk": file_of(b"", data),
        "a text for ours": file_of(first, data, before=chunk(b"tEXt", b"interlace\x001")),
    }
    return {f"png, {kind}": data for kind, data in found.items()}


def _of_two_images(form: str) -> bytes:
    file = io.BytesIO()
    picture(64, 48).save(file, form, save_all=True, append_images=[picture(64, 48, seed=2)])
    return file.getvalue()


def _parts(num_bytes: int) -> list[int]:
    """Return what comments of this many bytes in all hold."""
    half = num_bytes // 2
    return [half - 4, num_bytes - half - 4]


def _changed(data: bytes, marker: int, offset: int, value: int) -> bytes:
    changed = bytearray(data)
    changed[marker_at(data, marker) + offset] = value
    return bytes(changed)


class White(ImageFile.PyDecoder):
    """Decodes any file to white pixels."""

    def decode(self, buffer: Any) -> tuple[int, int]:
        self.set_as_raw(b"\xff" * (3 * self.state.xsize * self.state.ysize))
        return -1, 0


def decode_by_others(patch: pytest.MonkeyPatch) -> None:
    for name in ("jpeg", "zip"):
        patch.setitem(Image.DECODERS, name, White)


def open_by_what_loads(patch: pytest.MonkeyPatch) -> None:
    for name in ("JPEG", "PNG"):
        factory, accept = Image.OPEN[name]

        def loaded(file: Any, filename: Any, factory: Any = factory) -> Any:
            image = factory(file, filename)
            image.load()
            image.putpixel((0, 0), (1, 2, 3))
            return image

        patch.setitem(Image.OPEN, name, (loaded, accept))


SETTINGS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "truncated files are loaded": lambda patch: patch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True),
    **{
        f"at most {limit} pixels": lambda patch, limit=limit: patch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        for limit in (64 * 48 * 2, 64 * 48, 64 * 48 - 1, 64 * 48 // 2 - 1, None)
    },
    "another decoder": decode_by_others,
    "openers that load": open_by_what_loads,
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_pillows_settings_hold(setting, monkeypatch):
    kept = ["plain", "no end", "trailer", "a marker in the scan", "cmyk", "higher than it is"]
    kept += [f"png, {kind}" for kind in ("8 bits of 2", "no end", "less data", "a wrong sum")]
    SETTINGS[setting](monkeypatch)
    for data in map(kinds().__getitem__, kept):
        for part in (data, data[: len(data) // 2]):
            assert_equal(lambda part=part: used(part))


LATE = ["plain", "grey", "restarts", "4:4:4", "row", "trailer", "orientation 6", "profile", "kept RGB"]
LATE += ["progressive", "grey, progressive", "progressive, several blocks", "progressive, restarts"]
LATE += [f"png, {bits} bits of {color}" for bits, color in ((8, 2), (16, 2), (4, 0))]
LATE += [f"png, {kind}" for kind in ("exif", "large", "trailer", "profile", "text before", "data in pieces")]
LATE += ["png, a wrong checksum of the data"]


def test_most_kinds_of_files_are_late_but_png_files_of_few_values(monkeypatch):
    with LateSamples():
        assert [kind for kind in LATE if not is_late(opened(kinds()[kind]).copy())] == []
        monkeypatch.setattr(opener, "LEAST_VALUES", 300)
        found = [is_late(opened(png(*size, mode))) for mode in ("RGB", "L") for size in ((9, 11), (10, 10), (15, 20))]
    assert found == [False, True, True, False, False, True]


TO_RGB = [kind for kind in KINDS if kind[1] in (4, 6)]


def colors_of(data: bytes) -> list[Any]:
    """Return what is made of an image in RGB, and then of the image."""
    image = opened(data)
    rgb = image.convert("RGB")
    parts = [rgb.crop((3, 4, 15, 14)), image.convert("RGB").resize((9, 8)), rgb]
    parts += [image, image.getpixel((1, 2)), image.getchannel(-1 % len(image.getbands()))]
    return [*parts, image.convert("RGB").rotate(90)]


@pytest.mark.parametrize(("bits", "color"), TO_RGB)
def test_files_with_alpha_are_late_where_they_become_rgb(bits, color):
    rng = np.random.default_rng(2)
    data = drawn(rng, 40, 30, bits, color)
    for before in (b"", chunk(b"tEXt", b"Title\0text"), chunk(b"gAMA", bytes(4)), chunk(b"tRNS", bytes(6))):
        for behind in (b"", chunk(b"tEXt", b"Title\0other")):
            file = drawn(rng, 40, 30, bits, color, before=before, behind=behind)
            for use in (colors_of, used, lambda file: opened(file).convert(), lambda file: opened(file).convert("L")):
                assert_equal(lambda use=use, file=file: use(file))
    with LateSamples():
        assert is_late(opened(data).convert("RGB").crop((0, 0, 9, 9)))
        assert not is_late(opened(data).crop((0, 0, 9, 9)))


MUTATED: list[tuple[str, dict[str, Any]]] = [
    ("RGB", {}),
    ("RGB", {"subsampling": 0}),
    ("RGB", {"restart_marker_blocks": 1}),
    ("L", {}),
    ("L", {"restart_marker_blocks": 2}),
    ("RGB", {"optimize": True}),
    ("RGB", {"progressive": True}),
    ("L", {"progressive": True, "restart_marker_blocks": 1}),
]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "PNG with alpha"])
def test_damaged_files_give_what_pillow_gives(kind, monkeypatch):
    # What the header says can be large, and is a matter of time alone.
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20_000)
    rng = np.random.default_rng(len(kind))
    if kind == "JPEG":
        files = mutants(rng, [jpeg(24, 17, mode, seed=seed, **more) for seed, (mode, more) in enumerate(MUTATED)])
    else:
        colors = [(8, 2), (8, 0), (16, 2), (4, 0), (8, 3)] if kind == "PNG" else TO_RGB
        wholes = [drawn(rng, 24, 17, *one) for one in colors]
        files = (damaged(rng, wholes) for _ in itertools.count())
    for data in itertools.islice(files, 300):
        assert_equal(lambda data=data: colors_of(data) if "alpha" in kind else used(data))


USES: list[Callable[[Any], Any]] = [
    lambda image: image.size,
    lambda image: image.convert("RGB"),
    lambda image: image.crop((1, 2, 9, 9)),
]


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("use", [*(getattr(Image.Image, name) for name in ("copy", "load")), *USES])
@pytest.mark.parametrize("kind", ["trailer", "png, trailer"])
def test_files_are_closed_when_pillow_closes_them(kind, use, tmp_path):
    path = tmp_path / "a"
    path.write_bytes(kinds()[kind])

    def make() -> Any:
        seen: list[Any] = []
        before = _descriptors()
        for opens in (lambda: Image.open(path), lambda: Image.open(str(path)), lambda: Image.open(path.open("rb"))):
            image = opens()
            file = image.fp
            seen += [use(image) is None, _descriptors() - before, getattr(file, "closed", None)]
            with image:  # closed before it is used again
                pass
            seen += [_descriptors() - before, str(getattr(image, "filename", "")).replace(str(path), "")]
            try:
                seen.append(image.convert("RGB"))
            except Exception as error:
                seen.append(error)
            file.close()
        return seen

    assert_equal(make)


class Stream(io.BytesIO):
    """A file that gives at most some bytes at once."""

    def read(self, num_bytes: int | None = -1) -> bytes:
        return super().read(600 if num_bytes is None or num_bytes < 0 else min(num_bytes, 600))


class OfItsOwn:
    """A file object whose ``read`` needs a number, as Pillow gives it one."""

    def __init__(self, data: bytes) -> None:
        self.file = io.BytesIO(data)
        self.seek, self.tell = self.file.seek, self.file.tell

    def read(self, num_bytes: int) -> bytes:
        return self.file.read(num_bytes)


def fed(data: bytes) -> Image.Image:
    parser = ImageFile.Parser()
    for begin in range(0, len(data), 100):
        parser.feed(data[begin : begin + 100])
    return parser.close()


FILE_OBJECTS: dict[str, Callable[[bytes], Any]] = {
    "read in parts": Stream,
    "read by number": OfItsOwn,
    "packed, and damaged behind the image": lambda data: gzip.GzipFile(
        fileobj=io.BytesIO(gzip.compress(data)[:-1] + b"?")
    ),
}


@pytest.mark.parametrize("kind", ["plain", "trailer", "no end", "png, 8 bits of 2", "png, trailer", "png, no end"])
def test_other_file_objects_are_read_as_pillow_reads_them(kind):
    def converted(file: Any) -> Any:
        try:
            made = Image.open(file).convert("RGB").resize((9, 8))
        except Exception as error:
            made = error
        return made, getattr(file, "closed", False) or file.tell()

    for make in FILE_OBJECTS.values():
        assert_equal(lambda make=make: converted(make(kinds()[kind])))
    assert_equal(lambda: fed(kinds()[kind]))


def test_an_open_that_users_have_replaced_is_no_error(monkeypatch):
    data = jpeg(40, 31)
    factory = Image.OPEN["JPEG"][0]
    monkeypatch.setattr(Image, "open", lambda path: factory(io.BytesIO(data), path))
    assert native_jpeg.pillow_agrees.__wrapped__()
    assert_equal(lambda: Image.open("a path").resize((9, 8)))


def test_classes_of_their_own_are_left_alone():
    class Mine(JpegImagePlugin.JpegImageFile):
        pass

    assert type(as_sample(lambda: Mine(io.BytesIO(kinds()["plain"])))) is Mine
    assert type(as_sample(lambda: JpegImagePlugin.JpegImageFile(io.BytesIO(kinds()["plain"]))).copy()) is Image.Image


USUAL = {"plain", "grey", "4:4:4", "4:2:2", "restarts", "optimized", "profile", "trailer"}


@pytest.mark.parametrize("name", kinds())
def test_a_file_of_any_kind_gives_what_pillow_gives_also_at_each_use_with_a_cache(name, cache):
    data = kinds()[name]
    plain = outcome(lambda: used(data), late=False)
    for its_cache in (None, cache, cache):
        assert outcome(lambda: used(data), late=True, cache=its_cache) == plain
    assert name not in USUAL or isinstance(cache.find(key_of_bytes(data)), CachedRecord)


def left(path: Path) -> tuple[bytes, int]:
    """Return pixels of a file, and where it stands then."""
    with path.open("rb") as file:
        return Image.open(file).crop((3, 3, 30, 30)).tobytes(), file.tell()


def changing(monkeypatch: pytest.MonkeyPatch, path: Path, cache: Records) -> None:
    source = sys.modules["fastload.late.source"]
    read = source._read_scans

    def then_changed(image: Any) -> Any:
        found = read(image)
        os.utime(path, ns=(1, 1))
        return found

    monkeypatch.setattr(source, "_read_scans", then_changed)


def no_memory(*given: Any) -> None:
    raise MemoryError


NOT_KEPT: dict[str, Callable[[pytest.MonkeyPatch, Path, Records], None]] = {
    "it changes while it is read": changing,
    "it is read in other blocks": lambda patch, path, cache: patch.setattr(ImageFile, "MAXBLOCK", 1000),
    "there is no memory for a record": lambda patch, path, cache: patch.setattr(cache.store, "keep", no_memory),
}


@pytest.mark.parametrize("why", ["nothing", *NOT_KEPT])
def test_the_users_file_is_left_where_pillow_leaves_it_and_kept_where_nothing_forbids_it(
    cache, tmp_path, monkeypatch, why
):
    path = written(tmp_path / "a.jpg", jpeg(700, 900, quality=98) + b"behind" * 30_000)
    NOT_KEPT.get(why, lambda *_: None)(monkeypatch, path, cache)
    assert as_sample(lambda: left(path), cache) == left(path)
    assert cache.store.contents().entries == (why == "nothing")
    if why == "nothing":
        assert as_sample(lambda: left(path), cache) == left(path)


def test_what_a_readers_buffer_has_of_an_older_file_is_not_kept(cache, tmp_path):
    path = written(tmp_path / "a.jpg", jpeg(300, 200, seed=0))

    def sample() -> Any:
        image = Image.open(path)  # the beginning of the file is in its buffer now
        path.write_bytes(jpeg(300, 200, seed=1))
        written(path, jpeg(300, 200, seed=1))
        return image.crop((3, 3, 30, 30))

    as_sample(sample, cache)
    assert cache.store.contents().entries == 0
