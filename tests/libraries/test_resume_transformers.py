"""The Trainer of transformers, resumed from a checkpoint in the middle of an epoch: the very same samples."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from kit.libraries import training_arguments
from resumed_loaders import Noisy, in_order, keyed, shared_out

import fastload

STEPS = 7


class Rows(Noisy):
    """Samples as the Trainer takes them."""

    def __getitem__(self, index: int) -> Any:
        return {"features": super().__getitem__(index), "labels": torch.tensor(0.0)}


class Recorder(torch.nn.Module):
    """Notes the batches that it is trained with."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[list[Any]] = []

    def forward(self, features: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen.append(features.tolist())
        return {"loss": self.layer(features[:, :1].float()).mean()}


def arguments(folder: Path, **options: Any) -> Any:
    settings = {"num_train_epochs": 3, "save_strategy": "steps", "save_steps": 1, "remove_unused_columns": False}
    return training_arguments(folder, **settings | options)


@pytest.mark.parametrize("make", [keyed, in_order, functools.partial(shared_out, 1)])
def test_a_resumed_training_has_the_samples_and_the_augmentation_of_the_whole_one(make: Any, tmp_path: Path) -> None:
    class OurTrainer(transformers.Trainer):
        def get_train_dataloader(self) -> Any:
            prepared = self.accelerator.prepare(make(samples=Rows()))
            assert (type(prepared.base_dataloader), prepared.base_dataloader.seed) == (fastload.DataLoader, loader.seed)
            return prepared

    first, loader = Recorder(), make(samples=Rows())
    OurTrainer(first, arguments(tmp_path), train_dataset=Rows()).train()
    assert first.seen == [batch["features"].tolist() for _ in range(3) for batch in loader]
    for step in (STEPS, 9):
        second = Recorder()
        trainer = OurTrainer(second, arguments(tmp_path, save_strategy="no"), train_dataset=Rows())
        trainer.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
        assert second.seen == first.seen[step:], step
