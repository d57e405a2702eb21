"""The callback of transformers' ``Trainer``."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_callback import CallbackHandler

from .measure import Stall, say


class HFCallback(TrainerCallback):
    """Logs what training steps lose to data, through whatever the Trainer reports to.

    With the training's own logs: numbers whose names begin with ``data/``. At the end of training: one line on standard
    error that says how much that was on rank 0, and where. If the loader is no :class:`fastload.DataLoader` (see
    ``fastload run``), nothing is logged, and one line says so. The Trainer calls its reporters before the callbacks
    that it is given, with what is logged; so this one moves itself to the first place.
    """

    def __init__(self) -> None:
        self._stall: Stall | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **rest: Any) -> None:
        """Begin to count."""
        self._go_first()
        self._stall = Stall(train_dataloader)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **rest: Any) -> None:
        """Follow a loader that was made anew."""
        if self._stall is not None:
            self._stall.follow(train_dataloader)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **rest: Any) -> None:
        """Add the numbers to the logs of training: those with its loss, and the last."""
        if self._stall is None or logs is None or not ("loss" in logs or "train_runtime" in logs):
            return
        found = self._stall.numbers()
        logs.update(found)
        if state.log_history:
            state.log_history[-1].update(found)  # a copy that was made before

    def on_evaluate(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Neither an evaluation nor a checkpoint is a training step."""
        if self._stall is not None:
            self._stall.skip()

    on_save = on_evaluate

    def on_train_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Tell what it was."""
        if self._stall is not None:
            self._stall.end()

    def _go_first(self) -> None:
        """Move to the first place of the callbacks of the Trainer, which does not hand itself to them."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:  # the caller; a method of a derived class may stand between
            handler = frame.f_locals.get("self")
            if isinstance(handler, CallbackHandler) and self in handler.callbacks:
                # It iterates over this list: what comes before this place moves by one, so none is called twice.
                handler.callbacks.insert(0, handler.callbacks.pop(handler.callbacks.index(self)))
                return
            frame = frame.f_back
        say(
            "HFCallback cannot find the Trainer's list of callbacks in this version of transformers, so reporters "
            "before it log without its numbers; log those of fastload.callbacks.Stall in a callback of your own"
        )
