"""The callback of ``pytorch_lightning``."""

from pytorch_lightning.callbacks import Callback

from .lightning_hooks import LightningHooks


class LightningCallback(LightningHooks, Callback):
    """:class:`~.lightning_hooks.LightningHooks` as a callback of ``pytorch_lightning``."""
