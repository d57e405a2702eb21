"""fastload's engine behind torch's name, for a whole process.

Only ``torch.utils.data.DataLoader.__init__`` is replaced, not the name. So it works for code that imported the class by
name before, ``isinstance(..., torch.utils.data.DataLoader)`` is unaffected, and undoing it is one assignment.

* Constructing torch's class gives a ``fastload.DataLoader``, which is a subclass of it.
* Constructing a subclass of torch's class, defined before or after, gives an instance of a class of the same name, with
  fastload's loader directly before torch's in the method resolution order. The subclass's own methods still apply; its
  calls of ``super()`` reach fastload's engine. A subclass that replaces everything is unaffected.
* torchdata's ``StatefulDataLoader`` is such a class, and is replaced by itself: its ``state_dict`` is fastload's then.
  Where a sampler, or a map-style dataset, has a state of its own, torchdata's loader stays, with a warning.
* Loaders that exist keep their engine.
* Accelerate and Lightning are adapted (:mod:`.adapters`) when they are imported.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from torch.utils import data

from fastload.base.overrides import LOADERS, Override
from fastload.inject.fastload_hook import after_import, imported, replacement

_TORCHDATA = "torchdata.stateful_dataloader.stateful_dataloader"


class _Constructor(Override):
    """The constructor of a loader's class, which ``sitecustomize`` may have replaced already."""

    def stand_in(self, original: Any) -> Any:
        """Return what makes a loader with fastload's engine."""
        return original if _is_replaced(original) else replacement(original, lambda: initialize)

    def undo(self) -> None:
        """Put the original back. Where another library wraps ours (Lightning, for a time), ours stays, and calls it."""
        init = self.found()
        if _is_replaced(init) and getattr(init, "__wrapped__", None) is init.fastload_replaces:
            self._before = init.fastload_replaces
            self._put_back()
        self.is_installed = False


def _is_replaced(init: Any) -> bool:
    """Return whether our constructor is among the wrappers of this one."""
    return hasattr(init, "fastload_replaces")


_PURPOSE = "by fastload run or fastload.install(), loaders are fastload's"
OVERRIDES = tuple(
    _Constructor(library, f"{library}:{name}", "__init__", _PURPOSE, where=LOADERS, always=True)
    for library, name in (("torch.utils.data", "DataLoader"), (_TORCHDATA, "StatefulDataLoader"))
)

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
    for one in OVERRIDES:
        after_import(one.library, functools.partial(_install, one))
    _adapt_libraries()
    _active = True


def _install(override: Override, _: types.ModuleType) -> None:
    override.is_installed = _is_replaced(override.found())
    override.install()


@functools.cache
def _adapt_libraries() -> None:
    """Adapt Accelerate and Lightning, now or when they are imported."""
    from fastload.loader import ADAPTED_LIBRARIES, adapt

    for name in ADAPTED_LIBRARIES:
        after_import(name, adapt)


def uninstall() -> None:
    """Undo ``install``, or ``fastload run`` in this process. Loaders that exist stay as they are.

    Defaults are again those of the environment. Without ``install`` it does nothing.
    """
    from fastload.loader import argument_defaults

    global _active
    _active = False
    argument_defaults().read_environment()
    for one in OVERRIDES:
        if imported(one.library) is not None:
            one.undo()


def _stateful_class() -> Any:
    """Return torchdata's class; None where it is not imported."""
    return getattr(sys.modules.get(_TORCHDATA), "StatefulDataLoader", None)


# Under ``fastload run`` sitecustomize has replaced the constructor, and the first loader imports this module.
_active = _is_replaced(data.DataLoader.__init__)


def initialize(
    loader: data.DataLoader[Any], torch_init: Callable[..., None], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Construct ``loader``, an object of torch's class or of a subclass; called by what replaces ``torch_init``."""
    from fastload.loader import DataLoader

    # With our attributes, this is our constructor's call of torch's. Without them, an object of our class comes from a
    # subclass whose constructor calls torch's by name instead of super().
    ours = isinstance(loader, DataLoader)
    if _active:
        _adapt_libraries()  # under `fastload run` nothing else has
    if not _active or (ours and "_runtime" in vars(loader)):
        torch_init(loader, *args, **kwargs)
        return
    stateful = _stateful_class()
    if stateful is not None and isinstance(loader, stateful):
        given = dict(inspect.signature(torch_init).bind(loader, *args, **kwargs).arguments)
        reason = _why_not_stateful(given)
        if reason is not None:
            warnings.warn(f"StatefulDataLoader keeps torchdata's engine: {reason}", RuntimeWarning, stacklevel=3)
            torch_init(loader, *args, **kwargs)
            return
        loader.snapshot_every_n_steps = given.pop("snapshot_every_n_steps", 1)
        del given["self"]
        args, kwargs = (), given
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


def _why_not_stateful(given: Mapping[str, Any]) -> str | None:
    """Return why a StatefulDataLoader is not replaced; None if it is."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("fastload."):
        frame = frame.f_back
    if frame.f_globals.get("__name__", "").startswith("accelerate."):
        return "Accelerate changes its state by torchdata's names"
    for name in ("sampler", "batch_sampler", "dataset"):
        value = given.get(name)
        if name == "dataset" and isinstance(value, data.IterableDataset):  # its replicas' states are in ours
            continue
        if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
            return f"{name}={type(value).__name__} has a state_dict of its own, which would not be in fastload's state"
    return None


def _load_state_dict(self: Any, state: dict[str, Any], **how: Any) -> None:
    from fastload.loader import DataLoader

    if state != {}:  # torchdata's means no state
        DataLoader.load_state_dict(self, state, **how)


def _with_engine(loader_class: type[Any]) -> type[Any]:
    """Return ``loader_class`` with fastload's loader directly before torch's among its base classes."""
    from fastload.loader import DataLoader

    if loader_class is data.DataLoader:
        return DataLoader
    # Python holds subclasses weakly, so a class lives as long as it is used. Two threads may make one each; both work.
    for subclass in loader_class.__subclasses__():
        if vars(subclass).get(_SOURCE) is loader_class:
            return subclass

    def reduce_ex(self: Any, protocol: Any) -> Any:
        reduced = super(made, self).__reduce_ex__(protocol)
        # A class that is derived from this one has a reduction of its own, which this one is part of.
        return _reduce(loader_class, made, reduced) if type(self) is made else reduced

    def fill(namespace: dict[str, object]) -> None:
        for name in ("__module__", "__qualname__", "__doc__"):
            namespace[name] = getattr(loader_class, name)
        namespace[_SOURCE] = loader_class
        namespace["__reduce_ex__"] = reduce_ex
        if loader_class is stateful:  # it replaces them by its own
            for name in ("__iter__", "_get_iterator", "state_dict"):
                namespace[name] = getattr(DataLoader, name)
            namespace["load_state_dict"] = _load_state_dict

    stateful = _stateful_class()
    is_derived = stateful is not None and loader_class is not stateful and issubclass(loader_class, stateful)
    engine = _with_engine(stateful) if is_derived else DataLoader
    made: Any = types.new_class(loader_class.__name__, (loader_class, engine), {}, fill)
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
