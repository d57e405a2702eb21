"""Seed the generators of other libraries: OpenCV's, and those of Albumentations' transforms.

In: a dataset, and the key of each sample. Out: seeded generators. No library is imported here; one that has not been
imported is ignored.

OpenCV has one generator for each thread. It can be seeded but not read, so with ``num_workers=0`` it stays as the last
sample has left it.

Albumentations 2: each transform has a ``random_generator`` and a ``py_random``. All transforms that can be reached from
the dataset and ``collate_fn`` (see :mod:`.albumentations_transforms`) get one common pair, which is seeded before each
sample; the ``seed`` of a ``Compose`` then has no effect. With ``num_workers=0`` they get their own generators back
after each batch.

Not seeded: transforms that are created for each sample, and those of an IterableDataset, which has no sample ids.
"""

from __future__ import annotations

import hashlib
import random
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .seeding import Keys, Seeder

_WORDS = struct.Struct("<16s16sQI")


class LibraryGenerators:
    """Seeds other libraries' generators for one worker, and ``then`` the others.

    ``roots``: the dataset and collate_fn, from which the transforms are reached; those that other threads may use,
    unless they are ``owned``, are left alone.

    Cost: 0.1 µs a sample if neither library is imported, 1.1 µs with OpenCV, 7 µs with Albumentations too.
    """

    def __init__(self, *roots: object, then: Seeder, owned: bool = True) -> None:
        self._then = then
        self._random = random.Random(0)
        self._bits = np.random.PCG64(0)
        self._numpy = np.random.Generator(self._bits)
        self._transforms: list[Any] = []
        if "albumentations" in sys.modules:
            from .albumentations_transforms import transforms_of

            found = [one.thing for one in transforms_of(*roots, inside=True) if owned or not one.shared]
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
