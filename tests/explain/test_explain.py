"""``fastload explain``: scripts as they are, objects, and what cannot be explained."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from kit.datasets import Made, Stream
from PIL import Image
from torchvision import datasets, transforms

import fastload
from fastload import cli
from fastload.explain import tables
from fastload.run import child, targets
from fastload.run.result_file import result_file, write_result

TRAIN = """
import sys
from pathlib import Path
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

root = Path(__file__).parent / "images" / "one class"
root.mkdir(parents=True, exist_ok=True)
for number in range(3):
    Image.new("RGB", (40, 30), (number, 0, 0)).save(root / f"{number}.jpg")

class Mine:
    def __call__(self, image):
        print("loaded")
        return image

steps = [transforms.RandomResizedCrop(24), transforms.ToTensor()]
train = datasets.ImageFolder(root.parent, transforms.Compose(steps))
check = datasets.ImageFolder(root.parent, transforms.Compose([transforms.Resize(24), Mine(), transforms.ToTensor()]))

def make():
    return check

if __name__ == "__main__":
    print("the script's own words", sys.argv[1:])
    train_loader = DataLoader(train, batch_size=2, shuffle=True)
    check_loader = DataLoader(check, batch_size=1)
    try:
        for batch in train_loader:
            print("trained")
    except BaseException:  # such scripts exist
        print("caught")
    list(train_loader)
    print("went on")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAIN))
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
    assert "ImageFolder, 3 samples, batches of 2   train.py:27   iterated first" in lines
    assert "ImageFolder, 3 samples, batches of 1   train.py:28" in lines
    first, second = done.stdout.split("train.py:28")
    assert "  fuse='auto'; what fuse=True would do" in first.splitlines()
    assert ["ToTensor()", "table", "of", "values"] in [line.split()[:4] for line in first.splitlines()]
    nothing = "nothing: Mine: it is not one of the transforms that fuse=True knows"
    assert f"  fuse='auto'; what fuse=True would do: {nothing}" in second.splitlines()
    assert not {"trained", "loaded", "went on"} & set(lines)


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
def test_a_script_that_does_not_end_once_there_is_a_result_is_ended(
    monkeypatch: pytest.MonkeyPatch, handler: str, ended: int
):
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


def test_names_of_the_users_are_no_markup_and_on_a_narrow_terminal_nothing_is_cut_off(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "50")
    name = "Own[red]DatasetWithANameOfMoreThanThirtyLetters"
    said = shown(fastload.DataLoader(type(name, (list,), {})([1, 2]), num_workers=1), capsys)
    assert "…" not in said
    assert all(word in said for word in f"nothing: is not one of the datasets that {name[:12]} {name[-4:]}".split())
    assert "workers     1 process\n" in said
    assert max(map(len, said.splitlines())) <= 50


def test_a_dataset_that_a_function_returns_is_explained_in_plain_lines(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("COLUMNS", "120")
    assert cli.main(["explain", "train.py:make"]) == 0
    sys.modules.pop("train")
    said = capsys.readouterr().out
    assert said.splitlines()[0] == "ImageFolder, 3 samples"
    assert "what fuse=True would do" in said
    assert "loaded" not in said
    assert "\033" not in said
    assert all(line == line.rstrip() for line in said.splitlines())


def shown(loader: object, capsys: pytest.CaptureFixture[str]) -> str:
    tables.print_tables(loader)
    return capsys.readouterr().out


def words_shown(loader: object, capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(shown(loader, capsys).split())  # lines are cut where the terminal ends


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
    assert "row of the batch" in said
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
