"""Measures what a sample takes in each stage, on a few samples, by recording them at level 2: for :mod:`.dominant`."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any

from .api import profile
from .workers import stages_of

BATCH = 4
"""Samples in a batch: the first batch does not count."""
_BATCHES, _SECONDS = 6, 2.0
"""How many are loaded, or for how long if that is less, but at least two."""


def measured_stages_ms(batches: Callable[[], Iterator[Any]]) -> dict[str, float]:
    """Load some batches, of about :data:`BATCH` samples, and return what a sample takes in each stage, in ms.

    Blocking: for 2 s at most, or until there are two batches.

    Raises:
        ConfigError: this process is being recorded.
        TraceError: nothing was recorded.
        Exception: what the dataset raises.
    """
    recorded = profile(level=2)
    try:
        with recorded:
            begun = time.perf_counter()
            for number, _ in enumerate(batches(), 1):
                if number == _BATCHES or (number >= 2 and time.perf_counter() - begun > _SECONDS):
                    break
        after_first = recorded.trace().ranks[0].steps[1:]
        return stages_of([task for step in after_first for task in step.batch.tasks])
    finally:
        if recorded.folder is not None:  # as the interpreter ends, it would stay
            shutil.rmtree(recorded.folder, ignore_errors=True)
