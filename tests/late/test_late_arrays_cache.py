"""With a cache, functions that return whole images give what they give without, at each use of a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.io
from comparing import jpeg
from kit.datasets import Made
from kit.stores import written as written_once
from test_late_arrays import files
from whole_images import FLAGS, LIBRARIES, memory, needs_library, of_any_kind, same, seen, tensor, written

import fastload
from fastload.cache import shared, store
from fastload.cache.records import NOT_KEPT, OTHER_WAY, Records, take_not_kept
from fastload.late import LateSamples, arrays

cv2 = pytest.importorskip("cv2")
pytestmark = [
    pytest.mark.filterwarnings("ignore:The image decoding and encoding capabilities:DeprecationWarning"),
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="the system has no memory files"),
    needs_library,
]


@pytest.mark.parametrize("library", ["cv2", "torchvision.io"])
def test_workers_give_the_same_in_every_epoch(library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SETTLED_NS", 0)
    written(tmp_path, files(), "jpg")
    paths = sorted(tmp_path.iterdir())
    read = LIBRARIES[library]
    expected = [read(path) for path in paths]
    dataset = Made(len(paths), lambda index: read(paths[index]))
    loader = fastload.DataLoader(dataset, None, collate_fn=same, num_workers=2, cache="32MiB")
    for _ in range(2):
        for path, found, before in zip(paths, loader, expected, strict=True):
            assert found == before, path.name
    assert loader.statistics().cached_files > 20
    shared.forget()


def as_sample(decode: Callable[..., Any], cache: Records, *arguments: Any) -> Any:
    with LateSamples(cache):
        return decode(of_any_kind, *arguments)


def test_a_kept_file_is_not_read_again(cache: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(written_once(tmp_path / "a.jpg", jpeg(60, 40)))
    as_sample(arrays._imread, cache, path)
    assert cache.store.contents().entries == 1
    monkeypatch.setattr(os, "pread", None)
    for flags in sorted(arrays._KNOWN[arrays.JPEG] & set(FLAGS)):
        assert seen(lambda flags=flags: as_sample(arrays._imread, cache, path, flags)) == seen(
            lambda flags=flags: cv2.imread(path, flags)
        )


def test_a_file_that_changes_while_it_is_read_is_not_kept(
    cache: Records,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = written_once(tmp_path / "a.jpg", jpeg(60, 40))
    pread = os.pread

    def changing(*arguments: Any) -> bytes:
        path.chmod(0o600)
        return pread(*arguments)

    monkeypatch.setattr(os, "pread", changing)
    path.chmod(0o640)
    written_once(path, path.read_bytes())
    assert as_sample(arrays._imread, cache, str(path)) is not None
    assert cache.store.contents().entries == 0


def test_bytes_in_memory_are_kept_once_for_all_functions(cache: Records, tmp_path: Path, monkeypatch: Any) -> None:
    path = written_once(tmp_path / "a.jpg", jpeg(60, 40))
    as_sample(arrays._imdecode, cache, memory(path), 1)
    monkeypatch.setattr("fastload.native.jpeg.record_of_jpeg", None)
    made = as_sample(arrays._tensor, cache, tensor(path), 3)
    assert torch.equal(made, torchvision.io.decode_image(str(path)))
    assert cache.store.contents().entries == 1


def test_a_file_that_is_left_to_the_original_is_not_kept(cache: Records, tmp_path: Path) -> None:
    turned = dict(files())["turned 6"]
    path = written_once(tmp_path / "a.jpg", turned)
    assert as_sample(arrays._imread, cache, str(path)) is None
    assert as_sample(arrays._tensor, cache, tensor(path), 3, True) is None
    assert cache.store.contents().entries == 0
    upright = as_sample(arrays._imread, cache, str(path), 1 | 128)
    assert np.array_equal(upright, cv2.imread(str(path), 1 | 128))
    assert cache.store.contents().entries == 1
    assert as_sample(arrays._imread, cache, str(path)) is None  # its record has the header that says so


def test_a_jpeg_file_that_is_read_in_grey_is_counted_as_read_in_another_way(cache: Records, tmp_path: Path) -> None:
    path = str(written_once(tmp_path / "a.jpg", jpeg(60, 40)))
    take_not_kept()
    assert as_sample(arrays._imread, cache, path, cv2.IMREAD_GRAYSCALE) is None
    assert take_not_kept() == {NOT_KEPT + OTHER_WAY: 1}
