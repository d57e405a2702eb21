"""Changes arguments of a script's DataLoader from outside, for ``fastload whatif --rerun``. Imports nothing slow."""

from __future__ import annotations

import functools
import inspect
import json
from typing import Any

from .patching import hook

VARIABLE = "FASTLOAD_CHANGE"
"""The environment variable with the change, as JSON: ``settings`` for the loaders that ``match``."""

SETTABLE = ("num_workers", "prefetch_factor", "in_order", "persistent_workers", "fuse", "seeding")
"""Arguments of a DataLoader that can be set; torch's ignores those that only fastload's has."""

_NEED_WORKERS = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")
"""Arguments that torch refuses without workers."""


class ArgumentChange:
    """Changes the arguments with which loaders are constructed; ``wanted``: the value of :data:`VARIABLE`."""

    def __init__(self, wanted: str) -> None:
        change: dict[str, Any] = json.loads(wanted)
        self._settings: dict[str, Any] = change["settings"]
        self._match: dict[str, Any] = change["match"]

    def patch(self, module: Any) -> None:
        """Patch the constructor of a module's ``DataLoader``: torch's or fastload's."""
        function = module.DataLoader.__init__
        module.DataLoader.__init__ = functools.wraps(function)(self._init(function))

    @hook
    def _init(self, function: Any, *positional: Any, **named: Any) -> None:
        try:
            given = inspect.signature(function).bind(*positional, **named)
        except TypeError:  # the script's mistake, which torch reports
            given = None
        if given is not None and self._matches(given.arguments):
            arguments = given.arguments
            arguments.update(self._settings)
            if not arguments.get("num_workers"):
                for argument in _NEED_WORKERS:
                    arguments.pop(argument, None)
            positional, named = given.args, given.kwargs
        function(*positional, **named)

    def _matches(self, given: dict[str, Any]) -> bool:
        dataset = type(given.get("dataset"))
        found = {
            "dataset": f"{dataset.__module__}.{dataset.__qualname__}",
            "num_workers": given.get("num_workers", 0),
            "batch_size": given.get("batch_size", 1) if given.get("batch_sampler") is None else None,
        }
        return all(found[name] == value for name, value in self._match.items())
