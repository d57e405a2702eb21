"""The kernel is asked for files before the first is decoded; only while there are some that are not in memory."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fusion_tools import folder
from torchvision import datasets
from torchvision import transforms as v1

from fastload.fusion import FusedDataset, dataset, recognise, sources
from fastload.fusion.sources import FileReader
from fastload.images.base import Decoder

CHAIN = v1.Compose([v1.Resize((9, 9)), v1.PILToTensor()])


class Kernel:
    """Notes what is asked of it; keeps in memory what a test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.events: list[str] = []
        self.in_memory = False
        monkeypatch.setattr(sources, "_advise", self._advise)
        monkeypatch.setattr(sources, "_in_memory", lambda file: self.in_memory)

    def _advise(self, file: int, offset: int, length: int, advice: int) -> None:
        assert (offset, length, advice) == (0, 0, 3)  # of the whole file, POSIX_FADV_WILLNEED
        name = os.readlink(f"/proc/self/fd/{file}")
        self.asked.append(name)
        self.events.append(f"ask {Path(name).name}")


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    if not Path("/proc/self/fd").exists() or not hasattr(os, "posix_fadvise"):
        pytest.skip("needs Linux")
    return Kernel(monkeypatch)


def loaded(files: Any, indices: list[int]) -> torch.Tensor:
    return FusedDataset(files, recognise(files), 1, Decoder()).load(indices, range(len(indices)), 0).images


def test_all_files_of_a_part_are_asked_for_before_its_first_is_read_and_the_next_part_before_it_is_decoded(
    kernel, tmp_path, monkeypatch
):
    files = folder(tmp_path, CHAIN)
    monkeypatch.setattr(dataset, "_FILES", 3)
    read = FileReader.data

    def noted(reader: FileReader, index: int) -> bytes:
        kernel.events.append(f"read {Path(reader._samples[index][0]).name}")
        return read(reader, index)

    monkeypatch.setattr(FileReader, "data", noted)
    order = [4, 1, 9, 0, 2, 7, 5, 3]
    loaded(files, order)
    names = [Path(files.samples[index][0]).name for index in order]
    asked, read_ = ([f"{what} {name}" for name in names] for what in ("ask", "read"))
    assert kernel.events == [*asked[:6], *read_[:3], *asked[6:], *read_[3:]]


def test_nothing_is_asked_while_all_is_in_memory_until_a_file_is_not(kernel, tmp_path):
    files = folder(tmp_path, CHAIN)
    reader = FileReader(files)
    kernel.in_memory = True
    for _ in range(sources._WATCHED):
        reader.ask_for([0])
    assert kernel.asked == []
    reader.ask_for([0, 1, 2])
    reader.data(0)
    kernel.in_memory = False
    reader.ask_for([0, 1, 2])
    assert kernel.asked == []
    reader.data(0)  # it is not in memory: the next may not be either
    reader.ask_for([0, 1, 2])
    assert kernel.asked == [files.samples[index][0] for index in (0, 1, 2)]


@pytest.mark.parametrize(("where", "times"), [(None, sources._WATCHED), ("/a/folder", sources._WATCHED + 9)])
def test_records_are_asked_for_each_time_on_a_disk_and_not_in_memory(kernel, tmp_path, where, times):
    class Cache:
        folder = where
        asked = 0

        def ask_for(self, file: int) -> bool:
            self.asked += 1
            return True

    cache: Any = Cache()
    files = folder(tmp_path, CHAIN)
    reader = FileReader(files, cache)
    for _ in range(sources._WATCHED + 9):
        reader.ask_for([0])
    assert cache.asked == times
    assert kernel.asked == []


def test_samples_are_the_same_where_nothing_can_be_asked(tmp_path, monkeypatch):
    files = folder(tmp_path, CHAIN)
    indices = list(range(len(files)))
    expected = torch.stack([files[index][0] for index in indices])
    assert torch.equal(loaded(files, indices), expected)

    def refuses(*args: Any) -> None:
        raise OSError(errno.EINVAL, "no advice here")

    for advise in (None, refuses):
        monkeypatch.setattr(sources, "_advise", advise)
        assert torch.equal(loaded(files, indices), expected)
    monkeypatch.setattr(sources, "_nowait", None)
    assert torch.equal(loaded(files, indices), expected)


@pytest.mark.skipif(sources._advise is None or sources._nowait is None, reason="needs posix_fadvise and RWF_NOWAIT")
def test_a_file_that_was_dropped_from_memory_is_read_again_when_it_is_asked_for(tmp_path):
    # A file of our own; where the file system cannot drop it, or cannot say, there is nothing to see.
    path = tmp_path / "a" / "0.jpg"
    path.parent.mkdir()
    path.write_bytes(np.random.default_rng(0).bytes(300_000))
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        if sources._in_memory(file):
            pytest.skip("the file system keeps files in memory")
        reader = FileReader(datasets.ImageFolder(tmp_path))
        assert reader.data(0) == path.read_bytes()
        assert sources._in_memory(file)
    finally:
        os.close(file)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_named_pipe_in_the_place_of_a_file_is_an_error_and_waited_for_by_nobody(tmp_path):
    files = folder(tmp_path, CHAIN)
    path = files.samples[3][0]
    Path(path).unlink()
    os.mkfifo(path)
    reader = FileReader(files)
    reader.ask_for([3])
    with pytest.raises(OSError, match="a named pipe") as caught:
        reader.data(3)
    assert caught.value.filename == path


def test_a_file_that_is_not_there_is_an_error_in_its_place_alone(kernel, tmp_path):
    files = folder(tmp_path, CHAIN)
    gone = files.samples[3][0]
    Path(gone).unlink()
    with pytest.raises(FileNotFoundError) as caught:
        loaded(files, [0, 3, 1])
    assert caught.value.filename == gone
    assert kernel.asked == [files.samples[index][0] for index in (0, 1)]
    with pytest.raises(IndexError):
        loaded(files, [0, len(files)])
