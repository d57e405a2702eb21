"""Resizing equals Pillow's bit for bit, on every instruction set; rows go where and how they should."""

from __future__ import annotations

import io
import math
import subprocess
import sys
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jpeg_files import on_each_level, picture, use_level
from kit.cuts import by_pillow, cut_of
from PIL import Image
from torchvision import transforms

from fastload import native
from fastload.native import png, rows

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def test_a_pillow_that_computes_something_else_is_noticed(monkeypatch):
    resize = Image.Image.resize
    # One filter of five is another one.
    other = {Image.Resampling.LANCZOS: Image.Resampling.HAMMING}
    monkeypatch.setattr(Image.Image, "resize", lambda self, size, way: resize(self, size, other.get(way, way)))
    assert rows.pillow_order.__wrapped__() is None
    monkeypatch.setattr(rows, "pillow_order", lambda: None)
    with pytest.raises(RuntimeError, match="in an unknown order"):
        rows.pixels_of_image(np.zeros((9, 9, 3), dtype=np.uint8), cut_of((0, 0, 9, 9)))


@settings(max_examples=120)
@given(data=st.data())
def test_any_window_of_any_resize_equals_pillows_in_each_layout(data):
    """Parts at the very edges too, sources thinner than a sample, and rows that lie apart or run backwards."""

    def part(height: int, width: int) -> tuple[int, int, int, int]:
        top, left = (data.draw(st.integers(0, side - 1)) for side in (height, width))
        return top, left, data.draw(st.integers(1, height - top)), data.draw(st.integers(1, width - left))

    side = st.integers(1, 40) | st.integers(1, 300)
    height, width = data.draw(side), data.draw(side)
    box = part(height, width)
    size = data.draw(side), data.draw(side)
    corners = [sorted(data.draw(st.tuples(*[st.floats(0, limit, width=32)] * 2))) for limit in box[:1:-1]]
    source = data.draw(st.sampled_from([None, tuple(float(x[end]) for end in range(2) for x in corners)]))
    flips = data.draw(st.tuples(st.booleans(), st.booleans()))
    cut = cut_of(box, size, data.draw(st.sampled_from(rows.FILTERS)), window=part(*size), flips=flips, source=source)
    step = data.draw(st.sampled_from([1, -1, -2]))
    image = np.random.default_rng(height).integers(0, 256, (height * abs(step), width, 3), dtype=np.uint8)[::step]
    if data.draw(st.booleans()):  # overshoots are clipped, in between too
        image = np.where(image > 127, 255, 0).astype(np.uint8)
    expected = by_pillow(image.copy(), cut)
    if data.draw(st.booleans()):
        image = image[..., 0].copy()
        expected = expected[..., :1].repeat(3, 2)
    layout = data.draw(st.sampled_from(list(rows.LAYOUTS)))
    use_level(data.draw(st.sampled_from(native.LEVELS)))
    found = rows.pixels_of_image(image, cut, layout)
    if layout == "RGBX":
        assert bool((found[..., 3] == 255).all())
    in_layout = {"L": expected[..., 0], "BGR": expected[..., ::-1]}.get(layout, expected)
    np.testing.assert_array_equal(found[..., :3] if layout == "RGBX" else found, in_layout)


@pytest.mark.parametrize(
    ("height", "width", "size"),
    [(3, 5000, (7, 20)), (5000, 3, (20, 7)), (1200, 1000, (1, 1)), (1, 1, (300, 500)), (40, 1400, (40, 224))],
)
def test_extreme_shapes_equal_pillows(height, width, size):
    image = picture(np.random.default_rng(0), height, width)
    for interpolation in rows.FILTERS:
        cut = cut_of((0, 0, height, width), size, interpolation)
        np.testing.assert_array_equal(on_each_level(image, cut), by_pillow(image, cut))


@pytest.mark.parametrize(
    ("order", "sides", "size", "is_rows_first"),
    [
        (rows.Order.TALL_ROWS_FIRST, (200, 60), (50, 55), True),
        (rows.Order.COLUMNS_FIRST, (200, 60), (50, 55), False),
        # Pillow 12.2 and 12.3 resize strips in another order, more than a hundred times as tall as wide, be there ever
        # so few rows less.
        *((rows.Order.STRIPS_ROWS_FIRST, (401, 4), size, True) for size in ((20, 3), (400, 2), (400, 9))),
        *((rows.Order.STRIPS_ROWS_FIRST, (400, 4), size, False) for size in ((20, 3), (399, 2), (399, 9))),
    ],
    ids=str,
)
def test_orders_are_what_their_names_say(order, sides, size, is_rows_first):
    """The order is that of the whole result, also where a window of it alone would have another one."""
    image = picture(np.random.default_rng(1), *sides)
    whole = cut_of((0, 0, *sides), size, "bicubic")
    # One axis at a time, which no order changes.
    first = (sides[1], size[0]) if is_rows_first else (size[1], sides[0])
    bicubic = Image.Resampling.BICUBIC
    expected = np.asarray(Image.fromarray(image).resize(first, bicubic).resize(size[::-1], bicubic))
    np.testing.assert_array_equal(rows.pixels_of_image(image, whole, order=order), expected)
    window = whole._replace(window=(3, 1, 12, 1))
    np.testing.assert_array_equal(rows.pixels_of_image(image, window, order=order), expected[3:15, 1:2])


def layouts(num: int, height: int, width: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    wide = torch.zeros(num, 3, height, 2 * width, dtype=dtype)
    return {
        "NCHW": torch.zeros(num, 3, height, width, dtype=dtype),
        "NHWC": torch.zeros(num, height, width, 3, dtype=dtype).permute(0, 3, 1, 2),
        "every other column": wide[..., ::2],
        "backwards in memory": torch.zeros(width, height, 3, num, dtype=dtype).permute(3, 2, 1, 0),
    }


@pytest.mark.parametrize("layout", layouts(1, 1, 1, torch.uint8))
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bfloat16, torch.float16])
def test_rows_of_any_strides_and_dtype_equal_totensor_and_normalize(level, layout, dtype):
    image = picture(np.random.default_rng(3), 90, 70)
    cut = cut_of((0, 0, 90, 70), (53, 37))
    expected = transforms.functional.pil_to_tensor(Image.fromarray(by_pillow(image, cut)))
    table = None
    if dtype != torch.uint8:
        finish = transforms.Normalize(MEAN, STD)
        table = finish(torch.arange(256).expand(3, 1, 256).float().div(255)).to(dtype).view(3, 256)
        expected = finish(expected.float().div(255)).to(dtype)
    batch = layouts(3, 53, 37, dtype)[layout]
    rows.row_of_image(image, cut, table, batch[1])
    assert torch.equal(batch[1], expected)
    batch[1].zero_()
    memory = torch.empty(0, dtype=torch.uint8).set_(batch.untyped_storage())
    assert not memory.any(), "what lies beside it is not touched"
    assert torch.equal(rows.row_of_image(image, cut, table), expected)


@pytest.mark.slow
def test_a_daemon_thread_may_be_in_the_middle_of_a_row_when_python_ends():
    code = (
        "import threading, numpy as np\n"
        "from fastload.native import rows\n"
        "image = np.zeros((3000, 3000, 3), np.uint8)\n"
        "cut = rows.Cut((0, 0, 3000, 3000), (2000, 2000), 'bilinear', (0, 0, 2000, 2000), (False, False))\n"
        "begun = threading.Event()\n"
        "def work():\n"
        "    while True:\n"
        "        rows.pixels_of_image(image, cut)\n"
        "        begun.set()\n"
        "threading.Thread(target=work, daemon=True).start()\n"
        "begun.wait()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture(params=["pixels", "JPEG", "PNG"])
def cut_ten(request):
    """What cuts an image of 10 x 10, in memory or in a file."""
    image = Image.fromarray(np.ones((10, 10, 3), dtype=np.uint8))
    file = io.BytesIO()
    image.save(file, "JPEG" if request.param == "pixels" else request.param)
    data = file.getvalue()
    kinds = {"pixels": np.asarray(image), "JPEG": data, "PNG": png.inflate(data, png.read_size(data))}
    return partial(rows.pixels_of_image, kinds[request.param])


def crooked(num: int) -> torch.Tensor:
    """Return floats that begin between two elements, as a tensor from a buffer may; vector kernels want whole ones."""
    return torch.frombuffer(bytearray(4 * num + 1), dtype=torch.float32, offset=1, count=num)


ROWS: list[tuple[torch.Tensor, torch.Tensor | None, str]] = [
    *((torch.zeros(shape, dtype=torch.uint8), None, r"\[3, 4, 4\]") for shape in ((1, 4, 4), (3, 4), (3, 4, 5))),
    (torch.zeros(3, 4, 4), None, "without a table"),
    (torch.zeros(3, 4, 4, dtype=torch.float64), torch.zeros(3, 256, dtype=torch.float64), "rows are of"),
    (torch.zeros(3, 4, 4), torch.zeros(3, 255), "the table must be"),
    (torch.zeros(3, 4, 4), torch.zeros(256, 3).t(), "the table must be"),
    (torch.zeros(3, 4, 4), torch.zeros(3, 256, dtype=torch.float16), "rows are of the table's dtype"),
    (torch.zeros(3, 4, 1, dtype=torch.uint8).expand(3, 4, 4), None, "without overlaps"),
    (torch.zeros(3, 4, 4, device="meta"), None, "on the CPU"),
    (torch.zeros(3, 4, 4, requires_grad=True), torch.zeros(3, 256), "grad"),
    (crooked(48).view(3, 4, 4), torch.zeros(3, 256), "the row must .*begin at a multiple of its 4 bytes"),
    (torch.zeros(3, 4, 4), crooked(768).view(3, 256), "the table must .*begin at a multiple of its 4 bytes"),
]


@pytest.mark.parametrize(("row", "table", "message"), ROWS)
def test_a_row_that_cannot_be_written_is_refused(row, table, message):
    with pytest.raises(ValueError, match=message):
        rows.row_of_image(np.ones((4, 4, 3), dtype=np.uint8), cut_of((0, 0, 4, 4)), table, row)


def test_pixels_that_do_not_lie_side_by_side_or_are_too_many_are_refused():
    zeros = np.zeros((10, 10, 4), dtype=np.uint8)
    too_many = np.lib.stride_tricks.as_strided(np.zeros(3, np.uint8), (2**32 + 5, 1, 3), (0, 3, 1))
    others = (zeros[0, :, 0], zeros[:, ::2, 0], zeros, zeros[..., :3], zeros[0:3].transpose(1, 2, 0), zeros[..., 0] / 1)
    for pixels, message in ((too_many, "sides up to 16777216"), *((one, "pixels must be") for one in others)):
        with pytest.raises(ValueError, match=message):
            rows.pixels_of_image(pixels, cut_of((0, 0, 4, 1)))


BOXES = [(0, 0, 0, 5), (0, 0, 5, 0), (-1, 0, 5, 5), (0, -1, 5, 5), (6, 0, 5, 5), (0, 6, 5, 5), (0, 0, 11, 5)]
BOXES += [(0, 10, 1, 1), (2**31 - 1, 0, 2**31 - 1, 5)]
CHANGES: list[tuple[dict[str, Any], str]] = [
    *(({"box": box}, "in its image, its window") for box in BOXES),
    *(({"box": box}, "box, window and source are four") for box in ((0, 0, 5), (0, 0, 5, 5, 5), (0, 2**32, 5, 5))),
    *(({"window": box}, "its window in its result") for box in ((0, 0, 5, 4), (1, 0, 4, 4), (-1, 0, 4, 4))),
    ({"window": (0, 0, 4, 0)}, "a window must have sides from 1 to 32768, got 4 x 0"),
    ({"size": (4, 40000)}, "sides of results from 1 to 32768"),
    ({"size": (0, 4)}, "sides of results from 1"),
    ({"source": (0, 0, 10.5, 9)}, r"its source \(x0, y0, x1, y1\) in its box"),
    *(({"source": box}, "in its box") for box in ((-0.5, 0, 9, 9), (5, 0, 4, 9), (0, 0, math.nan, 9))),
    # What struct makes infinity of before Python 3.15, and refuses later.
    ({"source": (0, 0, 1e300, 9)}, "in its box|four numbers each"),
    ({"source": (0, 0, 9)}, "four"),
    *(
        ({"interpolation": name}, rf"must be one of bilinear, .*, tensor bicubic, got '{name}")
        for name in ("nearest", "mitchell")
    ),
]


@pytest.mark.parametrize(("change", "message"), CHANGES)
def test_a_cut_that_is_none_is_refused(cut_ten, change, message):
    """The box is 9 x 10 of the image; where nothing is resized no filter is asked for."""
    with pytest.raises(ValueError, match=message):
        cut_ten(cut_of((1, 0, 9, 10), (4, 4))._replace(**change))
    if "interpolation" in change:
        assert cut_ten(cut_of((1, 0, 9, 10))._replace(**change)).shape == (9, 10, 3)
