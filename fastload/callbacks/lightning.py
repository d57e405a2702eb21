"""The callback of ``lightning``."""

from lightning.pytorch.callbacks import Callback

from .lightning_hooks import LightningHooks


class LightningCallback(LightningHooks, Callback):
    """:class:`~.lightning_hooks.LightningHooks` as a callback of ``lightning``."""
