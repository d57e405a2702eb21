"""Calls a function when a module is imported, and makes the constructor that takes the place of torch's.

Imported by ``sitecustomize.py`` as a top-level module, where fastload may not be importable, and by fastload as
``fastload.inject.fastload_hook``. So it imports only the standard library.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # importing typing would cost each process several milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    Action = Callable[[ModuleType], None]


def imported(name: str) -> ModuleType | None:
    """Return the module of this name, if it has been imported."""
    module = sys.modules.get(name)
    return None if module is None or getattr(module.__spec__, "_initializing", False) else module


def after_import(name: str, action: Action) -> object:
    """Call ``action(module)`` after the import of the module ``name``; now, if it has been imported.

    Does not import the module. If an import fails, ``action`` is called after a later one, in the importing thread,
    which holds the module's import lock. Returns the finder that waits, to be removed from ``sys.meta_path`` to cancel;
    None: it has been imported.
    """
    module = imported(name)
    if module is not None:
        action(module)
        return None
    watcher = _Watcher(name, action)
    sys.meta_path.insert(0, watcher)
    return watcher


class _Watcher:
    """A finder that lets the other finders find the module, and wraps its execution.

    The module keeps its spec and its loader; the loader has an ``exec_module`` of its own until the module is executed.
    """

    def __init__(self, name: str, action: Action) -> None:
        self._name = name
        self._action = action

    def __repr__(self) -> str:
        return f"<fastload waits for the import of {self._name}>"

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self._name or self not in sys.meta_path:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            if not hasattr(finder, "find_spec"):
                continue
            spec: ModuleSpec | None = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    self._follow(spec.loader)
                return spec
        return None

    def _follow(self, importer: Any) -> None:
        execute = importer.exec_module
        hidden = vars(importer).get("exec_module")  # another watcher of the same module

        def exec_module(module: ModuleType) -> None:
            if hidden is None:
                del importer.exec_module
            else:
                importer.exec_module = hidden
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._action(module)

        importer.exec_module = exec_module


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
