"""Rows decoded from JPEG files equal what Pillow decodes, crops and resizes, bit for bit; the rest is left to it."""

from __future__ import annotations

import io
import itertools

import numpy as np
import pytest
from damaged_files import mutants
from jpeg_files import SAMPLINGS, assert_equals_pillow, picture, saved, with_record
from kit.cuts import assert_in_layout, by_pillow, cut_of, some_box, some_cut
from PIL import Image

from fastload.native import jpeg, library, rows
from fastload.native.rows import Status


@pytest.mark.parametrize("kind", ["-", "o", "p", "m", "n", "r", "g", "go", "gp"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_files_of_all_kinds_samplings_sizes_qualities_and_restart_intervals_equal_pillows(maker, kind, sampling):
    if "g" in kind and sampling == (4, 1):
        return
    name = {(1, 1): "4:4:4", (2, 1): "4:2:2", (2, 2): "4:2:0", (1, 2): "4:4:0", (4, 1): "4:1:1"}[sampling]
    rng = np.random.default_rng(sampling)
    for case, restart in enumerate((0, 0, 0, 0, 1, 1, 3, 5, 7, 50)):
        width, height = (int(side) for side in rng.integers(1, (40, 300, 4, 18, 3)[case % 5], 2))
        quality = int(rng.integers(1, 101)) if case else 100
        data = maker.make(width, height, quality=quality, kind=kind, sampling=sampling, restart=restart)
        assert_equals_pillow(data, rng, times=6)
        assert jpeg.read_size(data).sampling == ("grey" if "g" in kind else name)
        if not set(kind) & set("pmn"):
            assert jpeg.jpeg_of_record(jpeg.record_of_jpeg(data)) == data


@pytest.mark.parametrize(
    ("kind", "sampling", "status", "of_record"),
    [
        ("c", (2, 2), Status.COLORS, Status.COLORS),
        ("a", (2, 2), Status.CODING, Status.CODING),
        ("ap", (2, 2), Status.CODING, Status.CODING),
        ("-", (3, 1), Status.SAMPLING, Status.SAMPLING),
        ("-", (1, 4), Status.SAMPLING, Status.SAMPLING),
        ("p", (1, 1), Status.DONE, Status.CODING),
        ("n", (1, 1), Status.DONE, Status.CODING),
        ("i", (2, 2), Status.DAMAGED, Status.CODING),  # a progression that stops early
    ],
)
def test_uncommon_files_are_left_to_another_decoder_or_have_no_record(maker, kind, sampling, status, of_record):
    data = maker.make(90, 70, kind=kind, sampling=sampling)
    size, found = jpeg.read_size(data), rows.pixels_of_image(data, cut_of((0, 0, 30, 30), (20, 20)))
    assert (size.width, size.height, size.components) == (90, 70, 4 if "c" in kind else 3)
    assert size.status is (Status.DONE if status is Status.DAMAGED else status)
    assert (found if isinstance(found, Status) else Status.DONE) is status
    assert jpeg.record_of_jpeg(data) is of_record


def test_other_depths_and_very_many_pixels_are_left_to_another_decoder():
    data = saved(np.zeros((20, 20, 3), dtype=np.uint8))
    at = data.index(b"\xff\xc0")
    for file, expected in (
        (data[: at + 4] + b"\x0c" + data[at + 5 :], (20, 20, Status.CODING)),
        (data[: at + 5] + b"\xff" * 4 + data[at + 9 :], (65535, 65535, Status.TOO_LARGE)),
    ):
        size = jpeg.read_size(file)
        assert (size.width, size.height, size.status) == expected


@pytest.mark.parametrize("layout", rows.LAYOUTS)
def test_each_layout_has_the_same_pixels_and_a_file_in_colour_is_not_grey(level, layout):
    """With and without a resize; all of an image is decoded without a detour."""
    rng = np.random.default_rng(11)
    assert (rows.pixels_of_image(saved(picture(rng, 60, 70)), rows.whole(60, 70), layout) is Status.COLORS) == (
        layout == "L"
    )
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
        for file in with_record(data):
            assert_in_layout(rows.pixels_of_image(file, cut, layout), layout, data, cut)


def test_what_is_no_jpeg_file_is_left_to_another_decoder():
    for other in (b"", b"\xff", b"\xff\xd8", b"\xff\xd8\xff\xd9", b"\x89PNG\r\n\x1a\n" * 9, bytes(500)):
        assert (*jpeg.read_size(other)[:4], jpeg.read_size(other).status) == (0, 0, 0, "", Status.NOT_JPEG)
        assert rows.pixels_of_image(other, cut_of((0, 0, 1, 1))) is Status.NOT_JPEG


def test_a_damaged_copy_equals_pillows_or_is_left_to_it_without_a_word(capfd):
    rng = np.random.default_rng(7)
    kinds = [{"subsampling": subsampling, "progressive": p} for subsampling in (0, 1, 2) for p in (False, True)]
    kinds += [{"restart_marker_blocks": 2}, {"restart_marker_blocks": 3, "progressive": True}]
    files = [*(saved(picture(rng, 40, 50), **options) for options in kinds), saved(picture(rng, 40, 50)[..., 0])]
    # Profiles and resources, which Pillow reads when it opens a file.
    resource = b"Photoshop 3.0\x008BIM\x04\x04\x03abc\x00\x00\x00\x028BIM\x04\x05"
    segments = b"".join(
        bytes((0xFF, marker, 0, len(body) + 2)) + body
        for marker, body in ((0xE2, b"ICC_PROFILE\x00\x01\x01profile"), (0xED, resource))
    )
    files += [files[0][:2] + segments + files[0][2:]] * 2
    counts = dict.fromkeys(Status, 0)
    for data in itertools.islice(mutants(rng, files), 1500):
        header = jpeg.read_size(data)
        if jpeg.can_wait(data).status is Status.DONE:
            Image.open(io.BytesIO(data)).load()  # so that it must not fail
        if header.status is not Status.DONE or header.width * header.height > 10**6:
            continue
        cut = cut_of(some_box(rng, header.height, header.width))
        found = rows.pixels_of_image(data, cut)
        counts[found if isinstance(found, Status) else Status.DONE] += 1
        if not isinstance(found, Status):
            np.testing.assert_array_equal(found, by_pillow(data, cut))
    assert min(counts[Status.DONE], counts[Status.DAMAGED]) > 100
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("channels", rows.LAYOUTS.values())
def test_nothing_is_written_beside_pixels_that_are_decoded_without_a_detour(channels):
    for width in range(1, 70):
        image = picture(np.random.default_rng(width), 19, width)
        data = saved(image[..., 0] if channels == 1 else image, subsampling=(0, 2)[width % 2] if channels > 1 else -1)
        room = np.full((21, width + 40, channels), 77, dtype=np.uint8)
        inner = room[1:-1, 20:-20]
        target = inner.ctypes.data, room.strides[0], channels, 1, 0, 1, channels
        request = rows.request(target, cut_of((0, 0, 19, width)))
        assert library.jpeg_row(rows.scratch_of_thread().address, data, len(data), request) == 0
        expected = np.asarray(Image.open(io.BytesIO(data))).reshape(19, width, -1)
        np.testing.assert_array_equal(inner[..., :3], expected)
        inner[:] = 77
        assert bool((room == 77).all())


def test_a_pillow_that_decodes_otherwise_is_noticed(monkeypatch):
    assert jpeg.pillow_agrees()
    convert = Image.Image.convert
    monkeypatch.setattr(Image.Image, "convert", lambda self, mode: convert(self, mode).point(lambda level: level ^ 1))
    assert not jpeg.pillow_agrees.__wrapped__()


def test_a_file_waits_if_it_is_complete_up_to_the_end_of_its_image():
    image = picture(np.random.default_rng(0), 40, 50)
    plain, trailer = saved(image), b"\xff\xd9 a trailer \xff\xff\xd9"
    for data, behind in (
        (plain, b""),
        (saved(image, restart_marker_blocks=2), trailer),
        (saved(image, progressive=True), b""),
    ):
        assert jpeg.can_wait(data + behind) == (Status.DONE, len(data), 50, 40, 3)
        assert all(jpeg.can_wait(data[:length]).status is Status.INCOMPLETE for length in range(4, len(data) - 1, 7))
    in_a_segment = saved(image, exif=b"Exif\x00\x00" + b"\xff\xd9" * 300)
    assert jpeg.can_wait(in_a_segment[:-2]).status is Status.INCOMPLETE
