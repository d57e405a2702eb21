"""Whatever is done to late images gives what it gives with Pillow's own: bits, types, ``info``, errors, warnings."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from chains import FIXED, Step, files, outcomes_of
from comparing import as_sample, assert_equal, jpeg, opened
from PIL import Image, ImageOps


@pytest.mark.parametrize("name", FIXED)
@pytest.mark.parametrize("behind", ["open", "load", "crop", "turned"])
def test_each_call_gives_what_it_gives_with_pillows_own_images(name, behind):
    first: Step = {
        "open": lambda image: image,
        "load": _loaded,
        "crop": lambda image: image.crop((3, 2, 30, 29)),
        "turned": lambda image: image.convert("RGB").resize((31, 40), 2).transpose(2),
    }[behind]
    step = FIXED[name]
    # Closed, an image says so at whatever is done next.
    chain = [((behind, first), True), ((name, step), True), ((name, step), False), (("array", FIXED["array"]), False)]
    for data in (files()[0], files()[1], *files()[-10:-8]):
        assert_equal(lambda data=data: outcomes_of(opened(data), chain))


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
    "the hash": hash,
    "the length": len,
    "a sum": lambda image: image + 1,
}


@pytest.mark.parametrize("name", ODD_ARGUMENTS)
def test_odd_arguments_do_what_they_do_with_pillow(name):
    for data in (files()[0], files()[1]):
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


def test_an_array_is_read_only_and_outlives_its_image():
    def make() -> Any:
        images = [opened(files()[0]) for _ in range(3)]
        arrays = [np.asarray(image.crop((0, 0, 30, 20))) for image in images]
        arrays += [np.asarray(image) for image in images for _ in range(2)]
        del images
        return arrays, [np.asarray(opened(files()[4])) for _ in range(5)]

    assert_equal(make)


def test_only_within_a_sample_is_an_image_a_subclass():
    def make() -> Any:
        image = opened(files()[0])
        derived = image.crop((0, 0, 8, 8))
        assert type(image) is not Image.Image
        assert type(derived) is not Image.Image
        assert isinstance(derived, Image.Image)
        assert pickle.loads(pickle.dumps([type(image), type(derived)])) == [type(image), type(derived)]
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
        for image in (opened(files()[0]), opened(files()[0]).crop((0, 0, 31, 30)), opened(files()[-2])):
            places = image.load()
            change(image)
            found.append(places[3, 4])
            places[3, 4] = 9, 8, 7
            found += [places[3, 4], places[30, 20], image]
        return found

    assert_equal(make)


def test_a_large_crop_warns_or_is_refused_as_with_pillow(monkeypatch):
    data = files()[0]
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 64 * 48 - 1)
    assert_equal(lambda: opened(data))
    assert_equal(lambda: opened(data).crop((0, 0, 64, 48)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    assert_equal(lambda: opened(data))


# -- attributes --------------------------------------------------------------------------------------------------------


FILE = jpeg(icc_profile=b"profile")

FIRST: dict[str, Callable[[], Any]] = {
    "opened": lambda: opened(FILE),
    "loaded": lambda: _loaded(opened(FILE)),
    "derived": lambda: opened(FILE).convert("RGB").crop((1, 2, 30, 40)).resize((20, 21)).transpose(0),
    "grey": lambda: opened(jpeg(mode="L")).crop((1, 2, 30, 40)),
}


def _loaded(image: Image.Image) -> Image.Image:
    image.load()
    return image


class Own(Image.Image):
    """What many libraries do: an image of their own with the attributes of another."""

    @classmethod
    def of(cls, image: Any, new: Any = None) -> Any:
        new = cls() if new is None else new
        new.__dict__.update(image.__dict__)
        return new


@pytest.mark.parametrize("first", FIRST)
def test_a_class_that_is_derived_from_that_of_an_image_is_derived_from_pillows(first):
    def make() -> list[Any]:
        image = FIRST[first]()

        class Mixed:
            made: str

            def __init_subclass__(cls, made: str = "not given") -> None:
                cls.made = made

        class Derived(type(image), Mixed, made="by a test"):  # type: ignore[misc]
            def crop(self, box: Any = None) -> Any:
                return super().crop(box).rotate(90)

        new = Own.of(image, Derived.__new__(Derived))
        kinds = [kind.__name__ for kind in Derived.__mro__]
        return [kinds, Derived.made, isinstance(new, Derived), new.crop((0, 0, 9, 8)), type(new).__name__, image]

    assert_equal(make)


@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        *(("copy", ()), ("load", ()), ("tobytes", ()), ("crop", ((1, 2, 9, 9),)), ("convert", ("L",))),
        *(("resize", ((9, 8), 2)), ("transpose", (1,)), ("__repr__", ()), ("putpalette", (bytes(768),))),
        *(("__eq__", (3,)), ("__reduce_ex__", (2,))),
    ],
)
def test_a_derived_class_may_call_what_it_overrides_by_the_class_of_an_image(name, arguments, first):
    def make() -> list[Any]:
        image = FIRST[first]()
        kind = type(image)
        calls = []

        def override(self: Any, *given: Any) -> Any:
            calls.append(name)
            return getattr(kind, name)(self, *given)

        new = Own.of(image, Image.Image.__new__(type("Derived", (kind,), {name: override})))
        made = getattr(new, name)(*arguments)
        return [calls, made if isinstance(made, (Image.Image, bytes)) else type(made) is tuple, new.tobytes()]

    assert_equal(make)


@pytest.mark.parametrize("removed", [(), ("ID",)])
def test_where_jpeg_files_are_not_to_be_opened_they_are_not(removed, monkeypatch):
    Image.init()  # no more formats are registered behind it
    monkeypatch.setattr(Image, "OPEN", {name: found for name, found in Image.OPEN.items() if name != "JPEG"})
    monkeypatch.setattr(Image, "ID", [name for name in Image.ID if not removed or name != "JPEG"])
    found = [*Image.ID]
    assert_equal(lambda: opened(FILE))
    assert_equal(lambda: Image.new("L", (3, 4)))
    assert found == Image.ID
    assert "JPEG" not in Image.OPEN
