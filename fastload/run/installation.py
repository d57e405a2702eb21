"""fastload's engine behind torch's name, for a whole process.

In: torch's DataLoader. Out: the same class object, whose constructor makes loaders with fastload's engine.

Only ``torch.utils.data.DataLoader.__init__`` is replaced, not the name. So it works for code that imported the class by
name before, ``isinstance(..., torch.utils.data.DataLoader)`` is unaffected, and undoing it is one assignment.

* Constructing torch's class gives a ``fastload.DataLoader``, which is a subclass of it.
* Constructing a subclass of torch's class, defined before or after, gives an instance of a class of the same name, with
  fastload's loader directly before torch's in the method resolution order. The subclass's own methods still apply; its
  calls of ``super()`` reach fastload's engine. A subclass that replaces everything (torchdata's StatefulDataLoader) is
  unaffected.
* Loaders that exist keep their engine.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from torch.utils import data

from fastload.inject.fastload_replacement import replace_init

_TorchDataLoader: Any = data.DataLoader  # Any: assigning to a method is what this module is for

# Marks the classes made by _with_engine; its value is the user's class.
_SOURCE = "_fastload_source"


def install(**defaults: Any) -> None:
    """Make every torch DataLoader that is constructed from now on use fastload, in this process and in its forks.

    Use it for loaders that a library constructs (timm, Accelerate, Hugging Face's Trainer). ``fastload run`` does the
    same without an edit, also for the processes that a script starts. A second call only adds defaults.

    Args:
        defaults: values of fastload's own arguments, such as ``fuse=True``, for every loader that is constructed
            without the argument. They override those of the environment variable ``FASTLOAD_LOADER``.

    Raises:
        ConfigError: there is no such argument, or the value is out of its range. Then nothing is changed.

    Examples:
        >>> import fastload, torch
        >>> fastload.install()
        >>> loader = torch.utils.data.DataLoader(torch.arange(6), batch_size=3)
        >>> isinstance(loader, fastload.DataLoader)
        True
        >>> fastload.uninstall()
    """
    from fastload.loader import argument_defaults

    global _active
    argument_defaults().change(defaults)
    if not _is_replaced():
        replace_init(_TorchDataLoader, lambda: initialize)
    _active = True


def uninstall() -> None:
    """Undo ``install``, or ``fastload run`` in this process. Loaders that exist stay as they are.

    Defaults are again those of the environment. Without ``install`` it does nothing.
    """
    from fastload.loader import argument_defaults

    global _active
    _active = False
    argument_defaults().read_environment()
    # If another library has wrapped our constructor (Lightning does, for a time), ours stays, and calls torch's.
    torch_init = getattr(_TorchDataLoader.__init__, "fastload_replaces", None)
    if torch_init is not None and not _is_wrapped(_TorchDataLoader.__init__, torch_init):
        _TorchDataLoader.__init__ = torch_init


def _is_wrapped(init: Any, torch_init: Any) -> bool:
    """Return whether another library has wrapped our constructor (functools.wraps copies our attribute)."""
    return getattr(init, "__wrapped__", None) is not torch_init


def _is_replaced() -> bool:
    """Return whether our constructor is among the wrappers of torch's."""
    return hasattr(_TorchDataLoader.__init__, "fastload_replaces")


# Under ``fastload run`` sitecustomize has replaced the constructor, and the first loader imports this module.
_active = _is_replaced()


def initialize(
    loader: data.DataLoader[Any], torch_init: Callable[..., None], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Construct ``loader``, an object of torch's class or of a subclass; called by what replaces ``torch_init``."""
    from fastload.loader import DataLoader

    # With our attributes, this is our constructor's call of torch's. Without them, an object of our class comes from a
    # subclass whose constructor calls torch's by name instead of super().
    ours = isinstance(loader, DataLoader)
    if not _active or (ours and "_kept" in vars(loader)):
        torch_init(loader, *args, **kwargs)
        return
    try:
        if not ours:
            loader.__class__ = _with_engine(type(loader))
    except Exception as error:  # whatever the user's __init_subclass__ or metaclass raises
        warnings.warn(
            f"{type(loader).__name__} keeps torch's engine, because no class can be derived from it: {error!r}",
            RuntimeWarning,
            stacklevel=3,
        )
        torch_init(loader, *args, **kwargs)
        return
    DataLoader.__init__(loader, *args, **kwargs)  # type: ignore[arg-type] # whatever the caller gave torch's class


def _with_engine(loader_class: type[Any]) -> type[Any]:
    """Return ``loader_class`` with fastload's loader directly before torch's among its base classes."""
    from fastload.loader import DataLoader

    if loader_class is _TorchDataLoader:
        return DataLoader
    # Python holds subclasses weakly, so a class lives as long as it is used. Two threads may make one each; both work.
    for subclass in loader_class.__subclasses__():
        if vars(subclass).get(_SOURCE) is loader_class:
            return subclass

    def reduce_ex(self: Any, protocol: Any) -> Any:
        return _reduce(loader_class, made, super(made, self).__reduce_ex__(protocol))

    def fill(namespace: dict[str, object]) -> None:
        for name in ("__module__", "__qualname__", "__doc__"):
            namespace[name] = getattr(loader_class, name)
        namespace[_SOURCE] = loader_class
        namespace["__reduce_ex__"] = reduce_ex

    made: Any = types.new_class(loader_class.__name__, (loader_class, DataLoader), {}, fill)
    return made  # type: ignore[no-any-return] # a class


def _reduce(source: type[Any], made: type[Any], reduced: Any) -> Any:
    """Return a reduction that can be unpickled: ``made``, which ``_with_engine`` made, has no name to import."""
    if not isinstance(reduced, tuple):
        return reduced
    function, arguments, *rest = reduced
    arguments = tuple(source if argument is made else argument for argument in arguments)
    return (_rebuild, (source, source if function is made else function, arguments), *rest)


def _rebuild(source: type[Any], function: Callable[..., Any], arguments: tuple[object, ...]) -> Any:
    """Undo ``_reduce``, even if fastload is not installed in this process."""
    loader = function(*arguments)
    # The user's own __reduce__ constructs an object. That of object.__reduce_ex__ is empty, and its state, which is set
    # next, is that of our engine.
    if function.__module__ == "copyreg" and type(loader) is source:
        loader.__class__ = _with_engine(source)
    return loader
