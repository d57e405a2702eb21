"""Runs that are killed, stopped or lose a rank resume with the same samples, and the same bits where promised."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest
from kit.comparison import difference
from torch import nn
from trainings import LIMIT_S, Training, samples, state_in, train_module

# 22 steps an epoch, with everything that has a state: momentum, averages, batch statistics.
EPOCHS, STEPS = 2, 22
RUN = (
    *("--epochs", str(EPOCHS), "--save-every", "3", "--seed", "5", "--deterministic"),
    *("--ema-decay", "0.9", "--lookahead", "4", "--mixup", "0.2", "--clip-norm", "2", "--workers", "1"),
)

pytestmark = pytest.mark.slow


def run(folder: Path, name: str, ranks: int, *more: str) -> Training:
    """Start or resume a run; the samples of each start are written to their own files.

    Its network has dropout, whose random numbers must continue too.
    """
    module: Any = train_module()
    plain = module.build_network

    def with_dropout(*arguments: Any, **named: Any) -> nn.Module:
        network: nn.Sequential = plain(*arguments, **named)
        return network.insert(len(network) - 1, nn.Dropout(0.1))

    module.build_network = with_dropout  # inherited by the forked ranks
    try:
        words = (*RUN, *more, "--out", str(folder), "--debug-samples", str(folder / name))
        return Training(folder, *words, ranks=ranks)
    finally:
        module.build_network = plain


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an uninterrupted run on two ranks."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    with run(folder, "samples", 2) as training:
        training.finish()
        assert [epoch["test_images"] for epoch in training.logged("epoch")] == [360, 360]
    assert state_in(folder)["step"] == EPOCHS * STEPS
    return folder


def test_killed_and_resumed_on_other_numbers_of_ranks_gives_the_same_samples(
    uninterrupted: Path, tmp_path: Path
) -> None:
    for name, ranks, killed_at in [("first", 2, 8), ("second", 1, STEPS + 5)]:
        with run(tmp_path, name, ranks) as training:
            training.until(killed_at)
            training.kill()
    with run(tmp_path, "third", 2) as training:
        training.finish()
    expected = samples(uninterrupted, 2)
    parts = [samples(tmp_path, ranks, name) for name, ranks in [("first", 2), ("second", 1), ("third", 2)]]
    assert sorted(expected) == list(range(EPOCHS * STEPS))
    assert set().union(*parts) == set(expected)
    for part in parts:
        for step, times in part.items():
            assert times == expected[step], f"step {step} had other samples"
    assert min(parts[1]) > 0  # it resumed,
    assert min(parts[2]) > STEPS  # and in the middle of the second epoch


def test_stopped_then_killed_and_resumed_on_as_many_ranks_gives_bit_identical_weights(
    uninterrupted: Path, tmp_path: Path
) -> None:
    with run(tmp_path, "first", 2) as training:
        training.until(5)
        training.send(signal.SIGTERM, 1)  # one rank only: all stop together
        training.finish()
        stopped = training.logged("stop")[0]["step"]
        assert training.lines[-1] == (
            f"stopped by SIGTERM after step {stopped} of {EPOCHS * STEPS}; the same command resumes from there"
        )
    assert state_in(tmp_path)["step"] == stopped
    with run(tmp_path, "second", 2, "--workers", "0") as training:  # their number may change
        training.until(STEPS + 4)
        training.kill()
    with run(tmp_path, "third", 2) as training:
        training.finish()
        assert STEPS < training.logged("start")[0]["step"] < 2 * STEPS
    ours, theirs = state_in(tmp_path), state_in(uninterrupted)
    for name in ("step", "model", "average", "lookahead", "optimizer", "loader", "generators"):
        assert difference(ours[name], theirs[name], name) is None
    assert ours["loss_sum"] == pytest.approx(theirs["loss_sum"])  # added up in another order


def test_a_rank_that_dies_or_stops_answering_is_a_clear_error_and_no_hang(tmp_path: Path) -> None:
    for name, number, limit in [("killed", signal.SIGKILL, "60"), ("frozen", signal.SIGSTOP, "4")]:
        folder = tmp_path / name
        folder.mkdir()
        words = ("--epochs", "200", "--save-every", "2", "--workers", "0", "--timeout", limit, "--out", str(folder))
        with Training(folder, *words, ranks=2) as training:
            training.until(4)
            training.send(number, 1)
            training.processes[0].join(LIMIT_S)
            assert training.processes[0].exitcode == 1, training.errors()
            assert re.search(
                r"train.py: error: rank 0 lost another rank, which has exited or does not respond \(.+\); the last "
                rf"checkpoint is in '{re.escape(str(folder))}': the same command resumes from it\n",
                training.errors(),
            ), training.errors()
            training.send(signal.SIGKILL, 1)
            training.end()
        assert state_in(folder)["step"] >= 2


def test_a_full_disk_exits_the_run_and_keeps_the_last_checkpoint(tmp_path: Path) -> None:
    words = ("--save-every", "4", "--epochs", "2", "--workers", "0", "--out", str(tmp_path))
    path = tmp_path / "checkpoint.pt"
    with Training(tmp_path, *words) as training:
        training.until(6)
        training.send(signal.SIGTERM, 0)
        training.finish()
    before = path.read_bytes()
    with Training(tmp_path, *words, ranks=2, file_bytes=len(before) // 2) as training:
        assert training.end() == [1, 1]
        assert re.fullmatch(
            rf"train.py: error: the checkpoint of step \d+, [\d,]+ bytes, could not be written to '{path}': File too "
            r"large; the previous checkpoint is unchanged; free some space and start the same command again\n",
            training.errors(),
        ), training.errors()
    assert path.read_bytes() == before
    assert not path.with_name("checkpoint.pt.part").exists()
    with Training(tmp_path, *words) as training:
        training.finish()
    assert state_in(tmp_path)["step"] == 2 * STEPS


def test_an_unusable_checkpoint_is_an_error_and_is_not_changed(tmp_path: Path) -> None:
    words = ("--epochs", "1", "--limit-batches", "2", "--workers", "0", "--out", str(tmp_path))
    with Training(tmp_path, *words) as training:
        training.finish()
    path = tmp_path / "checkpoint.pt"
    good = path.read_bytes()
    path.write_bytes(good[:-100])
    with Training(tmp_path, *words, ranks=2) as training:
        assert training.end() == [1, 1]
        assert training.errors().count("train.py: error: ") == 1
        assert "is not a checkpoint, or truncated" in training.errors()
    assert path.read_bytes() == good[:-100]
    path.write_bytes(good)
    weights = next(iter(state_in(tmp_path)["model"].values())).numpy().tobytes()
    place = good.index(weights)
    path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
    with Training(tmp_path, *words) as training:
        assert training.end() == [1]
        assert re.search(r"is damaged: the checksum of '.+' is wrong", training.errors())
    path.write_bytes(good)
    with Training(tmp_path, *words, "--lr", "0.2", "--seed", "1") as training:
        assert training.end() == [1]
        assert "--lr was 0.1 and is now 0.2; --seed was 0 and is now 1; use the same settings" in training.errors()
    assert path.read_bytes() == good
