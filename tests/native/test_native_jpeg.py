"""Rows decoded from JPEG files equal what Pillow decodes, crops and resizes, bit for bit; the rest is left to it."""

from __future__ import annotations

import io
import mmap

import numpy as np
import pytest
import torch
from damaged_files import mutants
from hypothesis import given, settings
from hypothesis import strategies as st
from jpeg_files import (
    SAMPLINGS,
    by_pillow,
    cut_of,
    picture,
    real_files,
    saved,
    some_box,
    some_cut,
)
from PIL import Image

from fastload import native
from fastload.native import jpeg, rows
from fastload.native.rows import Status

BEST = native.LEVELS[-1]


def assert_equals_pillow(
    data: bytes, rng: np.random.Generator, *, times: int = 1, level: str = BEST, whole: bool = False
) -> None:
    header = jpeg.read_size(data)
    assert (header.width, header.height) == Image.open(io.BytesIO(data)).size
    for _ in range(times):
        cut = some_cut(rng, header.height, header.width)
        if whole:
            cut = cut_of((0, 0, header.height, header.width), flips=cut.flips)
        found = jpeg.pixels_of_jpeg(data, cut, level=level)
        np.testing.assert_array_equal(found, by_pillow(data, cut), f"{header=} {cut=}")


@pytest.mark.parametrize("kind", ["-", "o", "p", "m", "n", "r"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_boxes_of_odd_sizes_and_all_samplings_equal_pillows(maker, kind, sampling):
    rng = np.random.default_rng(sampling)
    for case in range(8):
        width, height = (int(side) for side in rng.integers(1, (40, 300)[case % 2], 2))
        data = maker.make(width, height, quality=int(rng.integers(1, 101)), kind=kind, sampling=sampling)
        assert_equals_pillow(data, rng, times=12)
        assert_equals_pillow(data, rng, whole=True)


@pytest.mark.parametrize("quality", [1, 2, 5, 10, 25, 50, 75, 90, 95, 98, 100])
def test_all_qualities_and_subsamplings_of_pillow(quality):
    rng = np.random.default_rng(quality)
    for subsampling in (0, 1, 2):
        for progressive in (False, True):
            image = picture(rng, int(rng.integers(8, 200)), int(rng.integers(8, 200)))
            data = saved(image, quality=quality, subsampling=subsampling, progressive=progressive)
            assert_equals_pillow(data, rng, times=8)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("restart", [1, 3, 7, 50])
def test_restart_intervals(maker, sampling, restart):
    rng = np.random.default_rng(restart)
    for kind in ("-", "g", "p", "m"):
        data = maker.make(157, 131, kind=kind, sampling=sampling if kind != "g" else (1, 1), restart=restart)
        assert_equals_pillow(data, rng, times=8)


@pytest.mark.parametrize("factors", [0x21, 0x12, 0x22])
def test_grey_files_that_name_a_sampling_are_decoded_as_if_they_did_not(factors):
    rng = np.random.default_rng(2)
    data = bytearray(saved(picture(rng, 93, 111)[..., 0]))
    frame = data.index(b"\xff\xc0")
    assert data[frame + 11] == 0x11
    data[frame + 11] = factors
    assert_equals_pillow(bytes(data), rng, times=25)


def test_a_crop_at_each_column_and_row_of_a_block_has_the_margin_that_its_colours_need(maker):
    for sampling in SAMPLINGS:
        data = maker.make(101, 99, quality=60, sampling=sampling)
        whole = np.asarray(Image.open(io.BytesIO(data)))
        for top in range(40):
            for left in range(0, 40, 3):
                found = jpeg.pixels_of_jpeg(data, cut_of((top, left, 9, 11)))
                np.testing.assert_array_equal(found, whole[top : top + 9, left : left + 11])


def test_comments_profiles_and_bytes_behind_the_end_do_no_harm():
    rng = np.random.default_rng(5)
    data = saved(picture(rng, 60, 80), comment=b"\xff\xd8\xff\xc0" * 50, icc_profile=bytes(70000)) + b"behind" * 99
    assert_equals_pillow(data, rng, times=5)


@pytest.mark.parametrize(
    ("kind", "sampling", "status"),
    [
        ("c", (1, 1), Status.COLORS),
        ("c", (2, 2), Status.COLORS),
        ("a", (2, 2), Status.CODING),
        ("ap", (2, 2), Status.CODING),
        ("-", (3, 1), Status.SAMPLING),
        ("-", (1, 4), Status.SAMPLING),
        ("-", (4, 2), Status.SAMPLING),
    ],
)
def test_uncommon_files_are_left_to_another_decoder(maker, kind, sampling, status):
    data = maker.make(90, 70, kind=kind, sampling=sampling)
    assert jpeg.read_size(data) == (90, 70, 4 if "c" in kind else 3, "p" in kind and "a" not in kind, "", status)
    assert jpeg.pixels_of_jpeg(data, cut_of((0, 0, 30, 30), (20, 20))) is status


def test_a_progression_that_stops_early_is_left_to_another_decoder(maker):
    data = maker.make(90, 70, kind="i", sampling=(2, 2))
    assert jpeg.read_size(data).status is Status.DONE
    assert jpeg.pixels_of_jpeg(data, cut_of((0, 0, 30, 30), (20, 20))) is Status.DAMAGED


@pytest.mark.parametrize("bits", [12, 16])
def test_other_depths_are_left_to_another_decoder(bits):
    data = bytearray(saved(np.zeros((20, 20, 3), dtype=np.uint8)))
    data[data.index(b"\xff\xc0") + 4] = bits
    assert jpeg.read_size(bytes(data)).status is Status.CODING


def test_an_image_of_very_many_pixels_is_left_to_another_decoder():
    data = bytearray(saved(np.zeros((20, 20, 3), dtype=np.uint8)))
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = b"\xff\xff\xff\xff"
    assert jpeg.read_size(bytes(data)) == (65535, 65535, 3, False, "", Status.TOO_LARGE)


@pytest.mark.parametrize("data", [b"", b"\xff", b"\xff\xd8", b"\xff\xd8\xff\xd9", b"\x89PNG\r\n\x1a\n" * 9, bytes(500)])
def test_what_is_no_jpeg_file_is_told(data):
    assert jpeg.read_size(data) == (0, 0, 0, False, "", Status.NOT_JPEG)
    assert jpeg.pixels_of_jpeg(data, cut_of((0, 0, 1, 1))) is Status.NOT_JPEG


@pytest.mark.parametrize("sampling", jpeg.SAMPLINGS)
def test_files_and_their_records_tell_how_many_samples_of_color_they_have(sampling):
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (80, 144, 3), dtype=np.uint8))
    for number, data in enumerate(jpeg.trial_files(noise, sampling)):
        header = jpeg.read_size(data)
        assert (header.sampling, header.progressive, header.status) == (sampling, bool(number), Status.DONE)
        assert jpeg.pixels_of_jpeg(data, cut_of((0, 0, header.height, header.width))).shape[:2] == header[1::-1]
        record = jpeg.record_of_jpeg(data)
        assert record is Status.CODING if number else jpeg.read_size(record).sampling == sampling


@pytest.mark.parametrize("progressive", [False, True])
def test_a_file_that_is_cut_anywhere_is_left_to_another_decoder(progressive):
    data = saved(picture(np.random.default_rng(6), 64, 64), progressive=progressive)
    for length in range(len(data) - 1):
        # The box's rows may well be there: but Pillow, which decodes all, would raise.
        found = jpeg.pixels_of_jpeg(data[:length], cut_of((0, 0, 8, 8)))
        assert found is Status.NOT_JPEG or found is Status.DAMAGED


def test_a_damaged_copy_equals_pillows_or_is_left_to_it_without_a_word(capfd):
    rng = np.random.default_rng(7)
    files = [
        saved(picture(rng, 40, 50), subsampling=subsampling, progressive=progressive)
        for subsampling in (0, 1, 2)
        for progressive in (False, True)
    ] + [saved(picture(rng, 40, 50)[..., 0])]
    counts = dict.fromkeys(Status, 0)
    for data, _ in zip(mutants(rng, files), range(2500), strict=False):
        header = jpeg.read_size(data)
        if header.status is not Status.DONE or header.width * header.height > 10**6:
            continue
        cut = cut_of(some_box(rng, header.height, header.width))
        found = jpeg.pixels_of_jpeg(data, cut)
        if isinstance(found, Status):
            counts[found] += 1
        else:
            counts[Status.DONE] += 1
            np.testing.assert_array_equal(found, by_pillow(data, cut))
    assert counts[Status.DONE] > 200
    assert counts[Status.DAMAGED] > 200
    assert capfd.readouterr() == ("", "")


def test_tables_of_one_file_do_not_reach_the_next():
    """A file without its quantisation or Huffman tables must not find those of the file before."""
    whole = saved(picture(np.random.default_rng(8), 40, 40), optimize=True)

    def without(marker: bytes) -> bytes:
        data = whole
        while (at := data.find(marker)) >= 0:
            data = data[:at] + data[at + 2 + int.from_bytes(data[at + 2 : at + 4], "big") :]
        return data

    for marker in (b"\xff\xdb", b"\xff\xc4"):
        stripped = without(marker)
        assert len(stripped) < len(whole)
        before, after = (jpeg.pixels_of_jpeg(data, cut_of((0, 0, 40, 40))) for data in (whole, stripped))
        assert not isinstance(before, Status)
        assert isinstance(after, Status) or not np.array_equal(after, before)


@pytest.mark.parametrize(
    "wrap",
    [
        bytes,
        bytearray,
        memoryview,
        lambda data: np.frombuffer(data, dtype=np.uint8),
        lambda data: torch.frombuffer(bytearray(data), dtype=torch.uint8),
        lambda data: (mapped := mmap.mmap(-1, len(data))).write(data) and mapped,
    ],
)
def test_a_file_may_come_in_any_buffer(wrap):
    data = saved(picture(np.random.default_rng(9), 40, 50))
    cut = cut_of((1, 2, 30, 20), (10, 10))
    assert jpeg.read_size(wrap(data))[:2] == (50, 40)
    np.testing.assert_array_equal(jpeg.pixels_of_jpeg(wrap(data), cut), by_pillow(data, cut))


@pytest.mark.parametrize(
    "data",
    [
        torch.zeros(4),
        torch.zeros(4, 4, dtype=torch.uint8),
        torch.zeros(9, dtype=torch.uint8)[::2],
        np.zeros((4, 6), dtype=np.uint8)[:, ::2],
    ],
)
def test_a_file_in_pieces_is_refused(data):
    with pytest.raises(ValueError, match="a file"):
        jpeg.read_size(data)


@pytest.mark.parametrize("box", [(0, 0, 41, 5), (0, 0, 5, 51), (40, 0, 1, 1), (0, 50, 1, 1), (0, 0, 0, 1)])
def test_a_box_outside_of_the_image_is_refused(box):
    data = saved(picture(np.random.default_rng(9), 40, 50))
    with pytest.raises(ValueError, match=r"in its image of 40 x 50"):
        jpeg.pixels_of_jpeg(data, cut_of(box, (10, 10)))


def test_real_files_equal_pillows_and_are_decoded_here():
    """Of the files of FASTLOAD_BENCH_DATA, those that are left to Pillow are few."""
    rng = np.random.default_rng(10)
    paths = real_files(limit=300)
    left = []
    for path in paths:
        data = path.read_bytes()
        image = Image.open(io.BytesIO(data))
        cut = some_cut(rng, image.height, image.width)
        if rng.random() < 0.3:  # what most pipelines do
            cut = cut_of((0, 0, image.height, image.width), (256, 300), window=(16, 38, 224, 224))
        found = jpeg.pixels_of_jpeg(data, cut)
        if isinstance(found, Status):
            left.append((path, found))
        else:
            np.testing.assert_array_equal(found, by_pillow(data, cut), f"{path} {cut}")
    assert len(left) <= 0.05 * len(paths), left


@pytest.mark.parametrize("level", native.LEVELS)
@pytest.mark.parametrize("layout", rows.LAYOUTS)
def test_each_layout_has_the_same_pixels(level, layout):
    """With and without a resize; all of an image is decoded without a detour."""
    rng = np.random.default_rng(11)
    for turn in range(60):
        image = picture(rng, int(rng.integers(1, 150)), int(rng.integers(1, 150)))
        grey = layout == "L" or turn % 4 == 0
        options = {"progressive": turn % 3 == 0, "subsampling": -1 if grey else turn % 5 % 3}
        data = saved(image[..., 0] if grey else image, **options)
        height, width = image.shape[:2]
        cut = some_cut(rng, height, width)
        if turn % 2:
            window = some_box(rng, height, width)
            cut = cut_of((0, 0, height, width), flips=cut.flips, window=None if turn % 5 else window)
        found = jpeg.pixels_of_jpeg(data, cut, layout, level=level)
        expected = by_pillow(data, cut, "L" if layout == "L" else "RGB")
        if layout == "RGBX":
            assert bool((found[..., 3] == 255).all())
            found = found[..., :3]
        np.testing.assert_array_equal(found, expected[..., ::-1] if layout == "BGR" else expected, f"{cut}")


@pytest.mark.parametrize("channels", rows.LAYOUTS.values())
def test_nothing_is_written_beside_pixels_that_are_decoded_without_a_detour(channels):
    for width in range(1, 70):
        image = picture(np.random.default_rng(width), 19, width)
        data = saved(image[..., 0] if channels == 1 else image, subsampling=(0, 2)[width % 2] if channels > 1 else -1)
        room = np.full((21, width + 40, channels), 77, dtype=np.uint8)
        inner = room[1:-1, 20:-20]
        target = inner.ctypes.data, room.strides[0], channels, 1, 0, 1, channels
        request = rows.request(target, cut_of((0, 0, 19, width)), None, BEST)
        assert jpeg._jpeg_row()(rows.scratch_of_thread().address, data, len(data), request) == 0
        expected = np.asarray(Image.open(io.BytesIO(data))).reshape(19, width, -1)
        np.testing.assert_array_equal(inner[..., :3], expected)
        inner[:] = 77
        assert bool((room == 77).all())


def test_a_file_in_colour_does_not_become_grey():
    data = saved(picture(np.random.default_rng(12), 60, 70))
    assert jpeg.pixels_of_jpeg(data, cut_of((0, 0, 60, 70)), "L") is Status.COLORS
    with pytest.raises(ValueError, match="layout must be one of RGB, BGR, RGBX, L, got 'CMYK'"):
        jpeg.pixels_of_jpeg(data, cut_of((0, 0, 60, 70)), "CMYK")


def test_a_row_is_what_a_table_says_of_the_pixels():
    rng = np.random.default_rng(13)
    table = torch.arange(256) * torch.tensor([1.0, 2.0, 3.0])[:, None]
    for _ in range(20):
        data = saved(picture(rng, int(rng.integers(1, 150)), int(rng.integers(1, 150))))
        cut = some_cut(rng, *jpeg.read_size(data)[1::-1])
        expected = by_pillow(data, cut).transpose(2, 0, 1) * np.array([1, 2, 3], dtype=np.float32).reshape(3, 1, 1)
        out = torch.zeros(expected.shape)
        assert jpeg.row_of_jpeg(data, cut, table, out) is out
        for found in (out, jpeg.row_of_jpeg(data, cut, table)):
            assert found.is_contiguous()
            np.testing.assert_array_equal(found.numpy(), expected)
    assert jpeg.row_of_jpeg(b"no file", cut, table) is Status.NOT_JPEG


def test_what_lies_beside_the_window_is_not_decoded():
    """Damage at the end of a scan is not met by a window that ends above it; Pillow decodes on, and only warns."""
    data = saved(picture(np.random.default_rng(14), 400, 64), subsampling=0, quality=95)
    at = data.rindex(b"\xff\xd9") - 40
    broken = data[:at] + b"\xff\x00" * 10 + data[at + 20 :]  # no code is of so many ones
    whole = cut_of((0, 0, 400, 64), (100, 16))
    assert jpeg.pixels_of_jpeg(broken, whole) is Status.DAMAGED
    window = whole._replace(window=(10, 0, 60, 16))
    np.testing.assert_array_equal(jpeg.pixels_of_jpeg(broken, window), by_pillow(broken, window))


def test_a_pillow_that_decodes_otherwise_is_noticed(monkeypatch):
    assert jpeg.pillow_agrees()
    convert = Image.Image.convert
    monkeypatch.setattr(Image.Image, "convert", lambda self, mode: convert(self, mode).point(lambda level: level ^ 1))
    assert not jpeg.pillow_agrees.__wrapped__()


def verdict_of(data, cuts):
    """Return the last status of a file that is read in pieces, its size, and how many bytes belong to its image."""
    waiting, begin, start = jpeg.Waiting(), 0, 0
    for end in [*cuts, len(data)]:
        begin = start if waiting.has_header else 0
        status, start = waiting.look_at(data[begin:end]), end
        if status is not Status.INCOMPLETE:
            end_of_image = begin + waiting.end if status is Status.DONE else 0
            return status, waiting.width, waiting.height, waiting.components, end_of_image
    return Status.INCOMPLETE, 0, 0, 0, 0


WAITING_FILES = [
    saved(picture(np.random.default_rng(0), 40, 50)),
    saved(picture(np.random.default_rng(0), 40, 50), restart_marker_blocks=2) + b"\xff\xd9 a trailer \xff\xff\xd9",
    saved(picture(np.random.default_rng(0), 40, 50), progressive=True),
    saved(picture(np.random.default_rng(0), 40, 50)).replace(b"\xff\x00", b"\xff\x01", 1),
    saved(picture(np.random.default_rng(0), 40, 50), exif=b"Exif\x00\x00" + b"\xff\xd9" * 300)[:-2],
]


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(WAITING_FILES), st.lists(st.floats(0, 1), max_size=6))
def test_a_file_may_wait_or_not_in_whatever_pieces_it_is_read(data, places):
    cuts = sorted(4 + int(place * (len(data) - 4)) for place in places)  # fewer bytes are no JPEG file
    assert verdict_of(data, cuts) == verdict_of(data, [])


def test_a_file_waits_if_it_is_complete_up_to_the_end_of_its_image():
    found = [verdict_of(data, []) for data in WAITING_FILES]
    end_of_second = len(WAITING_FILES[1]) - len(b"\xff\xd9 a trailer \xff\xff\xd9")
    assert found[0] == (Status.DONE, 50, 40, 3, len(WAITING_FILES[0]))
    assert found[1] == (Status.DONE, 50, 40, 3, end_of_second)
    assert found[2] == (Status.DONE, 50, 40, 3, len(WAITING_FILES[2]))
    assert [status for status, *_ in found[3:]] == [Status.DAMAGED, Status.INCOMPLETE]


# -- small images ------------------------------------------------------------------------------------------------------


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
