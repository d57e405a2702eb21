"""The setting from which searches begin."""

from __future__ import annotations

from fastload.tune.settings import Setting

PRESENT = Setting(
    num_workers=2,
    worker_method="multiprocessing",
    prefetch_factor=2,
    fuse=False,
    chunk_size=None,
    resident=None,
)
