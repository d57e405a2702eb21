"""Files are opened, and asked for, before the first of them is read; each is closed, and an error is its sample's."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from fusion_tools import folder, fused
from torchvision import transforms as v1

from fastload.fusion import dataset
from fastload.fusion.sources import Files

CHAIN = v1.Compose([v1.Resize((9, 9)), v1.PILToTensor()])


def loaded(files: Any, indices: list[int]) -> torch.Tensor:
    return fused(files).load(indices, range(len(indices)), 0).images


def test_all_files_of_a_part_are_asked_for_before_its_first_is_read(tmp_path, monkeypatch):
    if not Path("/proc/self/fd").exists() or not hasattr(os, "posix_fadvise"):
        pytest.skip("needs Linux")
    files, events, read = folder(tmp_path, CHAIN), [], Files.data

    def name_of(file: Any) -> str:
        return Path(os.readlink(f"/proc/self/fd/{file}")).name

    def advise(file: int, offset: int, length: int, advice: int) -> None:
        assert (offset, length, advice) == (0, 0, 3)  # of the whole file, POSIX_FADV_WILLNEED
        events.append(f"ask {name_of(file)}")

    def data(self: Files, file: Any) -> Any:
        events.append(f"read {name_of(file.fileno())}")
        return read(self, file)

    monkeypatch.setattr(dataset, "_FILES", 3)
    monkeypatch.setattr(os, "posix_fadvise", advise)
    monkeypatch.setattr(Files, "data", data)
    before = len(os.listdir("/proc/self/fd"))
    order = [4, 1, 9, 0, 2]
    loaded(files, order)
    names = [Path(files.samples[index][0]).name for index in order]
    asked, read_ = ([f"{what} {name}" for name in names] for what in ("ask", "read"))
    assert events == [*asked[:3], *read_[:3], *asked[3:], *read_[3:]]
    assert len(os.listdir("/proc/self/fd")) == before


def test_samples_are_the_same_where_nothing_can_be_asked(tmp_path, monkeypatch):
    files = folder(tmp_path, CHAIN)
    indices = list(range(len(files)))
    expected = torch.stack([files[index][0] for index in indices])
    assert torch.equal(loaded(files, indices), expected)

    def refuses(*args: Any) -> None:
        raise OSError(errno.EINVAL, "no advice here")

    for advise in (None, refuses):
        if advise is None:
            monkeypatch.delattr(os, "posix_fadvise")
        else:
            monkeypatch.setattr(os, "posix_fadvise", advise, raising=False)
        assert torch.equal(loaded(files, indices), expected)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_named_pipe_in_the_place_of_a_file_is_an_error_and_waited_for_by_nobody(tmp_path):
    files = folder(tmp_path, CHAIN)
    path = files.samples[3][0]
    Path(path).unlink()
    os.mkfifo(path)
    with pytest.raises(OSError, match="a named pipe") as caught:
        loaded(files, [3])
    assert caught.value.filename == path
