"""What a loader says when it is asked: how it works, and what a transform drew for its last batch.

In: a loader, its epochs, and what it keeps. Out: words, parameters. The loader stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..arguments import WorkerArguments
from ..base import compat
from ..base.console import as_html, labelled
from ..sampling.epochs import Epochs
from ..spec import part, spec_of
from ..transforms.batches import params_of
from .facts import all_facts, as_text
from .kept import Kept
from .statistics import statistics_of


class Inspection:
    """What a loader says of itself at one moment."""

    def __init__(self, loader: compat.TorchDataLoader[Any], epochs: Epochs, kept: Kept) -> None:
        self._loader, self._epochs, self._kept = loader, epochs, kept

    def _facts(self) -> list[tuple[str, str]]:
        spec = spec_of(self._loader)
        return all_facts(spec, statistics_of(part(spec, WorkerArguments), self._kept), self._kept)

    def as_text(self) -> str:
        """Return how the loader works with its dataset and arguments, and why: a line for each fact."""
        return as_text(self._facts())

    def as_html(self) -> str:
        """Return the same for a notebook."""
        return as_html(labelled(self._facts()))

    def batch_params(self, transform: Callable[[Any], Any] | None) -> Any:
        """Return the parameters that the batch transform drew for the last batch: see ``DataLoader.batch_params``."""
        last = self._epochs.last
        return params_of(transform, None if last is None else last.draws)
