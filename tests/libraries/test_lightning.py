"""Lightning and Fabric iterate with our class, also after they have built the loader anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from kit.libraries import lightning_trainer
from lightning.fabric.utilities.data import _replace_dunder_methods
from lightning.fabric.utilities.data import _update_dataloader as fabric_update
from lightning.pytorch.utilities.data import _update_dataloader as lightning_update
from torch.utils.data import DistributedSampler, TensorDataset

import fastload


class Classifier(lightning.LightningModule):
    """A linear classifier; its hook makes the loader where none is given to ``fit``."""

    def __init__(self, dataset: TensorDataset | None = None) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)
        self.dataset = dataset

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        features, labels = batch
        return torch.nn.functional.cross_entropy(self.layer(features), labels)

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        self.training_step(batch, 0)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self) -> Any:
        return fastload.DataLoader(self.dataset, batch_size=4, shuffle=True, num_workers=1, seed=5)


def trainer(folder: Path, **options: Any) -> lightning.Trainer:
    return lightning_trainer(folder, max_epochs=2, **options)


def test_fit_iterates_a_loader_made_in_its_hook_where_constructors_are_wrapped(dataset, tmp_path):
    training = trainer(tmp_path)
    training.fit(Classifier(dataset))
    used: Any = training.train_dataloader
    assert type(used) is fastload.DataLoader
    assert (used.seed, used.statistics().batches) == (5, 12)


@pytest.mark.parametrize("update", [lightning_update, fabric_update])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_loader_built_anew_around_a_distributed_sampler_keeps_our_arguments(dataset, update, wrapped):
    own: dict[str, Any] = {"seed": 7, "chunk_size": 2, "worker_method": "thread"}
    arguments: dict[str, Any] = {"batch_size": 4, "num_workers": 1, "prefetch_factor": 3, **own}
    if wrapped:
        with _replace_dunder_methods(torch.utils.data.DataLoader, "dataset"):
            loader: Any = fastload.DataLoader(dataset, **arguments)
    else:
        loader = fastload.DataLoader(dataset, **arguments)
    sampler: Any = DistributedSampler(dataset, num_replicas=2, rank=1, shuffle=False)
    built = update(loader, sampler)
    assert type(built) is fastload.DataLoader
    assert {name: getattr(built, name) for name in arguments} == arguments
    assert built.sampler is sampler
    labels = torch.cat([labels for _, labels in built])
    assert labels.tolist() == [1] * 12
    assert built.statistics().batches == 3
    assert loader.statistics().batches == 0


def test_a_prediction_loader_keeps_our_class(dataset: TensorDataset, tmp_path: Path) -> None:
    """For predictions Lightning puts a sampler of its own around the batch sampler."""

    class Predictor(Classifier):
        def predict_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
            return self.layer(batch[0])

    training = trainer(tmp_path)
    predicted = training.predict(Predictor(), fastload.DataLoader(dataset, batch_size=5, num_workers=1))
    assert predicted is not None
    assert [len(rows) for rows in predicted] == [5, 5, 5, 5, 4]
    used: Any = training.predict_dataloaders
    assert type(used) is fastload.DataLoader
    assert used.statistics().batches == 5


def test_fabric_iterates_our_class(dataset: TensorDataset) -> None:
    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    loader = fastload.DataLoader(dataset, batch_size=4, num_workers=1)
    prepared: Any = fabric.setup_dataloaders(loader)
    assert len(list(prepared)) == 6
    assert prepared._dataloader.statistics().batches == 6
