"""Checkpoint files: what is written is read, and damaged files are errors."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trainings  # noqa: F401  # puts examples/ on the path
from training import checkpoint
from training.errors import RunError

STATE = {"step": 7, "model": {"weight": torch.arange(2000.0)}, "settings": {"--lr": 0.1}}


def written(folder: Path) -> tuple[Path, bytes]:
    path = folder / "checkpoint.pt"
    checkpoint.write(path, STATE)
    return path, path.read_bytes()


def test_a_written_checkpoint_can_be_read_also_by_torch(tmp_path: Path) -> None:
    assert checkpoint.read(tmp_path / "checkpoint.pt") is None
    checkpoint.write(tmp_path / "checkpoint.pt", {**STATE, "step": 6})
    path, _ = written(tmp_path)
    data = checkpoint.read(path)
    assert data is not None
    state = checkpoint.parse(data, path)
    assert state["step"] == torch.load(path, weights_only=True)["step"] == 7
    assert torch.equal(state["model"]["weight"], torch.arange(2000.0))
    assert [one.name for one in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_a_changed_byte_anywhere_is_an_error_or_gives_the_same_state(tmp_path: Path) -> None:
    path, data = written(tmp_path)
    random, refused = np.random.default_rng(0), 0
    # The archive's headers, and places in the weights.
    places = [*range(60), *range(data.rindex(b"PK\1\2"), len(data)), *random.integers(0, len(data), 200)]
    for place in places:
        for value in (data[place] ^ 16, *random.integers(0, 256, 4).tolist()):
            changed = data[:place] + bytes([value]) + data[place + 1 :]
            try:
                state = checkpoint.parse(changed, path)
            except RunError:
                refused += 1
            else:
                assert state["step"] == 7
                assert torch.equal(state["model"]["weight"], torch.arange(2000.0))
    assert refused > len(places)


def test_truncated_changed_and_foreign_files_are_errors_and_execute_no_code(tmp_path: Path) -> None:
    path, data = written(tmp_path)
    for length in range(0, len(data), 97):
        with pytest.raises(RunError, match=r"is not a checkpoint, or truncated .+ move it away to start anew"):
            checkpoint.parse(data[:length], path)
    place = data.index(torch.tensor([1000.0]).numpy().tobytes())  # within the weights
    with pytest.raises(RunError, match=r"is damaged: the checksum of '.+' is wrong"):
        checkpoint.parse(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :], path)

    def saved(state: Any) -> bytes:
        buffer = io.BytesIO()
        torch.save(state, buffer)
        return buffer.getvalue()

    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as other:
        other.writestr("hello", "there")
    for foreign in (saved({"model": {}}), saved([1]), saved(Path), archive.getvalue()):
        with pytest.raises(RunError, match=r"was not written by train\.py"):
            checkpoint.parse(foreign, path)
    with pytest.raises(RunError, match=r"has version 99, and this train\.py reads version 1"):
        checkpoint.parse(saved({"format": checkpoint.FORMAT, "version": 99}), path)
    with pytest.raises(RunError, match=r"of step 7, .+ No such file or directory; there is no previous one"):
        checkpoint.write(tmp_path / "gone" / "checkpoint.pt", STATE)
