"""transformers' Trainer: numbers in its logs and its reporters' files, the words at the end, and the device stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers
from kit.datasets import Made
from kit.libraries import Classifier, rows, training_arguments

import fastload
from fastload.callbacks import HFCallback


class Reporter(transformers.TrainerCallback):
    """Keeps what a reporter is given."""

    def __init__(self) -> None:
        self.logged: list[dict[str, Any]] = []

    def on_log(self, *_: Any, logs: Any = None, **__: Any) -> None:
        self.logged.append(dict(logs))


def trained(folder: Path, *callbacks: Any, checkpoint: str | None = None, **options: Any) -> Any:
    """Train two epochs of six steps with fastload's loaders; the fixture of all these tests ends that."""
    fastload.install()
    settings: dict[str, Any] = {"num_train_epochs": 2, "logging_strategy": "steps", "logging_steps": 3}
    arguments = training_arguments(folder, **settings | {"save_strategy": "no"} | options)
    data = Made(24, rows)
    training = transformers.Trainer(
        Classifier(), arguments, train_dataset=data, eval_dataset=data, callbacks=list(callbacks)
    )
    training.train(resume_from_checkpoint=checkpoint)
    return training


@pytest.mark.parametrize("kinds", [(HFCallback,), (type("Derived", (HFCallback,), {}), HFCallback)], ids=["one", "two"])
def test_reporters_get_the_numbers_with_the_loss_and_each_callback_tells_them_once(tmp_path, capsys, kinds):
    reporter = Reporter()
    # Evaluations and checkpoints are no steps, and have no numbers.
    between = {"eval_strategy": "steps", "eval_steps": 3, "save_strategy": "steps", "save_steps": 3}
    training = trained(tmp_path, reporter, *(kind() for kind in kinds), dataloader_num_workers=2, **between)
    assert {type(one) for one in training.callback_handler.callbacks[: len(kinds)]} == {*kinds}
    losses = [logs for logs in reporter.logged if "loss" in logs]
    assert len(losses) == 4
    for logs in losses:
        assert 0.0 < logs["data/share"] <= 1.0
        assert all(type(value) is float for name, value in logs.items() if name[:5] == "data/")
    evaluations = [logs for logs in reporter.logged if "eval_loss" in logs]
    assert len(evaluations) == 4
    assert not any(name[:5] == "data/" for logs in evaluations for name in logs)
    if len(kinds) == 1:
        logged = [one["data/share"] for one in training.state.log_history if "loss" in one]
        assert logged == [logs["data/share"] for logs in losses]
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fastload: ")]
    assert len(told) == len(kinds)
    assert all("of the step was lost to data" in line for line in told)


def test_a_resumed_training_is_measured_in_the_rest_of_its_epoch(tmp_path):
    trained(tmp_path, save_strategy="steps", save_steps=2)
    reporter = Reporter()
    trained(tmp_path, reporter, HFCallback(), checkpoint=str(tmp_path / "checkpoint-2"))
    losses = [logs for logs in reporter.logged if "loss" in logs]
    assert len(losses) == 4, "with the steps of the state that it resumes"
    assert all("data/share" in logs for logs in losses)


def test_an_unknown_place_of_the_callback_is_told_and_the_training_goes_on(capsys):
    callback, loader = HFCallback(), fastload.DataLoader(Made(24, rows), batch_size=4)
    state = transformers.TrainerState(global_step=2)
    callback.on_train_begin(None, state, None, train_dataloader=loader)
    list(loader)
    callback.on_train_end(None, state, None)
    first, last = capsys.readouterr().err.splitlines()
    assert "cannot find the Trainer's list of callbacks" in first
    assert "of the step was lost to data" in last
