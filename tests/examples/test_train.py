"""The training as a user starts it, from the top of the repository."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from scripts import REPOSITORY, run
from trainings import Training, make_images

from fastload.cli import main as fastload_command

SCRIPT = "examples/train.py"
EPOCH = re.compile(r"^epoch +(\d+)   loss +[\d.]+   test +[\d.]+% +[\d,]+ images/s   data wait +[\d.]+%$", re.MULTILINE)


def accuracy_in(output: str) -> float:
    done = re.search(r"^done in [\d.]+ s   test accuracy ([\d.]+)% +[\d,]+ images/s   data wait", output, re.MULTILINE)
    assert done, output
    return float(done[1])


@pytest.mark.thorough
def test_two_processes_learn_the_digits() -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    output = run(*torchrun, SCRIPT, "--epochs", "10", "--seed", "0")
    assert accuracy_in(output) >= 97.0
    lines = output.splitlines()
    assert lines[0] == "1,437 images to train on, 360 to test (every fifth), 10 classes"
    assert lines[1].startswith("2 processes on ")
    assert [int(number) for number in EPOCH.findall(output)] == list(range(1, 11))  # only rank 0 prints
    assert all(line.isprintable() and len(line) <= 80 for line in lines)


@pytest.mark.slow
def test_a_terminal_shows_a_progress_bar_that_is_removed_at_the_end() -> None:
    ours, theirs = pty.openpty()
    left_out = {"FORCE_COLOR", "RANK", "WORLD_SIZE"}
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    with subprocess.Popen(
        [sys.executable, SCRIPT, "--epochs", "1", "--limit-batches", "5", "--workers", "1"],
        cwd=REPOSITORY,
        env=environment | {"TERM": "xterm", "COLUMNS": "80"},
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        output = b""
        try:
            while piece := os.read(ours, 65536):
                output += piece
        except OSError:  # Linux's error when the other end is closed
            pass
        finally:
            os.close(ours)
    text = output.decode()
    assert process.returncode == 0, text
    assert "━" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # the cursor is shown again
    assert "━" not in text[text.rindex("done in") :]


def test_data_dir_trains_on_image_folders(tmp_path: Path) -> None:
    make_images(tmp_path / "images" / "train", 24)
    make_images(tmp_path / "images" / "val", 5)
    words = ("--data-dir", str(tmp_path / "images"), "--image-size", "16", "--epochs", "4", "--batch-size", "12")
    with Training(tmp_path, *words, ranks=2) as training:
        training.finish()
    assert training.lines[0] == "72 images to train on, 15 to test (from val/), 3 classes"
    # Fifteen images on two ranks: if one counted twice, this would be a multiple of a sixteenth.
    accuracy = accuracy_in("\n".join(training.lines))
    assert accuracy == pytest.approx(100 * round(accuracy * 15 / 100) / 15, abs=0.006)
    assert accuracy > 60.0


def test_an_empty_data_dir_is_reported_by_rank_0_only(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with Training(tmp_path, "--data-dir", str(empty), ranks=2) as training:
        assert training.end() == [2, 2]
    assert training.errors().count("train.py: error: --data-dir must contain images") == 1
    assert f"Couldn't find any class folder in {empty}; correct it" in training.errors()
    assert f'{SCRIPT}", line' not in training.errors()  # no traceback of the example


@pytest.mark.slow
def test_packed_images_are_trained_on_and_the_last_test_counts_their_views_too(tmp_path: Path) -> None:
    make_images(tmp_path / "images", 10)
    assert fastload_command(["pack", str(tmp_path / "images"), str(tmp_path / "packed")]) in (0, None)
    words = ("--dataset", "packed", "--data-dir", str(tmp_path / "packed"), "--batch-size", "8", "--epochs", "1")
    with Training(tmp_path, *words, "--workers", "1", "--fuse", "--test-views", "flips-and-shifts") as training:
        training.finish()
    assert training.lines[0] == "24 images to train on, 6 to test (every fifth), 3 classes"
    epoch = training.logged("epoch")[0]
    assert epoch["test_accuracy_of_views"] == epoch["test_correct_of_views"] / 6
    assert any(" with test-time augmentation " in line for line in training.lines)
