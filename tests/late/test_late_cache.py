"""With a cache images are what they are without, at every use of a file; and what can be kept of it is kept."""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from comparing import as_sample, counts_of, jpeg, outcome
from kit.stores import store_in_memory
from PIL import Image, ImageFile
from test_late_files import kinds, used

from fastload.cache import store
from fastload.cache.records import CachedRecord, Records, take_not_kept
from fastload.cache.store import key_of_bytes
from fastload.late import LateSamples


@pytest.fixture
def cache() -> Iterator[Records]:
    if not hasattr(os, "memfd_create"):
        pytest.skip("the system has no memory files")
    made = Records(store_in_memory(32 << 20))
    yield made
    vars(made).clear()  # pytest holds it for longer than its memory may stay


@pytest.fixture
def files_settle_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SETTLED_NS", 0)


def written(path: Path, data: bytes) -> Path:
    """Write a file, and wait until another change would have another time."""
    path.write_bytes(data)
    while time.time_ns() - path.stat().st_ctime_ns < 50_000_000:
        time.sleep(0.01)
    return path


USUAL = {"plain", "grey", "4:4:4", "4:2:2", "restarts", "optimized", "profile", "trailer"}


@pytest.mark.parametrize("name", kinds())
def test_a_file_of_any_kind_gives_what_pillow_gives_also_at_each_use_with_a_cache(name, cache):
    data = kinds()[name]
    plain = outcome(lambda: used(data), late=False)
    for its_cache in (None, cache, cache):
        assert outcome(lambda: used(data), late=True, cache=its_cache) == plain
    assert name not in USUAL or isinstance(cache.find(key_of_bytes(data)), CachedRecord)


def test_a_file_without_a_record_is_known_as_such_and_not_tried_again(cache, monkeypatch):
    data = jpeg(progressive=True)
    as_sample(lambda: Image.open(io.BytesIO(data)).crop((0, 0, 9, 9)), cache)
    assert cache.find(key_of_bytes(data)) is False
    monkeypatch.setattr("fastload.native.jpeg.record_of_jpeg", None)
    as_sample(lambda: Image.open(io.BytesIO(data)).crop((0, 0, 9, 9)), cache)


@pytest.mark.usefixtures("files_settle_at_once")
def test_the_scan_of_a_kept_file_is_not_read_again(cache, tmp_path, monkeypatch):
    path = written(tmp_path / "a.jpg", jpeg(400, 300))

    def sample() -> Any:
        with Image.open(path) as image:
            return image.convert("RGB").crop((5, 5, 99, 99)).resize((20, 20), 2)

    take_not_kept()  # of other tests
    with LateSamples(cache) as late:
        first = sample()
        late.materialize(first)
        monkeypatch.setattr("fastload.late.source._read_scans", None)
        second = sample()
        late.materialize(second)
    assert first == second
    assert [how.split(", ", 2)[2] for how in late.take_counts()] == ["kept in the cache", "from the cache"]
    assert cache.store.contents().entries == 1


@pytest.mark.usefixtures("files_settle_at_once")
def test_a_file_that_changes_between_uses_is_read_anew(cache, tmp_path):
    path = tmp_path / "a.jpg"
    for seed in range(2):
        expected = Image.open(written(path, jpeg(seed=seed))).crop((3, 3, 30, 30)).copy()
        for _ in range(2):
            found = as_sample(lambda: Image.open(path).crop((3, 3, 30, 30)), cache)
            assert found.tobytes() == expected.tobytes()
    assert cache.store.contents().entries == 2


def test_a_file_that_was_written_just_now_is_not_kept(cache, tmp_path):
    path = tmp_path / "a.jpg"
    for seed in range(3):
        path.write_bytes(jpeg(seed=seed))
        found = as_sample(lambda: Image.open(path).crop((3, 3, 30, 30)), cache)
        assert found.tobytes() == Image.open(path).crop((3, 3, 30, 30)).tobytes()
    assert cache.store.contents().entries == 0


@pytest.mark.usefixtures("files_settle_at_once")
def test_a_file_that_changes_while_it_is_read_is_not_kept(cache, tmp_path, monkeypatch):
    path = written(tmp_path / "a.jpg", jpeg())
    source = sys.modules["fastload.late.source"]
    read = source._read_scans

    def changing(image: Any) -> Any:
        found = read(image)
        os.utime(path, ns=(1, 1))
        return found

    monkeypatch.setattr(source, "_read_scans", changing)
    as_sample(lambda: Image.open(path).crop((3, 3, 30, 30)), cache)
    assert cache.store.contents().entries == 0


@pytest.mark.usefixtures("files_settle_at_once")
def test_the_users_file_is_left_where_pillow_leaves_it(cache, tmp_path):
    path = written(tmp_path / "a.jpg", jpeg(700, 900, quality=98) + b"behind" * 30_000)

    def left() -> int:
        with path.open("rb") as file:
            Image.open(file).load()
            return file.tell()

    assert as_sample(left, cache) == as_sample(left, cache) == left()
    assert cache.store.contents().entries == 1


@pytest.mark.usefixtures("files_settle_at_once")
def test_with_other_blocks_than_pillows_the_file_is_read(cache, tmp_path, monkeypatch):
    path = written(tmp_path / "a.jpg", jpeg(300, 300))
    monkeypatch.setattr(ImageFile.ImageFile, "decodermaxblock", 1000, raising=False)

    def left() -> int:
        with path.open("rb") as file:
            image = Image.open(file)
            image.decodermaxblock = 1000
            image.load()
            return file.tell()

    assert as_sample(left, cache) == as_sample(left, cache) == left()
    assert cache.store.contents().entries == 0


def test_a_full_cache_keeps_no_more_and_images_stay_the_same():
    if not hasattr(os, "memfd_create"):
        pytest.skip("the system has no memory files")
    cache = Records(store_in_memory(1 << 20))
    files = [jpeg(300, 200, seed=seed) for seed in range(80)]
    for _ in range(2):
        for data in files:
            found = as_sample(lambda data=data: Image.open(io.BytesIO(data)).crop((9, 9, 99, 99)), cache)
            assert found.tobytes() == Image.open(io.BytesIO(data)).crop((9, 9, 99, 99)).tobytes()
    contents = cache.store.contents()
    assert contents.is_full
    assert 0 < contents.entries < len(files)
    take_not_kept()  # of this thread until now
    found = counts_of(lambda: Image.open(io.BytesIO(files[-1])).crop((9, 9, 99, 99)), cache)
    assert found == {"late, in part": 1, "not kept: no room": 1}


@pytest.mark.usefixtures("files_settle_at_once")
def test_what_a_readers_buffer_has_of_an_older_file_is_not_kept(cache, tmp_path):
    path = written(tmp_path / "a.jpg", jpeg(300, 200, seed=0))

    def sample() -> Any:
        image = Image.open(path)  # the beginning of the file is in its buffer now
        path.write_bytes(jpeg(300, 200, seed=1))
        written(path, jpeg(300, 200, seed=1))
        return image.crop((3, 3, 30, 30))

    as_sample(sample, cache)
    assert cache.store.contents().entries == 0


@pytest.mark.usefixtures("files_settle_at_once")
@pytest.mark.parametrize("error", [MemoryError, OSError])
def test_where_a_record_cannot_be_written_the_sample_does_without(cache, tmp_path, monkeypatch, error):
    path = written(tmp_path / "a.jpg", jpeg(300, 200))

    def fail(*given: Any) -> None:
        raise error

    monkeypatch.setattr(cache.store, "keep", fail)
    found = as_sample(lambda: Image.open(path).crop((3, 3, 30, 30)), cache)
    assert found.tobytes() == Image.open(path).crop((3, 3, 30, 30)).tobytes()
