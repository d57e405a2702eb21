"""Describes a loader for the reports. Runs no code of the script: no ``__len__``, no ``__repr__``."""

from __future__ import annotations

import contextlib
import operator
import os
import sys
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

_ARGUMENTS = (
    *("batch_size", "prefetch_factor", "pin_memory", "persistent_workers", "in_order", "drop_last"),
    *("timeout", "worker_method", "worker_threads", "fuse"),
)

if TYPE_CHECKING:
    from torch.utils.data import DataLoader
_FUNCTIONS = (FunctionType, MethodType, BuiltinFunctionType, type)


def describe_loader(loader: DataLoader[Any], *, is_resident: bool = False) -> dict[str, Any]:
    """Return what the reports say of a loader, as far as it is known.

    Where its data are resident, it has no workers whatever ``num_workers`` says.
    """
    dataset = getattr(loader, "dataset", None)
    import multiprocessing  # torch has imported it by now

    context = getattr(getattr(loader, "multiprocessing_context", None), "_name", None)
    context = context or multiprocessing.get_start_method(allow_none=True)  # the script may have set it globally
    context = context or multiprocessing.get_all_start_methods()[0]  # asking for it in another way would set it
    kind = type(loader)
    return {
        "engine": kind.__module__.partition(".")[0],
        "torchs": isinstance(loader, sys.modules["torch.utils.data"].DataLoader),
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "dataset": f"{type(dataset).__module__}.{type(dataset).__qualname__}",
        "sampler": type(getattr(loader, "sampler", None)).__qualname__,
        "collate": _name_of(loader.collate_fn),
        "resident": is_resident,
        "num_workers": 0 if is_resident else _plain(loader.num_workers),
        **{name: _plain(getattr(loader, name, None)) for name in _ARGUMENTS},
        "seeding": seeding_of(loader),
        "cache": _plain(getattr(loader, "cache", None))
        if _is_fastloads(loader)
        else None,  # of others it may be anything
        "context": str(context),
        "copied": [] if is_resident else _copied(loader, dataset),
    }


def _copied(loader: Any, dataset: Any) -> list[str]:
    """Return what is to be said of large lists that each worker process copies."""
    from ...base.copied_lists import copied_lists

    if not loader.num_workers or getattr(loader, "worker_method", "multiprocessing") != "multiprocessing":
        return []
    with contextlib.suppress(Exception):  # whatever a class of the script makes of being looked at
        return copied_lists(dataset)
    return []


def seeding_of(loader: Any) -> str | None:
    """Return where samples of a loader of fastload's have their random numbers from; None: it is another's.

    ``"torch"``: its streams; ``"sample"``: a key for each sample.
    """
    if not _is_fastloads(loader):
        return None
    from ...sampling.epochs import seed_of
    from ...spec import spec_of

    asked = spec_of(loader)  # not what is decided, which takes the dataset's length
    return "torch" if asked.keyed_by(seed_of(asked.sampling)) is None else "sample"


def _is_fastloads(loader: Any) -> bool:
    module = sys.modules.get("fastload.loader")
    return module is not None and isinstance(loader, module.DataLoader)


def _plain(value: Any) -> Any:
    """Return a NumPy integer or a path, which JSON does not support, as Python's; anything else unchanged."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value if isinstance(value, bool) or not hasattr(type(value), "__index__") else operator.index(value)


def _name_of(function: Any) -> str:
    """Return the name of a function, or of an object's class (its own ``__repr__`` may be the script's code)."""
    named = function if isinstance(function, _FUNCTIONS) else type(function)
    return str(named.__qualname__)
