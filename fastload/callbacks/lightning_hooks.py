"""What the callbacks of ``lightning`` and ``pytorch_lightning`` do: the same, for classes of two packages."""

from __future__ import annotations

from typing import Any

from ..base.cgroups import processors
from ..engine.stall import KEEPS_UP, PREFIX, percent
from .measure import Stall, say


class LightningHooks:
    """Logs what training steps lose to data, through the Trainer's loggers.

    At the Trainer's logging steps: numbers whose names begin with ``data/``. At the end of training: one line on
    standard error that says which stage is to blame, and the fix. Where Lightning has warned of ``num_workers``, a line
    after the first logging step says what was measured. Of several training loaders the first is measured.

    Raises:
        ConfigError: at the beginning of training, if the loader is no ``DataLoader``.
    """

    def __init__(self) -> None:
        super().__init__()
        self._stall: Stall | None = None
        self._batches = self._every = 0
        self._is_warned = False

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to measure."""
        self._stall = Stall(*_train_loader(trainer))
        self._batches = 0
        self._every = trainer.log_every_n_steps * trainer.accumulate_grad_batches
        # As Lightning decides; without the warning nobody has been told anything yet.
        suggested = processors() // trainer.num_devices - 1
        self._is_warned = self._stall.loads.num_workers < 2 and suggested > 1

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Follow a loader that was made anew."""
        if self._stall is not None:
            self._stall.follow(*_train_loader(trainer))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log at the Trainer's logging steps."""
        self._batches += 1
        if self._every and self._batches % self._every == 0:
            self._log(trainer)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """A validation is no training step."""
        if self._stall is not None:
            self._stall.skip()

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        """Nor is a checkpoint."""
        if self._stall is not None:
            self._stall.skip()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Log what is left, and tell what it was."""
        if self._stall is not None:
            self._log(trainer)
            say(self._stall.last_line())
            self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Measure no longer."""
        self._close()

    def _close(self) -> None:
        stall, self._stall = self._stall, None
        if stall is not None:
            stall.close()

    def _log(self, trainer: Any) -> None:
        assert self._stall is not None
        found = self._stall.numbers()
        if not found:
            return
        step = max(0, trainer.global_step - 1)  # that of the row that Lightning writes after this hook
        for logger in trainer.loggers:
            logger.log_metrics(found, step=step)
        if self._is_warned:
            self._is_warned = False
            workers, share = self._stall.loads.num_workers, found[PREFIX + "share"]
            then = "more workers would not help" if share < KEEPS_UP else "more workers may help"
            say(
                f"Lightning has warned that num_workers={workers} may be a bottleneck. Measured: {percent(share)} of "
                f"the step is lost to data; {then}"
            )


def _train_loader(trainer: Any) -> tuple[Any, Any]:
    """Return the first of the loaders that the Trainer iterates, and the iterator over it, which has begun by now."""
    combined = trainer.fit_loop._combined_loader
    iterators = getattr(combined._iterator, "iterators", None)
    return combined.flattened[0], iterators[0] if iterators else None
