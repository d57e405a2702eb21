"""``fastload explain``: scripts as they are, objects, and what cannot be explained."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from kit.datasets import Made, Stream
from kit.scripts import TRAIN
from PIL import Image
from torchvision import datasets, transforms

import fastload
from fastload.explain import tables
from fastload.run import child, targets
from fastload.run.result_file import result_file, write_result


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def explain(*words: str, timeout: float | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fastload.cli", "explain", *words]
    environment = {**os.environ, "COLUMNS": "120"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=timeout)


@pytest.mark.slow
def test_a_script_with_torchs_loaders_is_explained_at_its_first_batch_and_ends_there(folder: Path):
    done = explain("train.py", "--epochs", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "the script's own words ['--epochs', '3']"
    assert "Pictures, 24 samples, batches of 4   train.py:31   iterated first" in lines
    assert "list, 3 samples, batches of 1   train.py:27" in lines
    reason = "is not one of the datasets that fuse=True knows"
    for name in ("Pictures", "list"):
        assert f"  fuse='auto'; what fuse=True would do: nothing: {name} {reason}" in lines
    assert not {"trained", "went on"} & set(lines)


THREAD = """
import queue, threading, torch
from torch.utils.data import DataLoader

batches = queue.Queue()
threading.Thread(target=lambda: [batches.put(batch) for batch in DataLoader(torch.arange(6))]).start()
batches.get()
"""


@pytest.mark.slow
def test_a_script_that_waits_for_the_batches_of_a_thread_is_ended_too(folder: Path):
    Path("thread.py").write_text(THREAD)
    done = explain("thread.py", timeout=200)
    assert done.returncode == 0, done.stderr
    assert "thread.py:6   iterated first" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("handler", "ended"),
    # Said for both: what is started in the background ignores it from the beginning.
    [("default_int_handler", -signal.SIGINT), ("SIG_IGN", -signal.SIGKILL)],
)
def test_a_script_that_does_not_end_once_there_is_a_result_is_ended(monkeypatch, handler, ended):
    monkeypatch.setattr(targets, "_SECONDS_TO_END", 0.5)
    code = f"import signal as s; s.signal(s.SIGINT, s.{handler}); print('ready', flush=True); s.pause()"
    with (
        result_file() as result,
        child.Child([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as script,
    ):
        assert script.process.stdout is not None
        script.process.stdout.readline()
        script.process.stdout.close()
        write_result(result, [0, ""])
        assert targets._wait_for_end(script, result) == ended


def words_shown(loader: object, capsys: pytest.CaptureFixture[str]) -> str:
    tables.print_tables(loader)
    return " ".join(capsys.readouterr().out.split())  # lines are cut where the terminal ends


STREAM = Stream(lambda: range(3))


@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        (fastload.DataLoader([1, 2, 3], seeding="torch"), "nothing: seeding='torch' draws from torch's streams"),
        (fastload.DataLoader([1, 2, 3], batch_size=None), "nothing: batch_size=None leaves batching to the dataset"),
        (fastload.DataLoader([1, 2, 3], fuse=True), "fusion "),
        (fastload.DataLoader(STREAM), "nothing: an IterableDataset has no indices"),
        (STREAM, "nothing: an IterableDataset has no indices"),
    ],
)
def test_a_loader_that_cannot_be_fused_is_told_why(loader, reason, capsys):
    assert reason in words_shown(loader, capsys)


def test_files_that_are_left_to_pillow_are_told_with_the_reason(tmp_path: Path, capsys, monkeypatch):
    (tmp_path / "one class").mkdir()
    Image.new("RGB", (40, 30)).save(tmp_path / "one class" / "0.jpg")
    data = datasets.ImageFolder(tmp_path, transforms.Compose([transforms.Resize((24, 24)), transforms.ToTensor()]))
    monkeypatch.setattr(tables, "why_not_native", lambda: "PIL 1 resizes to other values than the native library")
    said = words_shown(data, capsys)
    assert "in one pass, into the batch" in said
    assert "Pillow decodes the files: PIL" in said
    assert "resizes to other values than the native library" in said


# -- no samples --------------------------------------------------------------------------------------------------------


def test_no_sample_is_loaded_and_what_measures_settings_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    made: list[int] = []
    loader = fastload.DataLoader(Made(500, made.append), batch_size=16, shuffle=True)
    before = torch.get_rng_state()
    tables.print_tables(loader)
    assert capsys.readouterr().out.endswith("fastload tune measures which settings make it faster.\n")
    assert made == []
    assert torch.equal(torch.get_rng_state(), before)
    assert loader.statistics().batches == 0
