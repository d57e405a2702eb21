"""Records: the pixels of the file that they were made of, and the file again; damage is told, and never a crash."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from damaged_files import mutants
from jpeg_files import SAMPLINGS, each_level, noise, on_each_level, saved, stripes
from kit.cuts import some_cut

from fastload import PackError
from fastload.native import jpeg
from fastload.native.rows import Status, whole


def recorded(data: bytes) -> bytes:
    record = jpeg.record_of_jpeg(data)
    assert isinstance(record, bytes), record
    return record


def test_what_is_no_file_or_no_record_says_so(maker):
    data = maker.make(64, 48)
    assert jpeg.record_of_jpeg(b"") is jpeg.record_of_jpeg(b"no image") is Status.NOT_JPEG
    assert jpeg.record_of_jpeg(data[:-200]) is Status.DAMAGED
    assert jpeg.jpeg_of_record(recorded(data + b"more")) == data, "what lies behind the image is left out"
    for wrong in (b"", data, b"FLC1", bytes(5000)):
        with pytest.raises(PackError, match="its coefficients is damaged; run the same fastload pack"):
            jpeg.jpeg_of_record(wrong)


def test_a_record_that_is_larger_than_was_guessed_is_written_with_more_room(maker, monkeypatch):
    data = maker.make(200, 150, quality=3)
    record = recorded(data)
    write = jpeg._write
    monkeypatch.setattr(jpeg, "_write", lambda name, data, _: write(name, data, 1))
    assert jpeg.record_of_jpeg(data) == record
    assert jpeg.jpeg_of_record(record) == data


def test_every_instruction_set_makes_the_same_record(maker, tmp_path):
    rng = np.random.default_rng(7)
    files = [saved(pixels(90, 300), qtables=[[1] * 64] * 2, subsampling=2) for pixels in (noise, stripes)]
    for sampling, quality in itertools.product(SAMPLINGS, (30, 75, 97)):
        files += [maker.make(w, h, sampling=sampling, quality=quality, restart=3) for w, h in [(600, 19), (33, 71)]]
    damaged = 0
    for data in [*files, *itertools.islice(mutants(rng, files), 2000)]:
        made, *others = [jpeg.record_of_jpeg(data) for _ in each_level()]
        assert others == [made] * len(others)
        damaged += made is Status.DAMAGED
    assert damaged > 100


def outcome(record: bytes) -> str:
    """Read a damaged record in all ways; return what was found."""
    size = jpeg.read_size(record)
    try:
        file = jpeg.jpeg_of_record(record)
    except PackError:
        file = None
    if size.status is not Status.DONE:
        assert file is None
        with pytest.raises(PackError):
            jpeg.header_of_record(record)
        return "no record"
    assert jpeg.header_of_record(record)
    for cut in (whole(size.height, size.width), some_cut(np.random.default_rng(len(record)), size.height, size.width)):
        found = on_each_level(record, cut)
        assert found is Status.DAMAGED or found.shape == (*cut.window[2:], 3)
    if file is None:
        return "damaged"
    # Whatever the coefficients have become, they are the file's too.
    again = jpeg.record_of_jpeg(file)
    assert isinstance(again, Status) or jpeg.read_size(again) == size
    return "an image"


def test_no_cut_off_record_is_read(maker):
    record = recorded(maker.make(90, 60, sampling=(2, 2), restart=3))
    for length in [*range(0, len(record), 7), len(record) - 1]:
        assert outcome(record[:length]) == "no record"
    assert outcome(record + b"\0") == "no record"


def test_sizes_that_lie_are_refused_at_once(maker):
    good = recorded(maker.make(64, 64, kind="g"))
    for field in range(4, 16, 4):
        for number in (0, 1, 2**16, 2**31 - 1, 2**31, 2**32 - 64, 2**32 - 1):
            lying = good[:field] + number.to_bytes(4, "little") + good[field + 4 :]
            assert outcome(lying) == "no record", (field, number)
    sides = good.index(b"\xff\xc0") + 5
    for width, height in [(65500, 1000), (8000, 8000), (65, 64), (64, 72), (1, 1)]:
        lying = good[:sides] + height.to_bytes(2, "big") + width.to_bytes(2, "big") + good[sides + 4 :]
        assert outcome(lying) != "an image"


def test_anything_may_be_wrong_at_once(maker):
    files = [maker.make(60 + 9 * n, 50, sampling=SAMPLINGS[n], quality=60 + 10 * n, restart=2 * n) for n in range(5)]
    damaged = mutants(np.random.default_rng(5), list(map(recorded, files)))
    assert set(map(outcome, itertools.islice(damaged, 1500))) == {"no record", "damaged", "an image"}
