"""With a cache images are what they are without, at every use of a file; and what can be kept of it is kept."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from comparing import as_sample, counts_of, jpeg, outcome
from kit.stores import store_in_memory, written
from PIL import Image, ImageFile
from test_late_files import kinds, used

from fastload.cache import store
from fastload.cache.records import CachedRecord, Records, take_not_kept
from fastload.cache.store import key_of_bytes
from fastload.late import LateSamples

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


def test_a_file_that_changes_between_uses_is_read_anew(cache, tmp_path):
    path = tmp_path / "a.jpg"
    for seed in range(2):
        expected = Image.open(written(path, jpeg(seed=seed))).crop((3, 3, 30, 30)).copy()
        for _ in range(2):
            found = as_sample(lambda: Image.open(path).crop((3, 3, 30, 30)), cache)
            assert found.tobytes() == expected.tobytes()
    assert cache.store.contents().entries == 2


def left(path: Path) -> tuple[bytes, int]:
    """Return pixels of a file, and where it stands then."""
    with path.open("rb") as file:
        return Image.open(file).crop((3, 3, 30, 30)).tobytes(), file.tell()


def changing(monkeypatch: pytest.MonkeyPatch, path: Path, cache: Records) -> None:
    source = sys.modules["fastload.late.source"]
    read = source._read_scans

    def then_changed(image: Any) -> Any:
        found = read(image)
        os.utime(path, ns=(1, 1))
        return found

    monkeypatch.setattr(source, "_read_scans", then_changed)


def failing(error: type[Exception]) -> Callable[[pytest.MonkeyPatch, Path, Records], None]:
    def fail(*given: Any) -> None:
        raise error

    return lambda monkeypatch, path, cache: monkeypatch.setattr(cache.store, "keep", fail)


NOT_KEPT: dict[str, Callable[[pytest.MonkeyPatch, Path, Records], None]] = {
    "it was written just now": lambda patch, path, cache: patch.setattr(store, "SETTLED_NS", 1 << 60),
    "it changes while it is read": changing,
    "it is read in other blocks": lambda patch, path, cache: patch.setattr(ImageFile, "MAXBLOCK", 1000),
    "there is no memory for a record": failing(MemoryError),
    "no record can be written": failing(OSError),
}


@pytest.mark.parametrize("why", ["nothing", *NOT_KEPT])
def test_the_users_file_is_left_where_pillow_leaves_it_and_kept_where_nothing_forbids_it(
    cache, tmp_path, monkeypatch, why
):
    path = written(tmp_path / "a.jpg", jpeg(700, 900, quality=98) + b"behind" * 30_000)
    NOT_KEPT.get(why, lambda *_: None)(monkeypatch, path, cache)
    assert as_sample(lambda: left(path), cache) == left(path)
    assert cache.store.contents().entries == (why == "nothing")
    if why == "nothing":
        assert as_sample(lambda: left(path), cache) == left(path)


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


def test_what_a_readers_buffer_has_of_an_older_file_is_not_kept(cache, tmp_path):
    path = written(tmp_path / "a.jpg", jpeg(300, 200, seed=0))

    def sample() -> Any:
        image = Image.open(path)  # the beginning of the file is in its buffer now
        path.write_bytes(jpeg(300, 200, seed=1))
        written(path, jpeg(300, 200, seed=1))
        return image.crop((3, 3, 30, 30))

    as_sample(sample, cache)
    assert cache.store.contents().entries == 0
