"""Both packages of Lightning: the numbers in the loggers' files, the words on standard error, and the device stage."""

from __future__ import annotations

import csv
import importlib
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.datasets import Stream
from torch.utils.data import TensorDataset

import fastload
import fastload.callbacks
from fastload.errors import ConfigError

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")


@pytest.fixture(params=["lightning", "pytorch_lightning"])
def package(request: Any) -> str:
    return str(request.param)


def library(package: str) -> Any:
    return importlib.import_module("lightning.pytorch" if package == "lightning" else package)


def callback(package: str) -> Any:
    return importlib.import_module(f"fastload.callbacks.{package}").LightningCallback()


def model(package: str, seen: list[Any] | None = None, **hooks: Any) -> Any:
    class Model(library(package).LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            if seen is not None:
                seen.append(batch[0].data_ptr())
            loss: torch.Tensor = self.layer(batch[0]).mean()
            self.log("loss", loss)
            return loss

        def validation_step(self, batch: Any, _: int) -> None:
            self.layer(batch[0])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    for name, hook in hooks.items():
        setattr(Model, name, hook)
    return Model()


def trainer(package: str, folder: Path, *callbacks: Any, **options: Any) -> Any:
    settings: dict[str, Any] = {"max_epochs": 2, "log_every_n_steps": 4, "logger": False, "accelerator": "cpu"}
    settings |= {"devices": 1, "enable_checkpointing": False, "enable_progress_bar": False}
    settings |= {"enable_model_summary": False, "default_root_dir": folder, "callbacks": list(callbacks)}
    return library(package).Trainer(**settings | options)


def dataset() -> TensorDataset:
    return TensorDataset(torch.randn(48, 2))


def test_numbers_come_into_the_csv_file_at_logging_steps_and_words_to_standard_error(package, tmp_path, capsys):
    logger = importlib.import_module(f"{library(package).__name__}.loggers").CSVLogger(tmp_path)
    made: list[Any] = []

    def train_dataloader(self: Any) -> Any:
        made.append(fastload.DataLoader(dataset(), batch_size=2, num_workers=1, multiprocessing_context="fork"))
        return made[-1]

    # A loader made anew for each epoch, and steps of two batches.
    options = {"reload_dataloaders_every_n_epochs": 1, "accumulate_grad_batches": 2}
    fitted = trainer(package, tmp_path, callback(package), logger=logger, **options)
    validation = fastload.DataLoader(dataset(), batch_size=8)
    fitted.fit(model(package, train_dataloader=train_dataloader), val_dataloaders=validation)
    assert len(made) == 2
    with next(tmp_path.rglob("metrics.csv")).open() as file:
        logged = {int(row["step"]): row for row in csv.DictReader(file) if row["data/share"]}
    assert set(logged) == {3, 7, 11, 15, 19, 23}, "the steps of Lightning's own rows"
    for found in logged.values():
        assert 0.0 < float(found["data/share"]) <= 1.0
        assert float(found["data/samples_per_s"]) > 0.0
        assert found["data/batches_ready"]
    assert logged[3]["data/startup"]
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fastload: ")]
    assert len(told) == 1
    assert "of the step was lost to data (by the host's clock)" in told[0]


def test_the_callback_of_the_package_that_is_imported_is_given(monkeypatch):
    import sys

    importlib.import_module("fastload.callbacks.pytorch_lightning")
    importlib.import_module("fastload.callbacks.lightning")
    from lightning.pytorch import Callback

    assert issubclass(fastload.callbacks.LightningCallback, Callback)
    monkeypatch.delitem(sys.modules, "lightning.pytorch")
    assert fastload.callbacks.LightningCallback.__module__ == "fastload.callbacks.pytorch_lightning"


# -- device= and batch_transform= -------------------------------------------------------------------------------------


def test_what_the_batch_transform_makes_on_the_device_is_trained_on_without_another_copy(package, tmp_path):
    made: list[Any] = []
    seen: list[Any] = []

    def doubled(batch: Any) -> Any:
        made.append([2 * part for part in batch])  # kept, so that no other lies there
        return made[-1]

    loader = fastload.DataLoader(dataset(), batch_size=4, num_workers=2, device="cpu", batch_transform=doubled)
    trainer(package, tmp_path, max_epochs=1).fit(model(package, seen), loader)
    assert seen == [batch[0].data_ptr() for batch in made]
    assert len(seen) == 12


STREAM = Stream(lambda: iter(torch.randn(24, 1, 2)))


@pytest.mark.parametrize(
    ("data", "changed", "error"),
    [
        (dataset(), {"device": "cuda:1"}, r"device='cuda:1', and Lightning would move every batch from there to 'cpu'"),
        (dataset(), {"device": "cuda"}, "transfer_batch_to_device of your own"),
        (STREAM, {"device": "cpu", "fixed_buffers": True}, r"makes a batch invalid .* leave fixed_buffers out"),
    ],
)
def test_what_lightning_would_undo_is_an_error(package, tmp_path, monkeypatch, data, changed, error):
    loader = fastload.DataLoader(data, batch_size=4)
    vars(loader).update(changed)  # as on a machine that has them
    monkeypatch.setattr("fastload.device.prefetch.device_or_cpu", lambda device: torch.device("cpu"))
    with pytest.raises(ConfigError, match=error):
        trainer(package, tmp_path).fit(model(package), loader)


def test_a_module_that_moves_its_batches_itself_is_left_alone(package, tmp_path):
    moved = []

    def transfer_batch_to_device(self: Any, batch: Any, device: Any, index: int) -> Any:
        moved.append(device)
        return batch

    loader = fastload.DataLoader(dataset(), batch_size=4, device="cpu", keep_on_host=(0,))
    fitted = model(package, transfer_batch_to_device=transfer_batch_to_device)
    trainer(package, tmp_path, max_epochs=1).fit(fitted, loader)
    assert len(moved) == 12
