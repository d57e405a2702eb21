"""Seed the generators of other libraries: OpenCV's, and those of transforms (see :mod:`.library_transforms`).

No library is imported here; one that has not been imported is ignored. OpenCV has one generator for each thread. It can
be seeded but not read, so with ``num_workers=0`` it stays as the last sample has left it. Not seeded: transforms that
are created for each sample, and IterableDatasets.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Sequence

from .seeding import Keys, Seeder


class LibraryGenerators:
    """Seeds other libraries' generators for one worker, and ``then`` the others.

    ``roots``: the dataset and collate_fn, from which the transforms are reached; those that other threads may use,
    unless they are ``owned``, are left alone.

    Cost: 0.1 µs a sample if no such library is imported, 1.1 µs with OpenCV, 7 µs with Albumentations or MONAI too.
    """

    def __init__(self, *roots: object, then: Seeder, owned: bool = True) -> None:
        self._then = then
        self._transforms = None
        if "albumentations" in sys.modules or "monai" in sys.modules:
            from .library_transforms import TransformGenerators

            self._transforms = TransformGenerators(*roots, owned=owned) or None

    def adopt(self) -> None:
        """Let the transforms draw from the generators that :meth:`seed` seeds."""
        if self._transforms is not None:
            self._transforms.adopt()

    def release(self) -> None:
        """Give the transforms their own generators back."""
        if self._transforms is not None:
            self._transforms.release()

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
            if transforms is not None or "cv2" in modules:  # any sample may import it
                self._seed_libraries(keys.key(ids[row]))
            then()

        return seed_next

    def _seed_libraries(self, key: bytes) -> None:
        # Another hash of the key, so that the streams differ from those of other generators.
        opencv = getattr(sys.modules.get("cv2"), "setRNGSeed", None)
        if opencv is not None or self._transforms is not None:
            digest = hashlib.blake2b(key, digest_size=44, person=b"fastload.library").digest()
            if opencv is not None:
                opencv(int.from_bytes(digest[40:], "little") >> 1)  # a C int
            if self._transforms is not None:
                self._transforms.seed(digest)
