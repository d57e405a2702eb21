"""Albumentations' transforms that a dataset reaches.

In: the dataset and ``collate_fn``. Out: their transforms, or copies for each worker thread. A transform is stateful
while it runs, so each worker thread gets copies of the transforms, and of the objects and functions that lead to them
(what a dataset writes into its attributes in one thread, the others do not see). A transform that cannot be copied for
each thread, such as one in a global variable, causes a warning. Albumentations is not imported here; where it has not
been imported, no transforms are found.
"""

from __future__ import annotations

import copy
import random
import sys
import warnings
from typing import Any

import numpy as np

from ..base import reachable


def _is_albumentations(thing: Any) -> bool:
    # By its attributes, since users derive classes of their own.
    try:
        held = vars(thing)
    except TypeError:
        return False
    return (
        isinstance(held.get("random_generator"), np.random.Generator)
        and isinstance(held.get("py_random"), random.Random)
        and any(kind.__module__.split(".")[0] == "albumentations" for kind in type(thing).__mro__)
    )


def transforms_of(*roots: object, inside: bool) -> list[reachable.Found]:
    """Return the transforms that can be reached; ``inside``: those inside of others too."""
    if "albumentations" not in sys.modules:
        return []
    return reachable.find(list(roots), _is_albumentations, inside=inside)


def copies_for_thread(*roots: Any) -> tuple[Any, ...]:
    """Return copies of the roots with transforms of their own; roots without transforms are returned unchanged."""
    found = [transform for transform in transforms_of(*roots, inside=False) if not transform.shared]
    if not found:
        return roots
    copies = {id(transform.thing): copy.deepcopy(transform.thing) for transform in found}
    return tuple(reachable.with_others(list(roots), [(one, copies[id(one.thing)]) for one in found]))


def warn_of_shared_transforms(*roots: object) -> None:
    """Warn of transforms that cannot be copied for each worker thread."""
    names = shared_transforms(*roots)
    if names:
        warnings.warn(
            f"worker threads share Albumentations transforms ({names}) that the dataset reaches by a global variable "
            "or a class: they are stateful, so their results depend on the threads' timing; make them attributes of "
            "the dataset, of which each thread gets a copy, or use worker_method='multiprocessing'",
            RuntimeWarning,
            stacklevel=2,
        )


def shared_transforms(*roots: object) -> str:
    """Return the names of the transforms that all copies of these objects would share; empty if there are none."""
    shared = [found.thing for found in transforms_of(*roots, inside=False) if found.shared]
    return ", ".join(sorted({type(thing).__name__ for thing in shared}))
