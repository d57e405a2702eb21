"""What is stored of an image is what the options say."""

from __future__ import annotations

import io

import numpy as np
import PIL.Image
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pack_tools import file, packed, picture

from fastload import ConfigError
from fastload.pack.description import PackOptions
from fastload.pack.encoding import encode, header_of, pixels_of

SIDES = st.integers(1, 5000)


def opened(data: bytes | memoryview) -> PIL.Image.Image:
    return PIL.Image.open(io.BytesIO(data))


@given(SIDES, SIDES, st.none() | SIDES, st.none() | SIDES)
def test_a_size_keeps_within_both_bounds_and_near_its_ratio_and_is_never_enlarged(width, height, most, least):
    new = PackOptions(max_side=most, min_side=least).size_of(width, height)
    assert new[0] <= width
    assert new[1] <= height
    assert most is None or max(new) <= most
    assert least is None or min(new) <= least
    scales = [1.0]
    scales += [] if most is None else [most / max(width, height)]
    scales += [] if least is None else [least / min(width, height)]
    for side, was in zip(new, (width, height), strict=True):
        assert abs(side - min(scales) * was) <= 0.5 + 1e-9 or side == 1
    if min(scales) < 1:
        assert max(new) == most or min(new) == least


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_side": 0}, "max_side must be a number of pixels, at least 1, got 0"),
        ({"min_side": -3}, "min_side .* got -3"),
        ({"quality": 96}, "from 1 to 95.* got 96"),
        ({"raw": True, "quality": 80}, "raw stores pixels.*give one of raw and quality"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        PackOptions(**options)


def test_without_options_a_file_is_stored_as_it_is():
    for data in (file(picture(40, 30)), file(picture(40, 30, mode="RGBA"), "png")):
        assert encode(data, PackOptions()) is data


def test_only_what_is_too_large_is_encoded_again_where_no_quality_is_asked_for():
    options = PackOptions(max_side=50)
    small, large = file(picture(50, 20), "png"), file(picture(100, 60))
    assert encode(small, options) is small
    image = opened(encode(large, options))
    assert (image.format, image.mode, image.size) == ("JPEG", "RGB", (50, 30))
    expected = picture_of(large).resize((50, 30), PIL.Image.Resampling.LANCZOS)
    assert encode(large, options) == file(expected, quality=90)


def picture_of(data: bytes) -> PIL.Image.Image:
    image = opened(data).convert("RGB")
    image.info = {}
    return image


def test_with_a_quality_every_image_becomes_a_jpeg_of_it():
    data = file(picture(64, 48), "png")
    assert encode(data, PackOptions(quality=70)) == file(picture(64, 48), quality=70)
    gray = opened(encode(file(picture(64, 48, mode="L"), "png"), PackOptions(quality=70)))
    assert (gray.format, gray.mode) == ("JPEG", "L")
    assert opened(encode(file(picture(64, 48, mode="CMYK")), PackOptions(quality=70))).mode == "RGB"


def test_a_jpeg_that_is_no_larger_than_it_would_become_is_kept():
    poor = file(picture(64, 48), quality=30)
    assert encode(poor, PackOptions(quality=90)) is poor
    progressive = file(picture(64, 48), quality=30, progressive=True)
    again = encode(progressive, PackOptions(quality=90))
    assert again != progressive, "it takes longer to decode"
    assert "progressive" not in opened(again).info


def test_metadata_are_not_carried_into_a_file_that_is_encoded_again():
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    data = file(picture(80, 40), exif=exif, comment=b"by me", dpi=(300, 300))
    image = opened(encode(data, PackOptions(max_side=40)))
    assert image.size == (40, 20), "it is not turned, as torchvision does not"
    assert not image.getexif()
    assert "comment" not in image.info
    assert image.info.get("dpi") != (300, 300)


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P"])
def test_raw_stores_the_pixels_that_pillow_decodes(mode):
    data = file(picture(37, 23, mode=mode), "png")
    expected = np.asarray(opened(data).convert("RGB"))
    stored = encode(data, PackOptions(raw=True))
    found = pixels_of(stored)
    assert found is not None
    assert np.array_equal(found, expected)
    assert np.array_equal(np.asarray(opened(stored).convert("RGB")), expected), "Pillow opens them as well"
    shrunk = pixels_of(encode(data, PackOptions(raw=True, min_side=10)))
    assert shrunk is not None
    assert shrunk.shape == (10, 16, 3)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"P6\n2 2\n255\n" + bytes(11),
        b"P6\n# by hand\n2 2\n255\n" + bytes(12),
        b"P6\n2 2\n65535\n" + bytes(24),
        b"P6\n0 2\n255\n",
        b"P5\n2 2\n255\n" + bytes(12),
        b"P6\n99999 99999\n255\n" + bytes(12),
    ],
)
def test_what_is_no_ppm_of_ours_or_not_all_of_one_has_no_pixels_here(data):
    assert pixels_of(data) is None


def test_pixels_are_a_view_of_what_they_are_in():
    data = bytearray(header_of(2, 1) + bytes(6))
    pixels = pixels_of(data)
    assert pixels is not None
    data[-1] = 7
    assert pixels.tolist() == [[[0, 0, 0], [0, 0, 7]]]


def test_a_pack_of_smaller_images_is_a_pack_of_smaller_images(source, tmp_path):
    images = packed(source, tmp_path / "pack", PackOptions(max_side=40, quality=80))
    assert len(images) == 13
    assert max(max(images.image(place).size) for place in range(13)) == 40
    assert {opened(images.encoded(place)).format for place in range(13)} == {"JPEG"}
