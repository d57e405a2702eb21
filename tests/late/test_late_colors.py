"""Colors of late images are changed by the native library: the same samples, and still late behind it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from chains import FIXED
from comparing import as_sample, assert_equal, jpeg, opened
from PIL import Image, ImageEnhance
from torchvision.transforms import _functional_pil

from fastload.late import image
from fastload.late.image import LateImage
from fastload.native.adjust import pillow_mixes_alike

pytestmark = pytest.mark.usefixtures("as_in_a_worker")
ENHANCERS = [ImageEnhance.Brightness, ImageEnhance.Color, ImageEnhance.Contrast, ImageEnhance.Sharpness]

LATE = ["to L", "autocontrast", "equalize", "invert", "posterize", "grayscale", "brightness", "sharpness", "color"]
LATE += ["solarize", "table of levels", "grey by torchvision", "scaled", "affine", "affine with a color"]
LATE += [name for name in ("rotated, bicubic", "sheared, bilinear") if pillow_mixes_alike(name.split()[1])]


@pytest.mark.parametrize("name", LATE)
def test_an_image_is_late_behind_a_change_of_its_colors_where_the_library_makes_pillows(name, monkeypatch) -> None:
    data = jpeg(60, 44)
    for kind, agrees in ((LateImage, image._agrees), (Image.Image, lambda *_: False)):
        monkeypatch.setattr(image, "_agrees", agrees)
        assert as_sample(lambda: type(FIXED[name](opened(data).crop((3, 4, 50, 40))))) is kind
        assert_equal(lambda: FIXED[name](opened(data).crop((3, 4, 50, 40))).resize((20, 30)).transpose(1))


def test_arguments_and_classes_that_are_not_plain_are_left_to_pillow() -> None:
    class Own(ImageEnhance.Brightness):
        def enhance(self, factor: float) -> Any:
            return self.degenerate, super().enhance(factor)

    data = jpeg(60, 44)
    for make in (
        lambda found: Own(found).enhance(0.5),
        lambda found: ImageEnhance.Color(found).degenerate,
        lambda found: ImageEnhance.Color(found).nothing,
        lambda found: ImageEnhance.Color(found).enhance("much"),
        lambda found: ImageEnhance.Sharpness(found).enhance(float("nan")),
        lambda found: ImageEnhance.Sharpness(found).enhance(1e39),
        lambda found: ImageEnhance.Sharpness(found.crop((0, 0, 60, 2))).enhance(0.5),
        lambda found: ImageEnhance.Sharpness(found).degenerate,
        lambda found: _changed_between(found, ImageEnhance.Sharpness),
        lambda found: ImageEnhance.Color.__new__(ImageEnhance.Color).enhance(1),
        lambda found: _functional_pil.adjust_hue(found, 0.7),
        lambda found: _functional_pil.adjust_hue(found),
        lambda found: _functional_pil.to_grayscale(found, 2),
        lambda found: _functional_pil.to_grayscale(found, num_output_channels=1),
        lambda found: found.point([0, 1]),
        lambda found: found.point([True, False] * 384),
        lambda found: found.point([*range(-128, 640)]),
        lambda found: found.point([2**31 - 1, -(2**31)] * 384),
        lambda found: found.point([2**31, -(2**31) - 1] * 384),
        lambda found: found.point([2**70] * 768),
        lambda found: found.point([256, "a"] * 384),
        lambda found: found.transform((9, 9), 0.0, (1, 0, 0, 0, 1, 0)),
        lambda found: found.transform((9, 9), 0, (1, 0, 0, 0, 1, 0), 0.0),
        lambda found: found.transform((9, 9), 0, (1, 0, 0, 0, 1, 0), False),
        lambda found: found.transform((9, 0), 0, (1, 0, 0, 0, 1, 0)),
        lambda found: found.transform((32769, 1), 0, (0.001, 0, 0, 0, 1, 0)),
        lambda found: found.transform((1, 40000), 0, (1, 0, 0, 0, 0.001, 0), Image.Resampling.BILINEAR),
        lambda found: found.transform([9, 8], 0, (1, 0, 0, 0, 1, 0)),
        lambda found: found.transform((9, 8), 0, (1, 0, 0, 0, 1, 0), fillcolor=[1, 2, 3]),
        lambda found: _changed_between(found, ImageEnhance.Color),
        lambda found: _changed_between(found, ImageEnhance.Contrast),
        lambda found: found.histogram(found.convert("L")),
    ):
        assert_equal(lambda make=make: make(opened(data)))


def _changed_between(found: Any, kind: Any) -> Any:
    enhancer = kind(found)
    found.paste(7, (0, 0, 30, 30))
    return enhancer.enhance(0.5), enhancer.degenerate, enhancer.image


@pytest.mark.parametrize("kind", ENHANCERS)
def test_what_users_set_of_an_enhancer_is_what_it_mixes_and_copies_have_all_its_attributes(kind: Any) -> None:
    def enhancer() -> Any:
        return kind(opened(jpeg(60, 44)).convert("RGB"))

    def sets(name: str, make: Callable[[Any], Any]) -> Any:
        changed = enhancer()
        setattr(changed, name, make(changed.image))
        return changed.enhance(0.4), changed.degenerate, changed.image

    for name in ("degenerate", "image"):
        for make in (lambda image: image.transpose(0), lambda image: image.rotate(90, expand=False)):
            assert_equal(lambda name=name, make=make: sets(name, make))
    for copied in (copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))):
        assert_equal(lambda copied=copied: vars(copied(enhancer())))
