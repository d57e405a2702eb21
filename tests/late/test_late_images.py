"""Whatever is done to late images gives what it gives with Pillow's own: bits, types, ``info``, errors, warnings."""

from __future__ import annotations

import copy
import functools
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from comparing import as_sample, assert_equal, described, jpeg, opened, picture
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageOps, JpegImagePlugin

Step = Callable[[Image.Image], Any]


def _exif(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif.tobytes()


@functools.cache
def _files() -> tuple[bytes, ...]:
    files = [
        jpeg(width, height, mode, seed=place, subsampling=place % 3 if mode == "RGB" else 0, icc_profile=b"profile")
        for place, (width, height) in enumerate([(64, 48), (37, 51), (1, 40), (40, 1), (200, 133)])
        for mode in ("RGB", "L")
    ]
    return (*files, *(jpeg(40, 31, exif=_exif(orientation), dpi=(72, 72)) for orientation in (2, 5, 6, 8)))


_whole = st.integers(-5, 60)
_numbers = st.one_of(_whole, st.floats(-3, 60), st.sampled_from([0, 0.5, 1.5, 2.5, float("nan")]))
_boxes = st.one_of(
    st.none(),
    st.tuples(*[st.integers(0, 20)] * 2, *[st.integers(20, 45)] * 2),
    st.tuples(*[st.floats(0, 20)] * 2, *[st.floats(20, 45)] * 2),
    st.lists(_numbers, min_size=4, max_size=4),
)
_filters = st.one_of(st.none(), st.integers(-1, 9))


@st.composite
def _resize(draw: st.DrawFn) -> Step:
    size = draw(st.tuples(*[st.integers(-1, 60)] * 2))
    gap = draw(st.sampled_from([None, None, None, 1.0, 2.0, 0.5]))
    resample, box = draw(_filters), draw(_boxes)
    return lambda image: image.resize(size, resample, box, gap)


def _in_place(change: Callable[[Image.Image], Any]) -> Step:
    def changed(image: Image.Image) -> Image.Image:
        change(image)
        return image

    return changed


def _thumbnail(image: Image.Image, gap: float | None) -> Image.Image:
    made = image.copy()
    made.thumbnail((20, 20), reducing_gap=gap)
    return made


def _saved(image: Image.Image, quality: Any) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return Image.open(file)


def _merged(image: Image.Image) -> Image.Image:
    return Image.merge(image.mode, image.split()[::-1]) if len(image.getbands()) > 1 else image


_FIXED: dict[str, Step] = {
    "to RGB": lambda image: image.convert("RGB"),
    "to L": lambda image: image.convert("L"),
    "to its own mode": lambda image: image.convert(),
    "to a palette": lambda image: image.convert("P"),
    "to HSV": lambda image: image.convert("HSV"),
    "to no mode": lambda image: image.convert("none such"),
    "copy": lambda image: image.copy(),
    "copy.copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda image: pickle.loads(pickle.dumps(image)),
    "load": _in_place(lambda image: image.load()[0, 0]),
    "load, then write": _in_place(
        lambda image: image.load().__setitem__((0, 0), 7 if image.mode == "L" else (7, 8, 9))
    ),
    "array": lambda image: Image.fromarray(np.array(image)),
    "array twice": _in_place(lambda image: np.testing.assert_array_equal(np.asarray(image), np.asarray(image))),
    "bytes": lambda image: Image.frombytes(image.mode, image.size, image.tobytes()),
    "other bytes": _in_place(lambda image: image.tobytes("raw", image.mode, 0, -1)),
    "putpixel": _in_place(lambda image: image.putpixel((0, 0), 1 if image.mode == "L" else (1, 2, 3))),
    "paste": _in_place(lambda image: image.paste(3, (1, 1, 9, 9))),
    "paste itself": _in_place(lambda image: image.paste(image.crop((0, 0, 2, 1)), (1, 0))),
    "draw": _in_place(lambda image: ImageDraw.Draw(image).rectangle((0, 0, 5, 5), fill=7)),
    "alpha": _in_place(lambda image: image.putalpha(9)),
    "palette": _in_place(lambda image: image.putpalette(bytes(range(255, -1, -1)) * 3)),
    "palette in another order": _in_place(lambda image: image.putpalette(bytes(range(255, -1, -1)) * 3, "BGR")),
    "a note": _in_place(lambda image: image.info.update(note=1)),
    "compare": lambda image: image if image == image.copy() and image != picture(3, 3) else None,
    "exif_transpose": ImageOps.exif_transpose,
    "exif_transpose in place": _in_place(lambda image: ImageOps.exif_transpose(image, in_place=True)),
    "exif": _in_place(lambda image: image.getexif().get(0x0112)),
    "autocontrast": ImageOps.autocontrast,
    "equalize": ImageOps.equalize,
    "flip": ImageOps.flip,
    "mirror": ImageOps.mirror,
    "invert": ImageOps.invert,
    "posterize": lambda image: ImageOps.posterize(image, 3),
    "grayscale": ImageOps.grayscale,
    "expand": lambda image: ImageOps.expand(image, 3),
    "fit": lambda image: ImageOps.fit(image, (20, 30)),
    "pad": lambda image: ImageOps.pad(image, (33, 20)),
    "contain": lambda image: ImageOps.contain(image, (21, 30)),
    "blur": lambda image: image.filter(ImageFilter.GaussianBlur(1)),
    "brightness": lambda image: ImageEnhance.Brightness(image).enhance(0.5),
    "sharpness": lambda image: ImageEnhance.Sharpness(image).enhance(1.7),
    "color": lambda image: ImageEnhance.Color(image).enhance(0.3),
    "split and merge": _merged,
    "channel": lambda image: image.getchannel(0),
    "point": lambda image: image.point(lambda level: level // 2),
    "blend": lambda image: Image.blend(image, image.transpose(3), 0.3),
    "affine": lambda image: image.transform((30, 30), Image.Transform.AFFINE, (1, 0.1, 2, 0, 1, 1)),
    "thumbnail": lambda image: _thumbnail(image, 2.0),
    "thumbnail without a gap": lambda image: _thumbnail(image, None),
    "draft": _in_place(lambda image: image.draft("L", (10, 10))),
    "save": lambda image: _saved(image, 50),
    "save as it was": lambda image: _saved(image, "keep"),
    "close": _in_place(lambda image: image.close()),
    "close behind a copy": lambda image: (image.copy(), image.close())[0],
    "numbers": _in_place(lambda image: (image.histogram(), image.getextrema(), image.getbbox(), image.getcolors())),
    "in a with": lambda image: image.__enter__().__exit__() or image,
    "seek": _in_place(lambda image: (image.tell(), image.seek(0))),
    "seek too far": _in_place(lambda image: image.seek(1)),
    "verify": _in_place(lambda image: image.verify()),
}

_steps: st.SearchStrategy[tuple[str, Step]] = st.one_of(
    st.tuples(st.just("crop"), _boxes.map(lambda box: lambda image: image.crop(box))),
    st.tuples(st.just("resize"), _resize()),
    st.tuples(st.just("transpose"), st.integers(-1, 7).map(lambda method: lambda image: image.transpose(method))),
    st.tuples(st.just("rotate"), st.sampled_from([0, 90, 180, 270, 17]).map(lambda a: lambda image: image.rotate(a))),
    st.tuples(st.just("reduce"), st.integers(0, 4).map(lambda factor: lambda image: image.reduce(factor))),
    st.sampled_from(sorted(_FIXED.items())),
    st.sampled_from(sorted(_FIXED.items())),
)


def _outcomes_of(data: bytes, steps: list[tuple[tuple[str, Step], bool]]) -> list[Any]:
    """Return what each step raised or made, and all images that were kept on the way."""
    image: Any = opened(data)
    seen: list[Any] = []
    kept = []
    for (name, step), keeps in steps:
        try:
            made = step(image)
        except Exception as error:
            seen.append((name, *described(error)))
            continue
        seen.append((name, made.mode, made.size, made.format, dict(made.info), isinstance(made, Image.Image)))
        if keeps:
            kept.append(image)
        image = made
    return [*seen, image, *kept]


@given(st.integers(0, len(_files()) - 1), st.lists(st.tuples(_steps, st.booleans()), max_size=7))
def test_any_chain_of_calls_gives_what_it_gives_with_pillows_own_images(place, steps):
    assert_equal(lambda: _outcomes_of(_files()[place], steps))


@pytest.mark.parametrize("name", _FIXED)
@pytest.mark.parametrize("behind", ["open", "crop", "turned"])
def test_each_call_gives_what_it_gives_with_pillows_own_images(name, behind):
    first: Step = {"open": lambda image: image, "crop": lambda image: image.crop((3, 2, 30, 29))}.get(
        behind, lambda image: image.convert("RGB").resize((31, 40), 2).transpose(2)
    )
    step = _FIXED[name]
    # Closed, an image says so at whatever is done next.
    chain = [((behind, first), True), ((name, step), True), ((name, step), False), (("array", _FIXED["array"]), False)]
    for data in (_files()[0], _files()[1]):
        assert_equal(lambda data=data: _outcomes_of(data, chain))


ODD_ARGUMENTS: dict[str, Step] = {
    "a filter that is a float": lambda image: image.resize((10, 10), 2.0),
    "a filter in a list": lambda image: image.resize((10, 10), [2]),
    "a filter by name": lambda image: image.resize((10, 10), "bilinear"),
    "a size that is an iterator": lambda image: image.resize(iter((10, 11)), 2),
    "a size that is an array": lambda image: image.resize(np.array([10, 11]), 2),
    "a size of floats": lambda image: image.resize((10.0, 11), 2),
    "a size of three": lambda image: image.resize((10, 11, 12), 2),
    "a box that is an iterator": lambda image: image.resize((10, 11), 2, iter((1, 2, 30, 31))),
    "a box that is an array": lambda image: image.resize((10, 11), 2, np.array([1, 2, 30, 31])),
    "a box of strings": lambda image: image.resize((10, 11), 2, ("1", "2", "30", "31")),
    "a box that is empty in single precision": lambda image: image.resize((10, 11), 2, (1.0, 1.0, 1.0 + 1e-12, 20.0)),
    "a box that reaches beyond in single precision": lambda image: image.resize((9, 9), 2, (0, 0, 64 + 1e-9, 48)),
    "a box of three": lambda image: image.resize((10, 11), 2, (1, 2, 30)),
    "the same size, and all of it": lambda image: image.resize(image.size, 2, [0, 0, *image.size]),
    "a crop by an iterator": lambda image: image.crop(iter((1, 2, 30, 31))),
    "a crop by an array": lambda image: image.crop(np.array([1, 2, 30, 31])),
    "a crop of strings": lambda image: image.crop(("1", "2", "30", "31")),
    "a crop of five": lambda image: image.crop((1, 2, 30, 31, 32)),
    "a crop from right to left": lambda image: image.crop((10.4, 0, 10.3, 5)),
    "a crop of nothing": lambda image: image.crop((10, 10, 10, 20)),
    "a crop with halves": lambda image: image.crop((0.5, 1.5, 20.5, 21.5)),
    "a crop by infinity": lambda image: image.crop((0, 0, float("inf"), 5)),
    "a transposition by name": lambda image: image.transpose("left"),
    "a transposition by a float": lambda image: image.transpose(1.0),
    "a transposition by truth": lambda image: image.transpose(True),
    "an unknown transposition": lambda image: image.transpose(9),
    "convert by a keyword": lambda image: image.convert(mode="RGB"),
    "convert by a matrix": lambda image: image.convert("L", (0.3, 0.5, 0.2, 0)),
    "crop by a keyword": lambda image: image.crop(box=(1, 2, 3, 4)),
    "resize by keywords": lambda image: image.resize(size=(9, 8), resample=3, box=(0, 0, 20, 20), reducing_gap=None),
    "resize without a size": lambda image: image.resize(),
    "an unknown keyword": lambda image: image.resize((9, 8), filter=2),
    "transpose by a keyword": lambda image: image.transpose(method=1),
    "an unknown attribute": lambda image: image.none_such,
}


@pytest.mark.parametrize("name", ODD_ARGUMENTS)
def test_odd_arguments_do_what_they_do_with_pillow(name):
    for data in (_files()[0], _files()[1]):
        assert_equal(lambda data=data: ODD_ARGUMENTS[name](opened(data)))
        assert_equal(lambda data=data: ODD_ARGUMENTS[name](opened(data).copy()))


@pytest.mark.parametrize("raw_mode", ["RGB", "BGR"])
@pytest.mark.parametrize("first", ["open", "load", "copy", "crop"])
def test_a_palette_that_is_put_on_a_grey_image_is_there_at_once(first, raw_mode):
    def make() -> Any:
        image = opened(jpeg(mode="L"))
        if first == "load":
            image.load()
        elif first != "open":
            image = getattr(image, first)()
        image.putpalette(bytes(range(256)) * 3, raw_mode)
        palette = None if image.palette is None else image.palette.palette
        return [palette, image.getpalette(), image.crop((1, 1, 9, 9)).convert("RGB"), image]

    assert_equal(make)


def test_an_image_changed_in_place_leaves_what_was_derived_from_it_before():
    def make() -> Any:
        image = opened(_files()[0])
        before = image.crop((0, 0, 20, 20))
        image.paste(9, (0, 0, 20, 20))
        return before, image, image.crop((0, 0, 20, 20))

    assert_equal(make)


def test_an_array_is_read_only_and_outlives_its_image():
    def make() -> Any:
        images = [opened(_files()[0]) for _ in range(3)]
        arrays = [np.asarray(image.crop((0, 0, 30, 20))) for image in images]
        arrays += [np.asarray(image) for image in images for _ in range(2)]
        del images
        return arrays, [np.asarray(opened(_files()[4])) for _ in range(5)]

    assert_equal(make)


def test_only_within_a_sample_is_an_image_a_subclass():
    def make() -> Any:
        image = opened(_files()[0])
        derived = image.crop((0, 0, 8, 8))
        assert type(image) is not Image.Image
        assert type(derived) is not Image.Image
        assert isinstance(derived, Image.Image)
        assert repr(derived).startswith("<PIL.Image.Image image mode=RGB size=8x8 at 0x")
        return image, derived

    made = as_sample(make)
    assert [type(one).__name__ for one in made] == ["JpegImageFile", "Image"]


@pytest.mark.parametrize(
    "change",
    [
        lambda image: None,
        lambda image: image.close(),
        lambda image: image.thumbnail((10, 10)),
        lambda image: image.putpixel((3, 4), (1, 2, 3)),
        lambda image: (image.rotate(3), image.close()),
        lambda image: ImageOps.exif_transpose(image, in_place=True),
    ],
)
def test_what_load_returned_stays_with_the_pixels_that_the_image_had(change):
    def make() -> Any:
        found: list[Any] = []
        for image in (opened(_files()[0]), opened(_files()[0]).crop((0, 0, 31, 30)), opened(_files()[-2])):
            places = image.load()
            change(image)
            found.append(places[3, 4])
            places[3, 4] = 9, 8, 7
            found += [places[3, 4], places[30, 20], image]
        return found

    assert_equal(make)


def test_an_image_becomes_one_of_another_class():
    class Own(Image.Image):
        pass

    class OwnFile(JpegImagePlugin.JpegImageFile):
        pass

    def make() -> Any:
        image, cut, unread = opened(_files()[0]), opened(_files()[0]).crop((1, 2, 20, 21)), opened(_files()[1])
        image.load()
        image.__class__, cut.__class__, unread.__class__ = OwnFile, Own, OwnFile
        return image, cut, unread.convert("RGB"), unread

    assert_equal(make)


def test_a_large_crop_warns_or_is_refused_as_with_pillow(monkeypatch):
    data = _files()[0]
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 64 * 48 - 1)
    assert_equal(lambda: opened(data))
    assert_equal(lambda: opened(data).crop((0, 0, 64, 48)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    assert_equal(lambda: opened(data))


@pytest.mark.parametrize(
    "use", [hash, len, lambda image: image.no_such_attribute, lambda image: image + 1, pickle.Pickler]
)
def test_pythons_own_errors_name_pillows_classes(use):
    assert_equal(lambda: use(opened(_files()[0])))
    assert_equal(lambda: use(opened(_files()[0]).resize((9, 8))))


def test_the_class_of_a_late_image_can_be_pickled():
    for make in (lambda: opened(_files()[0]), lambda: opened(_files()[0]).resize((9, 8))):
        kind = as_sample(lambda make=make: type(make()))
        assert pickle.loads(pickle.dumps(kind)) is kind
