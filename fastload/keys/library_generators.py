"""Seed the generators of other libraries: OpenCV's, and those of Albumentations' transforms.

In: a dataset, and the key of each sample. Out: seeded generators. No library is imported here; one that has not been
imported is ignored.

OpenCV has one generator for each thread. It can be seeded but not read, so with ``num_workers=0`` it stays as the last
sample has left it.

Albumentations 2: each transform has a ``random_generator`` and a ``py_random``. All transforms that can be reached from
the dataset and ``collate_fn`` get one common pair, which is seeded before each sample; the ``seed`` of a ``Compose``
then has no effect. With ``num_workers=0`` they get their own generators back after each batch. A transform is stateful
while it runs, so each worker thread gets copies of the transforms, and of the objects and functions that lead to them
(what a dataset writes into its attributes in one thread, the others do not see). A transform that cannot be copied for
each thread, such as one in a global variable, causes a warning.

Not seeded: transforms that are created for each sample, and those of an IterableDataset, which has no sample ids.
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
    from ..base import reachable

_WORDS = struct.Struct("<16s16sQI")


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


class LibraryGenerators:
    """Seeds other libraries' generators for one worker.

    Args:
        roots: the dataset and collate_fn, from which the transforms are reached.
        then: seeds the other generators, after these.
        owned: no other thread uses the transforms; if False, those that may be shared are left alone.

    Cost: 0.1 µs a sample if neither library is imported, 1.1 µs with OpenCV, 7 µs with Albumentations too.
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
        """Give the transforms their own generators back."""
        while self._before:
            thing, for_numpy, for_random = self._before.pop()
            thing.random_generator, thing.py_random = for_numpy, for_random

    @contextmanager
    def adopted(self) -> Iterator[None]:
        """Call :meth:`adopt`, and :meth:`release` at the end."""
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
        """Return a function that seeds for the next sample: see :class:`~fastload.keys.seeding.Seeder`."""
        modules, transforms, then = sys.modules, self._transforms, self._then.each(keys, ids)
        row = -1

        def seed_next() -> None:
            nonlocal row
            row += 1
            if transforms or "cv2" in modules:  # any sample may import it
                self._seed_libraries(keys.key(ids[row]))
            then()

        return seed_next

    def _seed_libraries(self, key: bytes) -> None:
        # Another hash of the key, so that the streams differ from those of other generators.
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
    from ..base import reachable

    return reachable.find(list(roots), _is_albumentations, inside=inside)


def copies_for_thread(*roots: Any) -> tuple[Any, ...]:
    """Return copies of the roots with transforms of their own; roots without transforms are returned unchanged."""
    found = [transform for transform in _transforms_of(*roots, inside=False) if not transform.shared]
    if not found:
        return roots
    from ..base import reachable

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
    shared = [found.thing for found in _transforms_of(*roots, inside=False) if found.shared]
    return ", ".join(sorted({type(thing).__name__ for thing in shared}))
