"""The Trainer of transformers iterates our class: installed; test_resume_transformers.py has its hook."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers
from kit.datasets import Made
from kit.libraries import Classifier, rows, training_arguments

import fastload


class Watch(transformers.TrainerCallback):
    """Remembers the loaders that the Trainer uses."""

    train: Any = None
    evaluation: Any = None

    def on_train_end(self, *_: Any, train_dataloader: Any = None, eval_dataloader: Any = None, **__: Any) -> None:
        self.train, self.evaluation = train_dataloader, eval_dataloader


def arguments(folder: Path, **options: Any) -> Any:
    options |= {"num_train_epochs": 2, "per_device_eval_batch_size": 8, "dataloader_num_workers": 2}
    return training_arguments(folder, save_strategy="no", **options)


@pytest.mark.parametrize("persistent", [False, True])
def test_train_iterates_our_class_once_it_is_installed(tmp_path: Path, persistent: bool) -> None:
    fastload.install()
    watch = Watch()
    trainer = transformers.Trainer(
        Classifier(),
        arguments(tmp_path, eval_strategy="epoch", dataloader_persistent_workers=persistent),
        train_dataset=Made(24, rows),
        eval_dataset=Made(24, rows),
        callbacks=[watch],
    )
    assert trainer.train().global_step == 12
    assert type(watch.train.base_dataloader) is fastload.DataLoader
    assert watch.train.statistics().batches == 12
    assert watch.train.statistics().num_workers == 2
    assert watch.evaluation.statistics().batches in (3, 6)  # a loader for each evaluation unless workers persist
    watch.train.close()
    watch.evaluation.close()
