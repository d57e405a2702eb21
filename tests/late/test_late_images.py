"""Whatever is done to late images gives what it gives with Pillow's own: bits, types, ``info``, errors, warnings."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from chains import FIXED, Step, files, outcomes_of
from comparing import assert_equal, opened
from PIL import Image

BEHIND: dict[str, Step] = {
    "open": lambda image: image,
    "load": lambda image: (image.load(), image)[1],
    "crop": lambda image: image.crop((3, 2, 30, 29)),
    "turned": lambda image: image.convert("RGB").resize((31, 40), 2).transpose(2),
}


@pytest.mark.parametrize("name", FIXED)
def test_each_call_gives_what_it_gives_with_pillows_own_images(name):
    step = (name, FIXED[name])
    # RGB, grey, turned by EXIF; PNG in RGB, grey, with a palette, and of one row.
    for first, place in itertools.product(BEHIND.items(), (0, 1, -26, -25, -24, -21, -10)):
        data = files()[place]
        # Closed, an image says so at whatever is done next.
        chain = [(first, True), (step, True), (step, False), (("array", FIXED["array"]), False)]
        assert_equal(lambda data=data, chain=chain: outcomes_of(opened(data), chain))


def test_an_array_is_read_only_and_outlives_its_image():
    def make() -> Any:
        images = [opened(files()[0]) for _ in range(3)]
        arrays = [np.asarray(image.crop((0, 0, 30, 20))) for image in images]
        arrays += [np.asarray(image) for image in images for _ in range(2)]
        del images
        return arrays, [np.asarray(opened(files()[4])) for _ in range(5)]

    assert_equal(make)


@pytest.mark.parametrize("removed", [(), ("ID",)])
def test_where_jpeg_files_are_not_to_be_opened_they_are_not(removed, monkeypatch):
    Image.init()  # no more formats are registered behind it
    monkeypatch.setattr(Image, "OPEN", {name: found for name, found in Image.OPEN.items() if name != "JPEG"})
    monkeypatch.setattr(Image, "ID", [name for name in Image.ID if not removed or name != "JPEG"])
    found = [*Image.ID]
    assert_equal(lambda: opened(files()[0]))
    assert_equal(lambda: Image.new("L", (3, 4)))
    assert found == Image.ID
    assert "JPEG" not in Image.OPEN
