"""Generators of other libraries that transforms draw from: OpenCV's, and those of Albumentations' transforms.

In: a dataset, and the key of each sample. Out: these generators seeded from words of their own. A library is looked
for among the imported modules and never imported; where it is missing nothing happens.

OpenCV has one generator for each thread. It can be seeded but not read, so with ``num_workers=0`` it is left as the
last sample has left it.

Albumentations 2: each transform holds a ``random_generator`` and a ``py_random``. All those reachable from the dataset
and ``collate_fn`` get one common pair, as their own ``set_random_state`` gives it, and the pair is seeded before each
sample; a ``seed`` given to ``Compose`` has no effect then. With ``num_workers=0`` they have their own back after each
batch. Transforms keep notes while they work, so two threads must not use one: each worker thread has copies of the
transforms, in copies of the objects and functions that lead to them (so what a dataset writes into its attributes in
one thread, the others do not see). Where that is impossible, as for a transform in a global variable, a warning says
so.

Not seeded: transforms that are made anew for each sample, and those of an IterableDataset, which has no sample ids.
"""

from __future__ import annotations

import copy
import hashlib
import random
import struct
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from .seeding import Keys, Seeder

if TYPE_CHECKING:
    from . import reachable

_WORDS = struct.Struct("<16s16sQI")


def _is_albumentations(thing: Any) -> bool:
    # By what it has: the class of a transform of the user's is his own.
    try:
        held = vars(thing)
    except TypeError:
        return False
    return (
        isinstance(held.get("random_generator"), np.random.Generator)
        and isinstance(held.get("py_random"), random.Random)
        and any(kind.__module__.split(".")[0] == "albumentations" for kind in type(thing).__mro__)
    )


class LibraryGenerators:
    """Seeds other libraries' generators for one worker.

    Args:
        roots: what leads to the transforms: the dataset, and collate_fn.
        then: seeds what else there is, after them.
        owned: whether no other thread uses the transforms; else those that may be shared are left alone.

    Cost: 0.1 µs a sample where neither library is imported, 1.1 µs with OpenCV, 7 µs with Albumentations too.
    """

    def __init__(self, *roots: object, then: Seeder, owned: bool = True) -> None:
        self._then = then
        self._random = random.Random(0)
        self._bits = np.random.PCG64(0)
        self._numpy = np.random.Generator(self._bits)
        found = [one.thing for one in _transforms_of(*roots, inside=True) if owned or not one.shared]
        self._transforms = list({id(transform): transform for transform in found}.values())
        self._before: list[tuple[Any, Any, Any]] = []

    def adopt(self) -> None:
        """Let the transforms draw from the pair that :meth:`seed` seeds."""
        self._before = [(thing, thing.random_generator, thing.py_random) for thing in self._transforms]
        for thing in self._transforms:
            thing.random_generator, thing.py_random = self._numpy, self._random

    def release(self) -> None:
        """Give the transforms back the generators they had."""
        while self._before:
            thing, for_numpy, for_random = self._before.pop()
            thing.random_generator, thing.py_random = for_numpy, for_random

    @contextmanager
    def adopted(self) -> Iterator[None]:
        """Adopt, and release at the end."""
        self.adopt()
        try:
            yield
        finally:
            self.release()

    def seed(self, key: bytes) -> None:
        """Seed from 16 bytes of key."""
        self._seed_libraries(key)
        self._then.seed(key)

    def each(self, keys: Keys, ids: Sequence[int]) -> Callable[[], None]:
        """Return a function that seeds for the next sample: see :class:`~fastload.seeding.Seeder`."""
        modules, transforms, then = sys.modules, self._transforms, self._then.each(keys, ids)
        place = -1

        def seed_next() -> None:
            nonlocal place
            place += 1
            if transforms or "cv2" in modules:  # which any sample may be the first to import
                self._seed_libraries(keys.key(ids[place]))
            then()

        return seed_next

    def _seed_libraries(self, key: bytes) -> None:
        # The words are a hash of the key, so that they are not those of other generators.
        opencv = getattr(sys.modules.get("cv2"), "setRNGSeed", None)
        if opencv is not None or self._transforms:
            digest = hashlib.blake2b(key, digest_size=_WORDS.size, person=b"fastload.library").digest()
            state, increment, for_random, for_opencv = _WORDS.unpack(digest)
            if opencv is not None:
                opencv(for_opencv >> 1)  # a C int
            if self._transforms:
                self._random.seed(for_random)
                self._bits.state = {
                    "bit_generator": "PCG64",
                    "state": {
                        "state": int.from_bytes(state, "little"),
                        "inc": int.from_bytes(increment, "little") | 1,  # odd, by the algorithm
                    },
                    "has_uint32": 0,
                    "uinteger": 0,
                }


def _transforms_of(*roots: object, inside: bool) -> list[reachable.Found]:
    if "albumentations" not in sys.modules:
        return []
    from . import reachable

    return reachable.find(list(roots), _is_albumentations, inside=inside)


def copies_for_thread(*roots: Any) -> tuple[Any, ...]:
    """Return the roots with transforms that no other thread uses; those without transforms are returned as they are."""
    found = [transform for transform in _transforms_of(*roots, inside=False) if not transform.shared]
    if not found:
        return roots
    from . import reachable

    copies = {id(transform.thing): copy.deepcopy(transform.thing) for transform in found}
    return tuple(reachable.with_others(list(roots), [(one, copies[id(one.thing)]) for one in found]))


def warn_of_shared_transforms(*roots: object) -> None:
    """Warn of transforms that threads would share, and of what cannot be copied for each of them."""
    names = shared_transforms(*roots)
    if names:
        warnings.warn(
            f"worker threads share Albumentations transforms ({names}) that the dataset reaches by a global variable "
            "or a class: they keep notes while they work, and what they draw depends on the threads' timing; make "
            "them attributes of the dataset, of which each thread gets a copy, or use worker_method='multiprocessing'",
            RuntimeWarning,
            stacklevel=2,
        )


def shared_transforms(*roots: object) -> str:
    """Return the names of the transforms that all copies of these objects share; empty: there are none."""
    shared = [found.thing for found in _transforms_of(*roots, inside=False) if found.shared]
    return ", ".join(sorted({type(thing).__name__ for thing in shared}))


__all__ = ["LibraryGenerators", "copies_for_thread", "shared_transforms", "warn_of_shared_transforms"]
