"""Finds, seeds and copies other libraries' objects that keep generators: transforms and collators.

Transforms are seeded for each sample, collators for each batch. Both are stateful while they run, so each worker thread
gets copies of them, and of the objects and functions that lead to them (what a dataset writes into its attributes in
one thread, the others do not see). What cannot be copied for each thread, such as a transform in a global variable,
causes a warning. No library is imported here; of one that has not been imported, nothing is found.

Albumentations 2: each transform has a ``random_generator`` and a ``py_random``. All get one common pair; the ``seed``
of a ``Compose`` then has no effect. MONAI: each ``Randomizable``, which a dataset may be too, has a ``RandomState`` in
``R``. All get a common one; what ``set_random_state`` gave them has no effect, but for calls of it while a sample is
loaded. With ``num_workers=0`` they get their own generators back after each batch.

transformers: a collator with a ``seed``, such as ``DataCollatorForLanguageModeling(seed=...)``, makes its generator in
each worker, seeded by the worker's number, so its masks depend on who takes the batch. Here they depend on its own seed
and the batch's key.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import os
import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from ..base.copies import copy_with_replacements
from ..base.objects import find
from ..base.walking import ReachableObject
from .seeding import words

_LIBRARIES = ("albumentations", "monai", "transformers")
GENERATORS = ("random_generator", "py_random", "R")
"""The transforms' attributes that hold them."""


def _has(thing: Any, library: str, **kinds: Any) -> bool:
    """Return whether an object is of a library's class, or a user's derived from one, and has attributes of kinds."""
    try:
        held = vars(thing)
    except TypeError:
        return False
    return all(name in held and isinstance(held[name], kind) for name, kind in kinds.items()) and any(
        kind.__module__.split(".")[0] == library for kind in type(thing).__mro__
    )


def _is_albumentations(thing: Any) -> bool:
    return _has(thing, "albumentations", random_generator=np.random.Generator, py_random=random.Random)


def _is_randomizable(thing: Any) -> bool:
    kind = getattr(sys.modules.get("monai.transforms"), "Randomizable", None)
    return kind is not None and issubclass(type(thing), kind)


def is_transform(thing: Any) -> bool:
    """Return whether an object is such a transform, or a dataset that is one."""
    return _is_albumentations(thing) or _is_randomizable(thing)


def _is_collator(thing: Any) -> bool:
    return _has(thing, "transformers", seed=int, generator=object, _generator_pid=object)


def _find(roots: tuple[object, ...], wanted: Callable[[Any], bool], *, inside: bool) -> list[ReachableObject]:
    return [] if sys.modules.keys().isdisjoint(_LIBRARIES) else find(list(roots), wanted, inside=inside)


class _Lent:
    """Attributes of a user's objects that have other values until :meth:`release`."""

    def __init__(self) -> None:
        self._before: list[tuple[dict[str, Any], dict[str, Any], set[str]]] = []

    def lend(self, thing: Any, **values: Any) -> None:
        """Give an object's attributes these values."""
        held = vars(thing)
        self._before.append((held, {name: held[name] for name in values if name in held}, set(values)))
        held.update(values)

    def release(self) -> None:
        """Give the objects what they had."""
        while self._before:
            held, before, names = self._before.pop()
            for name in names - before.keys():  # it has its class's
                held.pop(name, None)
            held.update(before)


class TransformGenerators(_Lent):
    """Seeds what the transforms draw from, for one worker.

    ``owned``: whether also those are seeded that other threads may use.
    """

    def __init__(self, *roots: object, owned: bool) -> None:
        super().__init__()
        found = [one.thing for one in _find(roots, is_transform, inside=True) if owned or not one.is_shared]
        self._transforms = list({id(transform): transform for transform in found}.values())
        self._randomizable = [transform for transform in self._transforms if _is_randomizable(transform)]
        self._random = random.Random(0)
        self._bits = np.random.PCG64(0)
        self._numpy = np.random.Generator(self._bits)
        self._state = np.random.RandomState(0)

    def __len__(self) -> int:
        return len(self._transforms)

    def adopt(self) -> None:
        """Let the transforms draw from the generators that :meth:`seed` seeds."""
        for thing in self._transforms:
            if _is_randomizable(thing):
                self.lend(thing, R=self._state)
            else:
                self.lend(thing, random_generator=self._numpy, py_random=self._random)

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


class CollatorGenerators(_Lent):
    """Seeds the collators' generators for one worker."""

    def __init__(self, collate_fn: Any) -> None:
        super().__init__()
        found = _find((collate_fn,), _is_collator, inside=False)
        self._collators = list({id(one.thing): one.thing for one in found}.values())

    def seed(self, key: bytes) -> None:
        """Give each collator generators for the batch with 16 bytes of key, until :meth:`release`."""
        for one in self._collators:
            digest = hashlib.blake2b(key, digest_size=16, key=str(one.seed).encode()[:64], person=b"fastload.collate")
            # A collator asks for another generator where the call's return_tensors is not its own.
            use = functools.partial(_use, one, digest.digest(), {})
            self.lend(one, create_rng=use, generator=None, _generator_pid=None)
            use()


def _use(collator: Any, digest: bytes, made: dict[bool, Any], return_tensors: str | None = None) -> None:
    """Give a collator its batch's generator for a call with these ``return_tensors``; ``made``: those that it has had.

    It stands for ``create_rng``, which would make one of the seed alone.
    """
    is_numpy = (return_tensors or collator.return_tensors) == "np"
    if is_numpy not in made:
        if is_numpy:
            made[is_numpy] = np.random.default_rng(int.from_bytes(digest, "little"))
        else:
            made[is_numpy] = torch.Generator().manual_seed(words(digest)[2])
    collator.generator = made[is_numpy]
    collator._generator_pid = os.getpid()  # else it would ask again


def _has_state(thing: Any) -> bool:
    return is_transform(thing) or _is_collator(thing)


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
        "collators with a seed": _is_collator,
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
