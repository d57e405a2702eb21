"""Whole trainings by others' loops: every loss is equal to the last digit, with torch's loader and with ours."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from kit.datasets import Made
from kit.libraries import Classifier, forget_settings, lightning_trainer, training_arguments

import fastload

Losses = list[float]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images in two classes."""
    found = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(3)
    for place in range(22):
        (found / str(place % 2)).mkdir(exist_ok=True)
        image = PIL.Image.fromarray(rng.integers(0, 256, (7, 9, 3), dtype=np.uint8))
        image.resize((50, 42), PIL.Image.Resampling.BICUBIC).save(found / f"{place % 2}/{place}.jpg")
    return found


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def losses(train: Callable[[Any], Losses], loader_class: Any, *, installed: bool) -> Losses:
    """Train from the same state of the global generators; return the losses, and what the generators give after it."""
    forget_settings()
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    if installed:
        fastload.install()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = train(loader_class)
    finally:
        fastload.uninstall()
    return [*found, random.random(), np.random.rand(), torch.rand(1).item()]


def assert_equal_trainings(train: Callable[[Any], Losses], *, install: bool = False) -> None:
    """Train with torch's class and with ours, which is given to ``train``, or installed before it."""
    torchs = torch.utils.data.DataLoader
    expected = losses(train, torchs, installed=False)
    found = losses(train, torchs if install else fastload.DataLoader, installed=install)
    assert len(expected) > 8
    assert found == expected


def small_network() -> torch.nn.Module:
    """Return a small network of convolutions, with dropout, which draws from torch's generator in this process."""
    first = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, stride=2), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
    return torch.nn.Sequential(
        first, torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(), torch.nn.Dropout(0.2), torch.nn.Linear(16, 2)
    )


WORKERS = [(0, False), (2, False), (2, True), (3, True)]
each_way = pytest.mark.parametrize(
    ("num_workers", "persistent"), WORKERS, ids=lambda one: f"{one}" if type(one) is int else "kept" * one or "ended"
)


@pytest.mark.parametrize("many_epochs", [False, True], ids=["loader", "multi-epochs loader"])
@pytest.mark.parametrize("prefetcher", [False, True], ids=["plain", "prefetcher"])
def test_timms_loop(folder: Path, prefetcher: bool, many_epochs: bool) -> None:
    timm_data = pytest.importorskip("timm.data")

    ours = []

    def train(_: Any) -> Losses:
        loader = timm_data.create_loader(
            timm_data.ImageDataset(str(folder)),
            input_size=(3, 32, 32),
            batch_size=4,
            is_training=True,
            auto_augment="rand-m9-mstd0.5-inc1",
            re_prob=0.25,
            num_workers=2,
            device=torch.device("cpu"),
            use_prefetcher=prefetcher,
            use_multi_epochs_loader=many_epochs,
        )
        ours.append(isinstance(getattr(loader, "loader", loader), fastload.DataLoader))
        model = small_network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        found = []
        for _ in range(2):
            for pixels, labels in loader:
                loss = torch.nn.functional.cross_entropy(model(pixels), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                found.append(loss.item())
        return found

    assert_equal_trainings(train, install=True)
    assert ours == [False, True]


def noisy(index: int) -> dict[str, torch.Tensor]:
    """Return a sample for a classifier, with noise of all three generators."""
    noise = [random.gauss(0, 1), np.random.normal() + float(torch.randn(()))]
    return {"features": torch.tensor([index / 10, 1.0]) + torch.tensor(noise), "labels": torch.tensor(index % 2)}


def masked(samples: Any) -> Any:
    """Collate, and draw a mask, as collators for language models do."""
    batch = torch.utils.data.default_collate(samples)
    batch["features"] = batch["features"] * (torch.rand(batch["features"].shape) > 0.2)
    return batch


LIMITS: list[dict[str, Any]] = [{}, {"limit_train_batches": 3}, {"max_steps": 9}, {"limit_val_batches": 1}]


@each_way
@pytest.mark.parametrize("limits", LIMITS, ids=lambda one: next(iter(one), "whole epochs"))
def test_lightnings_trainer(tmp_path: Path, num_workers: int, persistent: bool, limits: dict[str, Any]) -> None:
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = Classifier()
            self.found: Losses = []

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            loss = self.inner(**batch)["loss"]
            self.found.append(loss.item())
            return loss

        def validation_step(self, batch: Any, _: int) -> None:
            self.found.append(self.inner(**batch)["loss"].item())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def train(loader_class: Any) -> Losses:
        kept = {"num_workers": num_workers, "persistent_workers": persistent}
        loader = loader_class(Made(26, noisy), batch_size=2, shuffle=True, collate_fn=masked, **kept)
        validation = loader_class(Made(10, noisy), batch_size=4, **kept)
        module = Module()
        lightning_trainer(tmp_path, max_epochs=2, **limits).fit(module, loader, validation)
        if loader_class is fastload.DataLoader:
            assert loader.statistics().batches > 0 < validation.statistics().batches
        return module.found

    assert_equal_trainings(train)


STEPS: list[dict[str, Any]] = [{"num_train_epochs": 2}, {"max_steps": 9}]


@each_way
@pytest.mark.parametrize("steps", STEPS, ids=["two epochs", "max_steps"])
def test_transformers_trainer(tmp_path: Path, num_workers: int, persistent: bool, steps: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers")
    used = []

    def train(_: Any) -> Losses:
        options = steps | {"dataloader_num_workers": num_workers, "dataloader_persistent_workers": persistent}
        options |= {"logging_strategy": "steps", "logging_steps": 1, "eval_strategy": "steps", "eval_steps": 4}
        trainer = transformers.Trainer(
            Classifier(),
            training_arguments(tmp_path, save_strategy="no", **options),
            data_collator=masked,
            train_dataset=Made(26, noisy),
            eval_dataset=Made(10, noisy),
        )
        trainer.train()
        used.append(type(trainer.callback_handler.train_dataloader.base_dataloader))
        logs = trainer.state.log_history
        return [log[name] for log in logs for name in ("loss", "eval_loss", "grad_norm") if name in log]

    assert_equal_trainings(train, install=True)
    assert used == [torch.utils.data.DataLoader, fastload.DataLoader]
