"""Resizing equals Pillow's bit for bit, on every instruction set; rows go where and how they should."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from jpeg_files import RESAMPLING, picture, row_target, some_box
from PIL import Image
from torchvision import transforms

from fastload import native
from fastload.native import rows

LEVELS = native.LEVELS
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.fixture(params=LEVELS)
def level(request):
    if LEVELS.index(native.processor_level()) < LEVELS.index(request.param):
        pytest.skip(f"this processor has no {request.param}")
    return request.param


def test_the_installed_pillow_resizes_in_an_order_that_is_known():
    assert rows.pillow_order() in set(rows.Order)


def test_a_pillow_that_computes_something_else_is_noticed(monkeypatch):
    resize = Image.Image.resize
    monkeypatch.setattr(Image.Image, "resize", lambda self, size, _: resize(self, size, Image.Resampling.HAMMING))
    assert rows.pillow_order.__wrapped__() is None
    monkeypatch.setattr(rows, "pillow_order", lambda: None)
    with pytest.raises(RuntimeError, match="in a way of its own"):
        rows.Target(torch.zeros(1, 3, 2, 2, dtype=torch.uint8))


@pytest.mark.parametrize("interpolation", rows.FILTERS)
def test_a_resized_box_equals_pillows(level, interpolation):
    rng = np.random.default_rng(LEVELS.index(level))
    for case in range(200):
        height, width = (int(side) for side in rng.integers(1, 300, 2))
        image = picture(rng, height, width)
        if case % 3 == 0:  # overshoots are clipped, in between too
            image = np.where(image > 127, 255, 0).astype(np.uint8)
        box = top, left, h, w = some_box(rng, height, width)
        size = tuple(int(side) for side in rng.integers(1, 200, 2))
        size = (h if case % 5 == 0 else size[0], w if case % 7 == 0 else size[1])
        flip = bool(rng.integers(2))
        found, target = row_target(size, interpolation)
        rows.resize_row(image, box, target, 0, flip=flip, level=level)
        cut = Image.fromarray(image).crop((left, top, left + w, top + h))
        expected = np.asarray(cut.resize(size[::-1], RESAMPLING[interpolation]))
        np.testing.assert_array_equal(found, expected[:, ::-1] if flip else expected, f"{box=} {size=} {flip=}")


@pytest.mark.parametrize(
    ("height", "width", "size"),
    [(3, 5000, (7, 20)), (5000, 3, (20, 7)), (2500, 2000, (1, 1)), (1, 1, (300, 500)), (40, 1400, (40, 224))],
)
def test_extreme_shapes_equal_pillows(level, height, width, size):
    image = picture(np.random.default_rng(0), height, width)
    for interpolation in rows.FILTERS:
        found, target = row_target(size, interpolation)
        rows.resize_row(image, (0, 0, height, width), target, 0, level=level)
        expected = np.asarray(Image.fromarray(image).resize(size[::-1], RESAMPLING[interpolation]))
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("order", rows.Order)
def test_both_orders_are_what_their_names_say(order):
    image = picture(np.random.default_rng(1), 200, 60)
    batch = torch.zeros(1, 50, 55, 3, dtype=torch.uint8)
    rows.resize_row(image, (0, 0, 200, 60), rows.Target(batch.permute(0, 3, 1, 2), None, "bicubic", order), 0)
    first, second = ((60, 50), (55, 50)) if order is rows.Order.TALL_ROWS_FIRST else ((55, 200), (55, 50))
    # One axis at a time, which no order changes.
    expected = Image.fromarray(image).resize(first, RESAMPLING["bicubic"]).resize(second, RESAMPLING["bicubic"])
    np.testing.assert_array_equal(batch[0].numpy(), np.asarray(expected))


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
    rng = np.random.default_rng(3)
    image = picture(rng, 90, 70)
    table = None
    expected = transforms.functional.pil_to_tensor(Image.fromarray(image).resize((37, 53), RESAMPLING["bilinear"]))
    if dtype != torch.uint8:
        finish = transforms.Normalize(MEAN, STD)
        table = rows.level_table(lambda levels: finish(levels.to(torch.float32).div(255)).to(dtype))
        pil = Image.fromarray(image).resize((37, 53), RESAMPLING["bilinear"])
        expected = finish(transforms.ToTensor()(pil)).to(dtype)
    batch = layouts(3, 53, 37, dtype)[layout]
    rows.resize_row(image, (0, 0, 90, 70), rows.Target(batch, table), 1, level=level)
    assert torch.equal(batch[1], expected)
    assert not batch[0].any()
    assert not batch[2].any()


def test_what_lies_beside_a_row_is_not_touched(level):
    rng = np.random.default_rng(4)
    for _ in range(60):
        height, width = (int(side) for side in rng.integers(1, 80, 2))
        store = torch.full((height + 2, width + 2, 3), 77, dtype=torch.uint8)
        inner = store[1:-1, 1:-1].permute(2, 0, 1)[None]
        rows.resize_row(picture(rng, 50, 60), (2, 3, 40, 50), rows.Target(inner), 0, level=level)
        found = store.clone()
        found[1:-1, 1:-1] = 77
        assert bool((found == 77).all())


def test_threads_write_rows_of_one_batch_side_by_side():
    rng = np.random.default_rng(5)
    images = [picture(rng, 120, 110) for _ in range(24)]
    alone, together = (torch.zeros(24, 3, 64, 64, dtype=torch.uint8) for _ in range(2))
    for row, image in enumerate(images):
        rows.resize_row(image, (5, 6, 100, 90), rows.Target(alone), row)
    target = rows.Target(together)

    def work(begin: int) -> None:
        for row in range(begin, 24, 4):
            rows.resize_row(images[row], (5, 6, 100, 90), target, row)

    threads = [threading.Thread(target=work, args=(begin,)) for begin in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(alone, together)
    assert bool(alone.any())


@pytest.mark.parametrize(
    ("batch", "table", "message"),
    [
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), None, r"\[N, 3, h, w\]"),
        (torch.zeros(2, 3, 4, dtype=torch.uint8), None, r"\[N, 3, h, w\]"),
        (torch.zeros(2, 3, 0, 4, dtype=torch.uint8), None, r"\[N, 3, h, w\]"),
        (torch.zeros(2, 3, 4, 4), None, "without a table"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.float64), None, "rows are of"),
        (torch.zeros(2, 3, 4, 4), torch.zeros(3, 255), "the table must be"),
        (torch.zeros(2, 3, 4, 4), torch.zeros(3, 256, dtype=torch.float16), "the table must be"),
        (torch.zeros(2, 3, 4, 1, dtype=torch.uint8).expand(2, 3, 4, 4), None, "stride 0"),
        (torch.zeros(2, 3, 4, 4, device="meta"), None, "on the CPU"),
        (torch.zeros(2, 3, 4, 4, requires_grad=True), torch.zeros(3, 256), "grad"),
    ],
)
def test_a_batch_that_cannot_be_written_is_refused(batch, table, message):
    with pytest.raises(ValueError, match=message):
        rows.Target(batch, table)


@pytest.mark.parametrize("name", ["batch", "table"])
def test_memory_between_two_elements_is_refused(name):
    """A tensor from a buffer may begin anywhere; vector kernels want whole elements."""
    buffer = bytearray(4 * 3 * 256 + 1)
    crooked = torch.frombuffer(buffer, dtype=torch.float32, offset=1, count=3 * 256)
    straight = torch.zeros(3 * 256)
    batch, table = (crooked, straight) if name == "batch" else (straight, crooked)
    with pytest.raises(ValueError, match=rf"the {name} must begin at a multiple of its 4 bytes"):
        rows.Target(batch.view(1, 3, 16, 16), table.view(3, 256))


def test_an_image_of_longer_sides_than_are_counted_is_refused():
    pixels = np.lib.stride_tricks.as_strided(np.zeros(3, dtype=np.uint8), (2**32 + 5, 1, 3), (0, 3, 1))
    _, target = row_target((4, 4))
    with pytest.raises(ValueError, match="sides up to 16777216"):
        rows.resize_row(pixels, (0, 0, 4, 1), target, 0)


def test_a_daemon_thread_may_be_in_the_middle_of_a_row_when_python_ends():
    code = (
        "import threading, numpy as np, torch\n"
        "from fastload.native import rows\n"
        "image = np.zeros((3000, 3000, 3), np.uint8)\n"
        "target = rows.Target(torch.zeros(1, 3, 2000, 2000, dtype=torch.uint8))\n"
        "begun = threading.Event()\n"
        "def work():\n"
        "    while True:\n"
        "        rows.resize_row(image, (0, 0, 3000, 3000), target, 0)\n"
        "        begun.set()\n"
        "threading.Thread(target=work, daemon=True).start()\n"
        "begun.wait()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_unknown_filter_is_refused():
    with pytest.raises(ValueError, match="interpolation must be one of"):
        rows.Target(torch.zeros(1, 3, 2, 2, dtype=torch.uint8), None, "lanczos")


@pytest.mark.parametrize(
    "box",
    [
        (0, 0, 0, 5),
        (0, 0, 5, 0),
        (-1, 0, 5, 5),
        (0, -1, 5, 5),
        (6, 0, 5, 5),
        (0, 6, 5, 5),
        (0, 0, 11, 5),
        (2**31 - 1, 0, 2**31 - 1, 5),
        (0, 2**32, 5, 5),
        (0, 0, 5),
        (0, 0, 5, 5, 5),
    ],
)
def test_a_box_that_is_not_in_the_image_is_refused(box):
    found, target = row_target((4, 4))
    with pytest.raises(ValueError, match="box"):
        rows.resize_row(np.ones((10, 10, 3), dtype=np.uint8), box, target, 0)
    assert not found.any()


@pytest.mark.parametrize("row", [-1, 1])
def test_a_row_that_the_batch_has_not_is_refused(row):
    _, target = row_target((4, 4))
    with pytest.raises(IndexError, match="the batch has 1 rows"):
        rows.resize_row(np.ones((10, 10, 3), dtype=np.uint8), (0, 0, 5, 5), target, row)


@pytest.mark.parametrize(
    "pixels",
    [
        np.zeros((10, 10), dtype=np.uint8),
        np.zeros((10, 10, 4), dtype=np.uint8),
        np.zeros((10, 10, 3), dtype=np.float32),
        np.zeros((3, 10, 10), dtype=np.uint8).transpose(1, 2, 0),
        np.zeros((10, 20, 3), dtype=np.uint8)[:, ::2],
    ],
)
def test_pixels_that_do_not_lie_side_by_side_are_refused(pixels):
    _, target = row_target((4, 4))
    with pytest.raises(ValueError, match="pixels must be"):
        rows.resize_row(pixels, (0, 0, 5, 5), target, 0)


def test_rows_of_the_image_may_lie_apart_or_run_backwards():
    image = picture(np.random.default_rng(6), 60, 50)
    found, target = row_target((20, 30))
    rows.resize_row(image[::-2], (3, 4, 25, 40), target, 0)
    expected, target = row_target((20, 30))
    rows.resize_row(np.ascontiguousarray(image[::-2]), (3, 4, 25, 40), target, 0)
    np.testing.assert_array_equal(found, expected)


def test_a_table_of_levels_must_keep_the_shape():
    with pytest.raises(ValueError, match="levels must become"):
        rows.level_table(lambda levels: levels.float().mean(dim=0, keepdim=True))
