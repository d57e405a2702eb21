"""Replacement for the constructor of torch's loader.

Imported by ``sitecustomize.py`` as a top-level module, where fastload may not be importable, and by fastload as
``fastload.inject.fastload_replacement``. So it imports only the standard library.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # importing typing would cost each process several milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def replacement(torch_init: Any, find_initialize: Callable[[], Callable[..., None]]) -> Any:
    """Return a constructor of torch's DataLoader, and of its subclasses, that makes a loader with fastload's engine.

    Args:
        torch_init: torch's constructor.
        find_initialize: returns :func:`fastload.run.installation.initialize`, which does it; called at each
            construction, so that a process that constructs no loader does not import fastload. Where fastload cannot be
            imported (another interpreter's environment), a warning says so and the loader is torch's.
    """
    import functools
    import inspect

    @functools.wraps(torch_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            initialize = find_initialize()
        except ImportError as error:
            import warnings

            warnings.warn(
                f"fastload run: torch's DataLoader stays, because fastload cannot be imported by {sys.executable} "
                f"({error}); install fastload in that environment",
                RuntimeWarning,
                stacklevel=2,
            )
            torch_init(self, *args, **kwargs)
        else:
            initialize(self, torch_init, args, kwargs)

    # inspect.getfullargspec() looks at nothing that is wrapped.
    init.__signature__ = inspect.signature(torch_init)  # type: ignore[attr-defined]
    init.fastload_replaces = torch_init  # type: ignore[attr-defined] # found by fastload.run.installation
    return init
