"""Albumentations' and MONAI's transforms that a dataset reaches, and the generators that they keep.

Their generators are seeded for each sample. A transform is stateful while it runs, so each worker thread gets copies of
the transforms, of transformers' collators with a seed, and of the objects and functions that lead to them (what a
dataset writes into its attributes in one thread, the others do not see). What cannot be copied for each thread, such as
a transform in a global variable, causes a warning. No library is imported here; of one that has not been imported,
nothing is found.

Albumentations 2: each transform has a ``random_generator`` and a ``py_random``. All get one common pair; the ``seed``
of a ``Compose`` then has no effect. MONAI: each ``Randomizable``, which a dataset may be too, has a ``RandomState`` in
``R``. All get a common one; what ``set_random_state`` gave them has no effect, but for calls of it while a sample is
loaded. With ``num_workers=0`` they get their own generators back after each batch.
"""

from __future__ import annotations

import copy
import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from ..base.copies import copy_with_replacements
from ..base.objects import find
from ..base.walking import ReachableObject
from .collator_generators import keeps_generator

_LIBRARIES = ("albumentations", "monai", "transformers")
GENERATORS = ("random_generator", "py_random", "R")
"""The transforms' attributes that hold them."""


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


def _is_randomizable(thing: Any) -> bool:
    kind = getattr(sys.modules.get("monai.transforms"), "Randomizable", None)
    return kind is not None and issubclass(type(thing), kind)


def is_transform(thing: Any) -> bool:
    """Return whether an object is such a transform, or a dataset that is one."""
    return _is_albumentations(thing) or _is_randomizable(thing)


def _find(roots: tuple[object, ...], wanted: Callable[[Any], bool], *, inside: bool) -> list[ReachableObject]:
    return [] if sys.modules.keys().isdisjoint(_LIBRARIES) else find(list(roots), wanted, inside=inside)


class TransformGenerators:
    """Seeds what the transforms draw from, for one worker.

    ``owned``: whether also those are seeded that other threads may use.
    """

    def __init__(self, *roots: object, owned: bool) -> None:
        found = [one.thing for one in _find(roots, is_transform, inside=True) if owned or not one.is_shared]
        self._transforms = list({id(transform): transform for transform in found}.values())
        self._randomizable = [transform for transform in self._transforms if _is_randomizable(transform)]
        self._random = random.Random(0)
        self._bits = np.random.PCG64(0)
        self._numpy = np.random.Generator(self._bits)
        self._state = np.random.RandomState(0)
        self._before: list[tuple[Any, dict[str, Any]]] = []

    def __len__(self) -> int:
        return len(self._transforms)

    def adopt(self) -> None:
        """Let the transforms draw from the generators that :meth:`seed` seeds."""
        for thing in self._transforms:
            ours: dict[str, Any] = {"random_generator": self._numpy, "py_random": self._random}
            if _is_randomizable(thing):
                ours = {"R": self._state}
            held = vars(thing)
            self._before.append((thing, {name: held.get(name) for name in ours}))
            for name, one in ours.items():
                setattr(thing, name, one)

    def release(self) -> None:
        """Give the transforms their own generators back."""
        while self._before:
            thing, before = self._before.pop()
            for name, one in before.items():
                if one is None:  # it has its class's
                    delattr(thing, name)
                else:
                    setattr(thing, name, one)

    def seed(self, digest: bytes) -> None:
        """Seed from 40 bytes of a hash of a sample's key."""
        if len(self._randomizable) < len(self._transforms):
            self._random.seed(int.from_bytes(digest[32:40], "little"))
            self._bits.state = {
                "bit_generator": "PCG64",
                "state": {
                    "state": int.from_bytes(digest[:16], "little"),
                    "inc": int.from_bytes(digest[16:32], "little") | 1,  # odd, by the algorithm
                },
                "has_uint32": 0,
                "uinteger": 0,
            }
        if self._randomizable:
            self._state.seed(np.frombuffer(digest, "<u4", 4))
            for thing in self._randomizable:
                thing.R = self._state  # the last sample may have called set_random_state


def _has_state(thing: Any) -> bool:
    return is_transform(thing) or keeps_generator(thing)


def copies_for_thread(*roots: Any) -> tuple[Any, ...]:
    """Return copies of the roots with transforms and collators of their own; roots that have none are unchanged."""
    found = [one for one in _find(roots, _has_state, inside=True) if not one.is_shared]
    if not found:
        return roots
    copied: dict[int, Any] = {}
    # A dataset is not copied with its data, though it may be a Randomizable too.
    others = {
        id(one.thing): copy.deepcopy(one.thing, copied)
        for one in found
        if is_transform(one.thing) and not isinstance(one.thing, Dataset)
    }
    return tuple(copy_with_replacements(found, others))


def warn_of_what_threads_share(*roots: object) -> None:
    """Warn of transforms and collators that cannot be copied for each worker thread."""
    kinds: dict[str, Callable[[Any], bool]] = {
        "Albumentations transforms": _is_albumentations,
        "MONAI transforms": _is_randomizable,
        "collators with a seed": keeps_generator,
    }
    words = []
    for kind, is_one in kinds.items():
        names = sorted({type(one.thing).__name__ for one in _find(roots, is_one, inside=False) if one.is_shared})
        words += [f"{kind} ({', '.join(names)})"] if names else []
    if words:
        warnings.warn(
            f"worker threads share {' and '.join(words)} that the dataset or collate_fn reaches by a global variable "
            "or a class: they are stateful, so their results depend on the threads' timing; make them attributes of "
            "it, of which each thread gets a copy, or use worker_method='multiprocessing'",
            RuntimeWarning,
            stacklevel=2,
        )
