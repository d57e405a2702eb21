"""fastload's engine behind torch's name, for a whole process.

In: torch's DataLoader. Out: the same class object, whose constructor makes loaders with fastload's engine.

Only ``torch.utils.data.DataLoader.__init__`` is replaced, not the name. So it does not matter who holds torch's
class, or how (a module that imported it by name, a default argument, a ``functools.partial``), every
``isinstance(..., torch.utils.data.DataLoader)`` means what it meant, and undoing it is one assignment.

* Constructing torch's class gives a :class:`fastload.DataLoader`, which is a subclass of it.
* Constructing a subclass of torch's class, whether defined before or after, gives an instance of a class of the
  same name in which fastload's loader stands directly before torch's in the method resolution order. What the
  subclass overrides stays in force; what it passes on through ``super()`` or leaves alone reaches our engine. A
  subclass that does all of it by itself (torchdata's StatefulDataLoader) goes on doing so.
* Loaders that exist already keep their engine.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch.utils.data

from fastload.inject.fastload_hook import replace_init

_TorchDataLoader: Any = torch.utils.data.DataLoader  # Any: assigning to a method is what this module is for

# Marks the classes made by _with_engine; its value is the user's class.
_SOURCE = "_fastload_source"


def install(**defaults: Any) -> None:
    """Give every torch DataLoader constructed from now on fastload's engine, in this process and in its forks.

    For a script that is not to be edited, and for processes it starts, use ``fastload run`` instead. A second call only
    gives further defaults.

    Args:
        defaults: arguments of :class:`fastload.DataLoader` that torch's class does not have, as ``fuse=True``: what
            every loader that is made from now on has where it is not given the argument. They come before those of
            the environment (``FASTLOAD_LOADER``).

    Raises:
        ConfigError: there is no such argument, or no loader can have such a value. Nothing is changed.

    Example:
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
        replace_init(_TorchDataLoader)
    _active = True


def uninstall() -> None:
    """Undo :func:`install` and what ``fastload run`` did to this process; loaders made in between keep our engine.

    Defaults are those of the environment again. Does nothing where nothing is installed.
    """
    from fastload.loader import argument_defaults

    global _active
    _active = False
    argument_defaults().read_environment()
    # Where another library has put its own wrapper around ours (Lightning, for the time of a hook), ours cannot be
    # taken out; it then passes every call on.
    torch_init = getattr(_TorchDataLoader.__init__, "fastload_replaces", None)
    if torch_init is not None and not _is_wrapped(_TorchDataLoader.__init__, torch_init):
        _TorchDataLoader.__init__ = torch_init


def _is_wrapped(init: Any, torch_init: Any) -> bool:
    """Say whether another library's wrapper stands around our replacement (functools.wraps copies our mark)."""
    return getattr(init, "__wrapped__", None) is not torch_init


def _is_replaced() -> bool:
    """Say whether our replacement is anywhere in the chain of wrappers around torch's constructor."""
    return hasattr(_TorchDataLoader.__init__, "fastload_replaces")


# This module is imported either by a user of install(), with torch's constructor as it was, or by the first loader
# constructed under ``fastload run``, whose sitecustomize has replaced it: then it is in force.
_active = _is_replaced()


def initialize(
    loader: Any, torch_init: Callable[..., None], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> None:
    """Construct ``loader``: what runs in place of torch's constructor.

    Args:
        loader: the new object, of torch's class or a subclass of it.
        torch_init: torch's constructor.
        args: the constructor's positional arguments.
        kwargs: its keyword arguments; fastload's own are welcome.
    """
    from fastload.loader import DataLoader

    # Our constructor sets attributes of its own before it calls torch's: then this is that call. An object of our class
    # without them comes from a subclass whose constructor names torch's class instead of calling super().
    ours = isinstance(loader, DataLoader)
    if not _active or (ours and "_runtime" in vars(loader)):
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
    """Return the class that is ``loader_class`` with fastload's loader directly before torch's."""
    from fastload.loader import DataLoader

    if loader_class is _TorchDataLoader:
        return DataLoader
    # Found among the subclasses, which Python holds weakly, so that a class lives as long as it is used. Two threads
    # may make one each at the same time; both are right.
    for subclass in loader_class.__subclasses__():
        if vars(subclass).get(_SOURCE) is loader_class:
            return subclass

    def reduce_ex(loader: Any, protocol: Any) -> Any:
        return _reduce(loader_class, made, super(made, loader).__reduce_ex__(protocol))

    def fill(namespace: dict[str, object]) -> None:
        for name in ("__module__", "__qualname__", "__doc__"):
            namespace[name] = getattr(loader_class, name)
        namespace[_SOURCE] = loader_class
        namespace["__reduce_ex__"] = reduce_ex

    made: Any = types.new_class(loader_class.__name__, (loader_class, DataLoader), {}, fill)
    return made  # type: ignore[no-any-return] # a class


def _reduce(source: type[Any], made: type[Any], reduced: Any) -> Any:
    """Make a pickle that can be read: no importable name leads to a class that :func:`_with_engine` made.

    Args:
        source: the user's class.
        made: the class made from it.
        reduced: what ``__reduce_ex__`` of the user's class returned.
    """
    if not isinstance(reduced, tuple):
        return reduced
    function, arguments, *rest = reduced
    arguments = tuple(source if argument is made else argument for argument in arguments)
    return (_rebuild, (source, source if function is made else function, arguments), *rest)


def _rebuild(source: type[Any], function: Callable[..., Any], arguments: tuple[object, ...]) -> Any:
    """Undo :func:`_reduce`, also where nothing is installed."""
    loader = function(*arguments)
    # An object from the user's own __reduce__ has been constructed, by torch where nothing is installed; an object
    # from object.__reduce_ex__ is empty, and its state, which comes next, was made by our engine.
    if function.__module__ == "copyreg" and type(loader) is source:
        loader.__class__ = _with_engine(source)
    return loader
