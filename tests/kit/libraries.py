"""Trainers of libraries, as small as they can be made."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

import fastload


def forget_settings() -> None:
    """Uninstall fastload's class, and forget what Accelerate keeps in shared objects."""
    fastload.uninstall()
    if "accelerate" in sys.modules:
        from accelerate.state import AcceleratorState, GradientState, PartialState

        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        PartialState._reset_state()


def accelerator(**options: Any) -> Any:
    """Return an Accelerator that loads data with these options."""
    import accelerate

    configuration = accelerate.utils.DataLoaderConfiguration(**options)
    return accelerate.Accelerator(cpu=True, dataloader_config=configuration)


def lightning_trainer(folder: Path, *callbacks: Any, **options: Any) -> Any:
    """Return Lightning's Trainer; it writes checkpoints only by these callbacks."""
    import lightning

    settings = {"accelerator": "cpu", "devices": 1, "logger": False, "default_root_dir": folder}
    settings |= {"enable_checkpointing": bool(callbacks), "callbacks": list(callbacks)}
    return lightning.Trainer(**settings | {"enable_progress_bar": False, "enable_model_summary": False} | options)


def training_arguments(folder: Path, **options: Any) -> Any:
    """Return the arguments of transformers' Trainer."""
    import transformers

    settings = {"output_dir": str(folder), "use_cpu": True, "per_device_train_batch_size": 4, "report_to": "none"}
    settings |= {"logging_strategy": "no", "disable_tqdm": True}
    return transformers.TrainingArguments(**settings | options)


def rows(index: int) -> dict[str, torch.Tensor]:
    """Return a sample for :class:`Classifier`."""
    return {"features": torch.tensor([float(index), 1.0]), "labels": torch.tensor(index % 2)}


class Classifier(torch.nn.Module):
    """A model for transformers' Trainer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)

    def forward(self, features: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layer(features)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}
