"""``fastload tune``, end to end: scripts and objects as they are, in a second or two."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fastload import cli

FAILS = """
from fastload import DataLoader

def broken(index):
    raise KeyError("my words")

loader = DataLoader([0, 1], collate_fn=broken)
"""
TRAIN = """
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Waiting(Dataset):
    def __getitem__(self, index):
        time.sleep(0.004)
        return index + torch.rand(2)
    def __len__(self):
        return 10_000

if __name__ == "__main__":
    print("the script's own words", sys.argv[1:])
    train_loader = DataLoader(Waiting(), batch_size=8, shuffle=True)
    try:
        for batch in train_loader:
            print("trained")
    except BaseException:  # such scripts exist
        print("caught")
    list(train_loader)
    print("went on")
"""


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_script_is_tuned_at_its_first_batch_and_trains_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    command = [sys.executable, "-m", "fastload.cli", "tune", "--seconds", "3", "--json", "-", "train.py"]
    done = subprocess.run(
        [*command, "--epochs", "3"], capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["subject"] == "Waiting, 10,000 samples, batches of 8, train.py:15"
    assert "the script's own words ['--epochs', '3']" in done.stderr
    assert not {"trained", "went on"} & {*done.stderr.splitlines()}
    assert found["present"]["found"]["differs"] == ""
    assert any(note.startswith("loading: read ") for note in found["notes"])
    settings = [(one["setting"], one["found"]["differs"]) for one in found["trials"]]
    assert {differs for _, differs in settings} == {""}
    with_workers = [one for one in found["trials"] if one["setting"]["num_workers"] and one["slices"]]
    assert all(one["found"]["augmentation"].startswith("the values differ: epoch 0, batch 0") for one in with_workers)
    for one in with_workers:
        in_turn = one["setting"]["worker_method"] != "thread" and one["setting"]["worker_threads"] == 1
        assert one["found"]["as_torch"] == in_turn
    assert any(one["found"]["as_torch"] for one in with_workers)
    # How fast they are is the machine's business; what is recommended was faster each time, or as good as.
    assert (found["best"] is None) == (found["recommended"] == {})
    assert found["best"] is None or found["best"]["gain"]["low"] > 1.0


def test_a_loader_that_fails_is_told_with_its_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(FAILS)
    assert cli.main(["tune", f"{tmp_path / 'mine.py'}:loader"]) == 1
    assert "fastload tune: the loader fails as it is: KeyError: 'my words'" in capsys.readouterr().err
