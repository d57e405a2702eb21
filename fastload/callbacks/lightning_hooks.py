"""Hooks shared by the callbacks of ``lightning`` and ``pytorch_lightning``."""

from __future__ import annotations

from typing import Any

from .measure import Stall


class LightningHooks:
    """Logs what training steps lose to data, through the Trainer's loggers.

    At the Trainer's logging steps: numbers whose names begin with ``data/``. At the end of training: one line on
    standard error that says how much that was on rank 0, and where. Of several training loaders the first counts. If it
    is no :class:`fastload.DataLoader`, nothing is logged, and one line says so.
    """

    def __init__(self) -> None:
        super().__init__()
        self._stall: Stall | None = None
        self._batches = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to count."""
        self._stall, self._batches = Stall(_train_loader(trainer)), 0

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Follow a loader that was made anew."""
        if self._stall is not None:
            self._stall.follow(_train_loader(trainer))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log at the Trainer's logging steps."""
        self._batches += 1
        every = trainer.log_every_n_steps * trainer.accumulate_grad_batches
        if every and self._batches % every == 0:
            self._log(trainer)

    def on_validation_start(self, *_: Any) -> None:
        """Neither a validation nor a checkpoint is a training step."""
        if self._stall is not None:
            self._stall.skip()

    on_save_checkpoint = on_validation_start

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Log what is left, and tell what it was."""
        self._log(trainer)
        if self._stall is not None:
            self._stall.end()

    def _log(self, trainer: Any) -> None:
        found = {} if self._stall is None else self._stall.numbers()
        step = max(0, trainer.global_step - 1)  # that of the row that Lightning writes after this hook
        for logger in trainer.loggers if found else ():
            logger.log_metrics(found, step=step)


def _train_loader(trainer: Any) -> Any:
    loader = trainer.train_dataloader
    while isinstance(loader, dict | list | tuple) and loader:
        loader = next(iter(loader.values() if isinstance(loader, dict) else loader))
    return loader
