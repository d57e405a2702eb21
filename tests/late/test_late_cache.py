"""With a cache images are what they are without, at every use of a file; and what can be kept of it is kept."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from comparing import as_sample, jpeg, outcome
from kit.stores import written
from PIL import Image, ImageFile
from test_late_files import kinds, used

from fastload.cache.records import CachedRecord, Records
from fastload.cache.store import key_of_bytes

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


def no_memory(*given: Any) -> None:
    raise MemoryError


NOT_KEPT: dict[str, Callable[[pytest.MonkeyPatch, Path, Records], None]] = {
    "it changes while it is read": changing,
    "it is read in other blocks": lambda patch, path, cache: patch.setattr(ImageFile, "MAXBLOCK", 1000),
    "there is no memory for a record": lambda patch, path, cache: patch.setattr(cache.store, "keep", no_memory),
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


def test_what_a_readers_buffer_has_of_an_older_file_is_not_kept(cache, tmp_path):
    path = written(tmp_path / "a.jpg", jpeg(300, 200, seed=0))

    def sample() -> Any:
        image = Image.open(path)  # the beginning of the file is in its buffer now
        path.write_bytes(jpeg(300, 200, seed=1))
        written(path, jpeg(300, 200, seed=1))
        return image.crop((3, 3, 30, 30))

    as_sample(sample, cache)
    assert cache.store.contents().entries == 0
