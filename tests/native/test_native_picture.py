"""Upsampling at the edges of small images, on each instruction set: libjpeg treats narrow components apart."""

from __future__ import annotations

import io

import numpy as np
import pytest
from jpeg_files import SAMPLINGS, cut_of
from PIL import Image

from fastload import native
from fastload.native import jpeg


@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 8, 9, 16, 17, 33])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_narrow_and_flat_images_and_each_row_and_column_of_them(maker, sampling, width):
    for height in (1, 2, 3, 8, 9, 17):
        data = maker.make(width, height, quality=60, sampling=sampling, kind="-r"[height % 2])
        whole = np.asarray(Image.open(io.BytesIO(data)))
        boxes = [(0, 0, height, width)]
        boxes += [(0, left, height, across) for left in range(width) for across in (1, 2) if left + across <= width]
        boxes += [(top, 0, down, width) for top in range(height) for down in (1, 2) if top + down <= height]
        for file in (data, jpeg.record_of_jpeg(data)):
            for box in boxes:
                expected = whole[box[0] : box[0] + box[2], box[1] : box[1] + box[3]]
                for level in native.LEVELS:
                    found = jpeg.pixels_of_jpeg(file, cut_of(box), level=level)
                    np.testing.assert_array_equal(found, expected, f"{box} {level}")
