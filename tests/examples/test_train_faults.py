"""Faults: every rank exits with one message and the right exit code, within a time limit."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
from trainings import Training, make_images

QUICK = ("--epochs", "1", "--limit-batches", "2", "--workers", "0")

pytestmark = pytest.mark.slow


def test_wrong_arguments_of_one_rank_or_all_and_a_missing_rank_exit_all_ranks_with_one_line(
    tmp_path: Path,
) -> None:
    with Training(tmp_path, "--lr", "0", ranks=2) as training:
        assert training.end() == [2, 2]
        assert training.errors() == "train.py: error: --lr must be above 0 and finite, got 0.0\n"
    with Training(tmp_path, ranks=2, arguments_of={1: ("--workers", "many")}) as training:
        assert training.end() == [2, 2]
        assert training.errors() == "train.py: error: argument --workers: invalid count value: 'many'\n"
    with Training(tmp_path, "--join-timeout", "0.3", ranks=3, started=1) as training:
        assert training.end() == [1]
        assert training.errors().endswith(
            "train.py: error: rank 1, 2 of 3 did not start within 0.3 s; see what it printed, or give a longer "
            "--join-timeout\n"
        )


def test_a_damaged_image_is_named_or_replaced(tmp_path: Path) -> None:
    for part in ("train", "test"):
        make_images(tmp_path / part, 12)
    damaged = [tmp_path / "train" / "green" / "003.jpg", tmp_path / "test" / "red" / "004.jpg"]
    damaged[0].write_bytes(damaged[0].read_bytes()[:-300])
    damaged[1].write_bytes(b"nothing")  # its error has an address that changes in each epoch
    words = ("--data-dir", str(tmp_path), "--image-size", "16", "--batch-size", "12", "--epochs", "1", "--workers", "1")
    with Training(tmp_path, *words, ranks=2) as training:
        assert training.end() == [1, 1]
        errors = training.errors()
        assert re.search(
            rf"^train\.py: error: rank [01]: an image cannot be loaded, at index 15 of the dataset: "
            rf"{re.escape(str(damaged[0]))} \(OSError: .*[Tt]runcated.*\); repair or remove it, or use --on-error "
            r"replace; nothing was saved: start again, and give --out to save$",
            errors,
            re.MULTILINE,
        ), errors
        assert "Traceback" not in errors
        assert len(errors.splitlines()) <= 2, errors  # the other rank has lost this one
    with Training(tmp_path, *words, "--on-error", "replace", "--epochs", "2", ranks=2) as training:
        training.finish()
        epoch = training.logged("epoch")[0]
        assert (epoch["step"], epoch["test_images"]) == (3, 35)  # full batches; in the test it is skipped
        assert [one["image"] for one in training.logged("damaged")] == sorted(map(str, damaged))
        assert sum(line.startswith("could not be loaded: ") for line in training.lines) == 2


def test_a_folder_is_locked_while_a_run_uses_it_and_other_classes_are_other_settings(tmp_path: Path) -> None:
    images, out = tmp_path / "images", tmp_path / "run"
    make_images(images, 10)
    words = ("--data-dir", str(images), "--batch-size", "8", "--workers", "1", "--save-every", "1", "--out", str(out))
    with Training(tmp_path, *words, "--epochs", "1000") as first:
        first.until(2)
        with Training(tmp_path, *words) as second:
            assert second.end() == [2]
            pid = first.processes[0].pid
            assert second.errors().endswith(
                f"train.py: error: --out {str(out)!r} is in use by another run, process {pid} on "
                f"{socket.gethostname()}; wait until it exits, or give another --out\n"
            )
        first.kill()
    (images / "green").rename(images / "grey")
    with Training(tmp_path, *words, "--epochs", "1000") as third:  # the lock was released with its process
        assert third.end() == [1]
        assert third.errors().endswith(
            f"train.py: error: the checkpoint {str(out / 'checkpoint.pt')!r} is from a run with other settings: "
            "classes[1] was 'green' and is now 'grey'; use the same settings, or give another --out\n"
        )


def test_a_diverging_network_is_an_error_and_is_not_saved(tmp_path: Path) -> None:
    words = ("--norm", "none", "--lr", "1e18", "--warmup", "0", "--epochs", "1", "--workers", "0")
    with Training(tmp_path, *words, "--out", str(tmp_path / "run"), ranks=2) as training:
        assert training.end() == [1, 1]
    assert "lower --lr, or add --clip-norm 1; this step was not saved" in training.errors()
    assert training.errors().count("error:") == 1
    assert not (tmp_path / "run" / "checkpoint.pt").exists()
