"""Attributes that are read, copied or exchanged as a whole, and classes derived from that of an image."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from comparing import assert_equal, jpeg, opened
from PIL import Image

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
