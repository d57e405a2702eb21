"""The callback of transformers' ``Trainer``."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_callback import CallbackHandler

from .measure import Stall, say


class HFCallback(TrainerCallback):
    """Logs what training steps lose to data, through whatever the Trainer reports to.

    With the training's own logs: numbers whose names begin with ``data/``. At the end of training: one line on standard
    error that says which stage is to blame, and the fix. The Trainer calls its reporters before the callbacks that it
    is given, with what is logged; so this one moves itself to the first place.

    Raises:
        ConfigError: at the beginning of training, if the loader is no ``DataLoader``.
    """

    def __init__(self) -> None:
        self._stall: Stall | None = None
        self._leave_skipping: Callable[[], None] = lambda: None

    def on_train_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **rest: Any) -> None:
        """Begin to measure."""
        handler = self._handler()
        self._go_first(handler)
        self._close()  # a training that an exception has ended
        self._stall = Stall(train_dataloader)
        if state.global_step and handler is not None:
            self._follow_skipping(self._stall, handler)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **rest: Any) -> None:
        """Follow the loader of whole epochs again."""
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
        """An evaluation is no training step."""
        if self._stall is not None:
            self._stall.skip()

    def on_save(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Nor is a checkpoint."""
        if self._stall is not None:
            self._stall.skip()

    def on_train_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Tell what it was."""
        if self._stall is not None:
            say(self._stall.last_line())
            self._close()

    def _close(self) -> None:
        self._leave_skipping()
        stall, self._stall = self._stall, None
        if stall is not None:
            stall.close()

    def _follow_skipping(self, stall: Stall, handler: CallbackHandler) -> None:
        """Follow the loader that a resumed Trainer makes for the rest of its epoch, and shows no callback."""
        trainer: Any = sys.modules["transformers.trainer"]
        skip = trainer.skip_first_batches

        @functools.wraps(skip)
        def skip_and_follow(*arguments: Any, **named: Any) -> Any:
            leave()
            loader = skip(*arguments, **named)
            # After an exception in the training it is another one that comes here first.
            if self._stall is stall and any(getattr(one, "callback_handler", None) is handler for one in _callers()):
                stall.follow(loader)
            return loader

        def leave() -> None:
            if trainer.skip_first_batches is skip_and_follow:  # else somebody has wrapped it, and calls this one
                trainer.skip_first_batches = skip

        self._leave_skipping = leave
        trainer.skip_first_batches = skip_and_follow

    def _handler(self) -> CallbackHandler | None:
        """Return the caller that has this callback: the Trainer does not hand itself to its callbacks."""
        for one in _callers():
            if isinstance(one, CallbackHandler) and self in getattr(one, "callbacks", ()):
                return one
        return None

    def _go_first(self, handler: CallbackHandler | None) -> None:
        """Move to the first place of the caller's callbacks."""
        if handler is None or not isinstance(handler.callbacks, list):
            say(
                "HFCallback cannot find the Trainer's list of callbacks in this version of transformers, so reporters "
                "that come before it log without its numbers, and the rest of a resumed epoch is not measured; the "
                "numbers of fastload.callbacks.Stall can be logged in a callback of your own"
            )
            return
        # The handler iterates over this list: what comes before this place moves by one, so none is called twice.
        callbacks = handler.callbacks
        callbacks.insert(0, callbacks.pop(callbacks.index(self)))


def _callers() -> Iterator[Any]:
    """Yield the objects whose methods are running, from the innermost on: a derived class may stand between."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame.f_locals.get("self")
        frame = frame.f_back
