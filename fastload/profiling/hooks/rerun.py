"""Changes arguments of a script's DataLoader from outside, for ``fastload whatif --rerun``. Imports nothing slow."""

from __future__ import annotations

import functools
import inspect
import json
from typing import Any

from ..recorder import Recorder
from .patching import leave, unseen

VARIABLE = "FASTLOAD_CHANGE"
"""The environment variable with the change, as JSON: ``settings`` for the loaders that ``match``."""

SETTABLE = ("num_workers", "prefetch_factor", "in_order", "persistent_workers", "fuse", "seeding", "worker_method")
"""Arguments of a DataLoader that can be set; torch's takes no notice of those that are fastload's only."""

_OF_WORKERS = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")
"""Arguments that torch refuses where there are no workers."""


class Changing:
    """The change.

    Args:
        wanted: what the variable holds.
        recorder: hears of each loader that was changed.
    """

    def __init__(self, wanted: str, recorder: Recorder) -> None:
        change: dict[str, Any] = json.loads(wanted)
        self._settings: dict[str, Any] = change["settings"]
        self._match: dict[str, Any] = change["match"]
        self._recorder = recorder

    def hook(self, module: Any) -> None:
        """Change what a module's ``DataLoader`` is constructed with: torch's, or fastload's."""
        function = module.DataLoader.__init__
        signature = inspect.signature(function)

        @functools.wraps(function)
        @unseen
        def init(loader: Any, *positional: Any, **named: Any) -> None:
            try:
                given = signature.bind(loader, *positional, **named)
            except TypeError:  # the user's mistake, and torch's to tell
                given = None
            if given is not None and self._is_meant(given.arguments):
                known = given.arguments
                known.update(self._settings)
                if not known.get("num_workers"):
                    for argument in _OF_WORKERS:
                        known.pop(argument, None)
                self._recorder.note("changed", settings=self._settings)
                positional, named = given.args[1:], given.kwargs
            try:
                function(loader, *positional, **named)
            except BaseException as error:
                leave(error)
                raise

        module.DataLoader.__init__ = init

    def _is_meant(self, given: dict[str, Any]) -> bool:
        dataset = type(given.get("dataset"))
        sampled = given.get("batch_sampler")
        found = {
            "dataset": f"{dataset.__module__}.{dataset.__qualname__}",
            "num_workers": given.get("num_workers", 0),
            "batch_size": given.get("batch_size", 1) if sampled is None else None,
        }
        return all(found[name] == value for name, value in self._match.items())


__all__ = ["SETTABLE", "VARIABLE", "Changing"]
