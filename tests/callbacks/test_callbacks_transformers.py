"""transformers' Trainer: numbers in its logs and its reporters' files, the words at the end, and the device stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kit.libraries
import pytest
import torch
import transformers
from kit.datasets import Made
from kit.libraries import rows, training_arguments

import fastload
from fastload.callbacks import HFCallback


class Classifier(kit.libraries.Classifier):
    """Keeps where the features lie that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def forward(self, features: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen.append(features.data_ptr())
        return super().forward(features, labels)


class Reporter(transformers.TrainerCallback):
    """Keeps what a reporter is given."""

    def __init__(self) -> None:
        self.logged: list[dict[str, Any]] = []

    def on_log(self, *_: Any, logs: Any = None, **__: Any) -> None:
        self.logged.append(dict(logs))


def arguments(folder: Path, **options: Any) -> Any:
    settings: dict[str, Any] = {"num_train_epochs": 2, "logging_strategy": "steps", "logging_steps": 3}
    settings |= {"save_strategy": "no"}
    return training_arguments(folder, **settings | options)


def trainer(folder: Path, *callbacks: Any, **options: Any) -> Any:
    data = Made(24, rows)
    given = arguments(folder, **options)
    return transformers.Trainer(
        Classifier(), given, train_dataset=data, eval_dataset=data, callbacks=list(callbacks) or None
    )


@pytest.fixture
def installed() -> None:
    """The Trainer makes fastload's loaders; the fixture of all these tests ends that."""
    fastload.install()


class Derived(HFCallback):
    """A class of a user's."""

    def on_train_begin(self, *given: Any, **named: Any) -> None:
        super().on_train_begin(*given, **named)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("kinds", [(HFCallback,), (Derived, HFCallback)], ids=["one", "two"])
def test_reporters_get_the_numbers_with_the_loss_and_each_callback_tells_them_once(tmp_path, capsys, kinds):
    reporter = Reporter()
    training = trainer(tmp_path, reporter, *(kind() for kind in kinds), dataloader_num_workers=2)
    training.train()
    assert {type(one) for one in training.callback_handler.callbacks[: len(kinds)]} == {*kinds}
    losses = [logs for logs in reporter.logged if "loss" in logs]
    assert len(losses) == 4
    for logs in losses:
        assert 0.0 < logs["data/share"] <= 1.0
        assert all(type(value) is float for name, value in logs.items() if name[:5] == "data/")
    if len(kinds) == 1:
        logged = [one["data/share"] for one in training.state.log_history if "loss" in one]
        assert logged == [logs["data/share"] for logs in losses]
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fastload: ")]
    assert len(told) == len(kinds)
    assert all("of the step was lost to data" in line for line in told)


@pytest.mark.usefixtures("installed")
def test_evaluations_and_checkpoints_are_no_steps_and_have_no_numbers(tmp_path):
    reporter = Reporter()
    options = {"eval_strategy": "steps", "eval_steps": 3, "save_strategy": "steps", "save_steps": 3}
    trainer(tmp_path, HFCallback(), reporter, **options).train()
    evaluations = [logs for logs in reporter.logged if "eval_loss" in logs]
    assert len(evaluations) == 4
    assert not any(name[:5] == "data/" for logs in evaluations for name in logs)


@pytest.mark.usefixtures("installed")
def test_a_resumed_training_is_measured_in_the_rest_of_its_epoch(tmp_path):
    trainer(tmp_path, save_strategy="steps", save_steps=2).train()
    reporter = Reporter()
    again = trainer(tmp_path, reporter, HFCallback())
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
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


# -- device= and batch_transform= -------------------------------------------------------------------------------------


def test_device_and_batch_transform_may_be_defaults_of_the_installed_class(tmp_path):
    made: list[Any] = []

    def doubled(batch: Any) -> Any:
        made.append({**batch, "features": 2 * batch["features"]})
        return made[-1]

    fastload.install(device="cpu", batch_transform=doubled)
    training = trainer(tmp_path, num_train_epochs=1)
    training.train()
    assert training.model.seen == [batch["features"].data_ptr() for batch in made]
    assert len(made) == 6
