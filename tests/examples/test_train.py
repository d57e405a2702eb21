"""The training as a user starts it, from the top of the repository."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from trainings import Training, make_images

REPOSITORY = Path(__file__).parents[2]
SCRIPT = "examples/train.py"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
PROCESS_GROUP = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")

EPOCH = re.compile(r"^epoch +(\d+)   loss +[\d.]+   test +[\d.]+% +[\d,]+ images/s   data wait +[\d.]+%$", re.MULTILINE)
DONE = re.compile(
    r"^done in [\d.]+ s   test accuracy (?P<accuracy>[\d.]+)% +[\d,]+ images/s   data wait +[\d.]+%$", re.MULTILINE
)


def environment() -> dict[str, str]:
    """Return the environment of a plain shell: no forced colours, no width, not part of another torchrun."""
    left_out = {"COLUMNS", "FORCE_COLOR", *PROCESS_GROUP}
    return {name: value for name, value in os.environ.items() if name not in left_out}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments to the end; torchrun ends its processes when it is terminated."""
    with subprocess.Popen(
        [sys.executable, *arguments],
        cwd=REPOSITORY,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=200)
        except subprocess.TimeoutExpired:
            process.terminate()
            out, err = process.communicate()
            pytest.fail(f"{arguments} did not end:\n{out}\n{err}")
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def accuracy_of(result: subprocess.CompletedProcess[str]) -> float:
    assert result.returncode == 0, result.stderr
    return accuracy_in(result.stdout)


def accuracy_in(output: str) -> float:
    done = DONE.search(output)
    assert done, output
    return float(done["accuracy"])


def trained(folder: Path, *arguments: str, ranks: int = 1) -> str:
    """Train on ranks that are forked from this process, which start at once; return what rank 0 prints."""
    folder.mkdir()
    with Training(folder, *arguments, ranks=ranks) as training:
        training.finish()
    return "\n".join(training.lines)


@pytest.mark.thorough
def test_two_processes_learn_the_digits() -> None:
    result = run(*TORCHRUN, SCRIPT, "--epochs", "10", "--seed", "0")
    assert accuracy_of(result) >= 97.0
    assert [int(number) for number in EPOCH.findall(result.stdout)] == list(range(1, 11))  # only rank 0 prints


@pytest.mark.thorough
def test_output_to_a_file_is_plain_lines_of_at_most_80_columns() -> None:
    result = run(SCRIPT, "--epochs", "2", "--limit-batches", "5", "--workers", "1")
    assert accuracy_of(result) > 0
    lines = result.stdout.splitlines()
    assert len(lines) == 5, result.stdout
    assert lines[0] == "1,437 images to train on, 360 to test (every fifth), 10 classes"
    assert lines[1].startswith("1 process on ")
    assert all(line.isprintable() and len(line) <= 80 for line in lines)
    assert not result.stderr


@pytest.mark.slow
def test_a_terminal_shows_a_progress_bar_that_is_removed_at_the_end() -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, SCRIPT, "--epochs", "1", "--limit-batches", "5", "--workers", "1"],
        cwd=REPOSITORY,
        env=environment() | {"TERM": "xterm", "COLUMNS": "80"},
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
    output = trained(tmp_path / "run", *words, ranks=2)
    assert output.startswith("72 images to train on, 15 to test (from val/), 3 classes\n")
    # Fifteen images on two ranks: if one counted twice, this would be a multiple of a sixteenth.
    accuracy = accuracy_in(output)
    assert accuracy == pytest.approx(100 * round(accuracy * 15 / 100) / 15, abs=0.006)
    assert accuracy > 60.0


def test_data_dir_with_one_tree_holds_out_every_fifth_image(tmp_path: Path) -> None:
    make_images(tmp_path / "images", 10)
    words = ("--data-dir", str(tmp_path / "images"), "--epochs", "1", "--batch-size", "8", "--worker-method", "thread")
    output = trained(tmp_path / "run", *words)
    assert accuracy_in(output) >= 0
    assert output.startswith("24 images to train on, 6 to test (every fifth), 3 classes\n")


def test_an_empty_data_dir_is_reported_by_rank_0_only(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with Training(tmp_path, "--data-dir", str(empty), ranks=2) as training:
        assert training.end() == [2, 2]
    assert training.errors().count("train.py: error: --data-dir must contain images") == 1
    assert f"Couldn't find any class folder in {empty}; correct it" in training.errors()
    assert f'{SCRIPT}", line' not in training.errors()  # no traceback of the example
