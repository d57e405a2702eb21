"""Faults: every rank exits with one message and the right exit code, within a time limit."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from training import data
from training.distributed import Signals
from training.errors import RunError, UsageError
from training.startup import meet
from trainings import Training, make_images, train_module

QUICK = ("--epochs", "1", "--limit-batches", "2", "--workers", "0")

pytestmark = pytest.mark.slow


def send_signal_in(number: signal.Signals, *ranks: int) -> Callable[..., Any]:
    """Return a decorator for a function in which some ranks receive a signal."""

    def wrap(plain: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            if int(os.environ["RANK"]) in ranks:
                signal.raise_signal(number)
            return plain(*arguments, **named)

        return wrapped

    return wrap


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


def test_a_signal_before_the_first_step_exits_all_ranks_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, out = train_module(), tmp_path / "run"
    with monkeypatch.context() as patched:  # inherited by the forked ranks
        patched.setattr(data, "load_data", send_signal_in(signal.SIGTERM, 1)(data.load_data))
        with Training(tmp_path, *QUICK, "--out", str(out), ranks=2) as training:
            assert training.end() == [0, 0]  # the same as after a signal in the loop
            assert training.lines == ["stopped by SIGTERM before the first step; the same command starts again"]
            assert training.errors() == ""
    assert not (out / "checkpoint.pt").exists()
    with monkeypatch.context() as patched:  # while the ranks wait for each other
        patched.setattr(module, "join", send_signal_in(signal.SIGUSR1, 1)(module.join))
        with Training(tmp_path, *QUICK, ranks=2) as training:
            assert training.end() == [128 + signal.SIGUSR1] * 2
            assert training.lines == ["stopped by SIGUSR1 before the first step; the same command starts again"]
            assert training.errors() == ""
    with monkeypatch.context() as patched:
        patched.setattr(module, "build_network", send_signal_in(signal.SIGINT, 0, 1)(module.build_network))
        with Training(tmp_path, *QUICK, ranks=2) as training:
            assert training.end() == [130, 130]
            end = "stopped by SIGINT; nothing was saved: start again, and give --out to save"
            assert training.lines == [f"rank 0: {end}"]
            assert training.errors() == f"rank 1: {end}\n"


def test_a_signal_stops_a_run_without_out_after_its_step(tmp_path: Path) -> None:
    with Training(tmp_path, "--workers", "0", ranks=2) as training:
        training.until(2)
        training.send(signal.SIGTERM, 0)
        training.send(signal.SIGTERM, 0)  # a second one changes nothing
        assert training.end() == [128 + signal.SIGTERM] * 2
        assert re.fullmatch(
            r"stopped by SIGTERM after step \d+ of 440; nothing was saved, since --out is not given", training.lines[-1]
        )
        assert training.errors() == ""


def test_a_rank_that_exits_before_an_epoch_is_noticed_at_once(tmp_path: Path) -> None:
    with Training(tmp_path, *QUICK, "--json", "/dev/full", ranks=2) as training:
        assert training.end() == [1, 1]
        assert "train.py: error: rank 0: the log '/dev/full' cannot be written: No space left" in training.errors()
        assert "train.py: error: rank 1 lost another rank" in training.errors()


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


def test_a_place_to_meet_that_does_not_work_is_an_error_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meet_at(url: str | None, rank: int, size: int = 2) -> dist.Store:
        return meet(url, rank, size, 0.2, None, Signals(saves=False))

    for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match="MASTER_ADDR expected, but not set; start them with torchrun"):
        meet_at(None, 0)
    for url in ("tcp://nowhere", "tcp://x:port", "http://x:1", "file:///nowhere/x", f"file://{tmp_path}"):
        with pytest.raises(UsageError, match="the ranks cannot meet at --init-method"):
            meet_at(url, 0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(RunError, match=r"not all 2 ranks could be reached at tcp://127\.0\.0\.1:"):
            meet_at(url, 1)
    store = meet_at(f"file://{tmp_path}/store", 0, 1)
    assert store.add("x", 1) == 1
    with pytest.raises(UsageError, match=r"--init-method file:.+ has been used by rank 0 before"):
        meet_at(f"file://{tmp_path}/store", 0, 1)


def test_a_bug_in_one_rank_prints_its_traceback_and_leaves_no_other_rank_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = train_module()
    plain = module.lr_factor

    def broken(step: int, *arguments: Any, **named: Any) -> float:
        return plain(step, *arguments, **named) / (os.environ["RANK"] == "0" or step < 2)

    monkeypatch.setattr(module, "lr_factor", broken)
    with Training(tmp_path, "--workers", "1", ranks=2) as training:
        assert training.end() == [1, 1]
        assert "ZeroDivisionError: float division by zero" in training.errors()
        assert "train.py: error: rank 0 lost another rank" in training.errors()


def test_a_diverging_network_is_an_error_and_is_not_saved(tmp_path: Path) -> None:
    words = ("--norm", "none", "--lr", "1e18", "--warmup", "0", "--epochs", "1", "--workers", "0")
    with Training(tmp_path, *words, "--out", str(tmp_path / "run"), ranks=2) as training:
        assert training.end() == [1, 1]
    assert "lower --lr, or add --clip-norm 1; this step was not saved" in training.errors()
    assert training.errors().count("error:") == 1
    assert not (tmp_path / "run" / "checkpoint.pt").exists()


def test_ranks_with_different_weights_are_an_error_and_nothing_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if DistributedDataParallel were missing.
    monkeypatch.setattr(train_module(), "DistributedDataParallel", lambda network, **_: network)
    with Training(tmp_path, *QUICK, "--out", str(tmp_path / "run"), ranks=2) as training:
        assert training.end() == [1, 1]
    assert training.errors().count("train.py: error: the weights differ between the ranks") == 1
    assert not (tmp_path / "run" / "checkpoint.pt").exists()
