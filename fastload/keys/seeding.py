"""Per-sample randomness: (seed, epoch, domain, id) -> key -> generators.

A key has 128 bits; from it the three global CPU generators are seeded (``random``, ``numpy.random``, torch's default
generator).

The key is a hash, never a sum: ``seed + epoch`` and ``seed + worker`` give the same stream to different samples, and
torch's CPU generator uses only the low 32 bits of a seed. Neither the worker nor the rank enters the key, so their
number cannot change a sample.

``torch.manual_seed`` is not used: it seeds every accelerator too, and it takes 76 µs where
``torch.default_generator.manual_seed`` takes 0.9 µs.
"""

from __future__ import annotations

import functools
import hashlib
import os
import random
import struct
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

import numpy as np
import torch

from ..base.overrides import PROCESS, Bypass, Override
from ..native import generators

# Each purpose has a domain, so their streams differ. The numbers are part of the key: never renumber.
ORDER = 1
SAMPLE = 2
BATCH = 3
ALL_EPOCHS = 4
SUBSTITUTE = 5
RNG, RNG_BATCH, RNG_WORKER, RNG_PROCESS = 6, 7, 8, 9

place: ContextVar[list[Any] | None] = ContextVar("fastload_place", default=None)
"""Whose generator ``fastload.rng()`` returns here, see :mod:`.rng`; None, or None as its iterator: nobody loads."""
os.register_at_fork(after_in_child=functools.partial(place.set, None))


def fixed_place(seed: int, epoch: int, domain: int, identity: int) -> list[Any]:
    """Return the place of one key."""
    return [None, (), seed, epoch, domain, False, 0, 0, (), identity]


# The generators of the functions random.*() and np.random.*(); in worker threads others are in their places.
random_generator: Any = getattr(random.seed, "__self__", None)
numpy_generator: Any = np.random.mtrand._rand
_torch = torch.default_generator

_PREFIX = struct.Struct("<16sqq")
_WORDS = struct.Struct("<QII")


class Keys:
    """The keys of one epoch, 0, 1, ..., in one domain, a constant of this module; the seed fits 128 bits, signed.

    Cost: about 0.7 µs a key.
    """

    def __init__(self, seed: int, epoch: int, domain: int) -> None:
        self.prefix = _PREFIX.pack(seed.to_bytes(16, "little", signed=True), epoch, domain)
        """The bytes that are hashed before the id."""
        self._hash = hashlib.blake2b(self.prefix, digest_size=16, person=b"fastload.v1")

    def key(self, sample_id: int) -> bytes:
        """Return the 16 bytes of the sample with this id (any integer that fits 128 bits, signed)."""
        digest = self._hash.copy()
        digest.update(int(sample_id).to_bytes(16, "little", signed=True))  # NumPy's integers have no such method
        return digest.digest()


keys_of = functools.lru_cache(maxsize=16)(Keys)
"""Return the :class:`Keys` of a seed, an epoch and a domain: the last ones are not made again."""


def sample_id(index: int, position: int, length: int) -> int:
    """Return the id of a sample in an order of fastload's: its index, and from bit 64 on the number of the repeat.

    ``length``: positions of the epoch's global order from this one on are repeats; 0: there are none.
    """
    return int(index) + (position // length << 64 if length else 0)


def words(key: bytes) -> tuple[int, int, int]:
    """Split 16 bytes of key into seeds for ``random``, NumPy and torch's CPU generator (64, 32, 32 bits)."""
    return _WORDS.unpack(key)


def seed_global_generators(key: bytes) -> None:
    """Seed ``random``, ``numpy.random`` and torch's CPU generator from 16 bytes of key.

    Accelerators' generators are never touched. Cost: about 6 µs.
    """
    for_random, for_numpy, for_torch = words(key)
    random.seed(for_random)
    np.random.seed(for_numpy)
    torch.default_generator.manual_seed(for_torch)


class Seeder(Protocol):
    """Seeds the generators that samples draw from."""

    def seed(self, key: bytes) -> None:
        """Seed from 16 bytes of key."""

    def each(self, keys: Keys, ids: Sequence[int]) -> Callable[[], None]:
        """Return a function that seeds for the next sample at each call, from the first on; a range may exceed them."""


def one_by_one(seed: Callable[[bytes], None], keys: Keys, ids: Iterable[int]) -> Callable[[], None]:
    """Return the result of :meth:`Seeder.each` for a function that seeds from a key."""
    return functools.partial(next, map(seed, map(keys.key, ids)))


class GlobalSeeder(Seeder):
    """Seeds ``random``, ``numpy.random`` and torch's CPU generator.

    Cost: 1 µs a sample if the native library can install states (see :mod:`fastload.native.generators`), 7 µs otherwise
    and for a list of one id. States are computed for 16 samples at once.
    """

    _run: generators.Run | None = None

    def seed(self, key: bytes) -> None:
        seed_global_generators(key)

    def each(self, keys: Keys, ids: Sequence[int]) -> Callable[[], None]:
        """Return a function that seeds for the next sample: see :class:`Seeder`. It is valid until the next call."""
        if len(ids) > 1:
            run = self._run
            if run is None or run.states.bits is not numpy_generator._bit_generator:
                states = global_states()
                run = self._run = None if states is None else generators.Run(states)
            if run is not None and run.begin(keys.prefix, ids):
                return _installer(run, keys, ids)
        return one_by_one(self.seed, keys, ids)


def _installer(run: generators.Run, keys: Keys, ids: Sequence[int]) -> Callable[[], None]:
    for_random, for_numpy, bits, lock = random_generator, numpy_generator, run.states.bits, run.states.lock
    step, step_locked, handle = run.step, run.step_locked, run.handle
    fallback: Callable[[], None] | None = None

    def seed_next() -> None:
        nonlocal fallback
        if fallback is None and for_numpy._bit_generator is bits:
            status = step(handle)
            if status:
                if status == 1:
                    with lock:
                        status = step_locked(handle)
                if status:
                    raise IndexError("cannot seed another sample: there are no more ids")
            for_random.gauss_next = None
            return
        # A sample has called np.random.set_bit_generator().
        fallback = fallback or one_by_one(seed_global_generators, keys, run.left(ids))
        fallback()

    return seed_next


_known_states: generators.States | None = None


def global_states() -> generators.States | None:
    """Return the memory of the global generators' states; None if their own functions must seed them."""
    global _known_states
    if _known_states is None or _known_states.bits is not numpy_generator._bit_generator:
        kinds = type(random_generator), type(numpy_generator), type(numpy_generator._bit_generator)
        usual = kinds == (random.Random, np.random.RandomState, np.random.MT19937)  # not replaced by others
        usable = usual and slow_seeding_reason() is None
        _known_states = generators.States(random_generator, numpy_generator, _torch) if usable else None
    return _known_states


def _states_are_equal(override: Override) -> bool:
    """Return whether installing gives exactly the states that seeding gives, tried with other generators, in 5 ms."""
    keys, ids = Keys(1, 2, SAMPLE), [-(2**63), 0, 2**62]
    for_random, for_numpy, for_torch = random.Random(0), np.random.RandomState(0), torch.Generator()
    states = generators.States(for_random, for_numpy, for_torch)
    run = generators.Run(states)
    run.begin(keys.prefix, ids)
    for identity in ids:
        # Each leaves a second Gaussian in the state, which seeding must clear.
        for_numpy.standard_normal()
        torch.randn(1, generator=for_torch, device="cpu")
        with states.lock:
            if run.step_locked(run.handle):
                return False  # too few states
        a, b, c = words(keys.key(identity))
        _, numbers, *rest = for_numpy.get_state(legacy=True)
        _, expected, *its_rest = np.random.RandomState(b).get_state(legacy=True)
        if (
            for_random.getstate()[:2] != random.Random(a).getstate()[:2]
            or (np.asarray(numbers).tobytes(), rest) != (np.asarray(expected).tobytes(), its_rest)
            or not torch.equal(for_torch.get_state(), torch.Generator().manual_seed(c).get_state())
        ):
            return False
    return True


_PURPOSE = "with a seed, the states of generators are written for each sample"
OVERRIDES = (
    Bypass("torch", "torch:default_generator", "manual_seed", _PURPOSE, None, _states_are_equal, PROCESS),
    Bypass("random", "random", "seed", _PURPOSE, where=PROCESS),
    Bypass("numpy.random", "numpy.random", "seed", _PURPOSE, where=PROCESS),
)


def slow_seeding_reason() -> str | None:
    """Return why the generators' own functions must seed each sample; None if states can be installed."""
    reason = generators.unavailable_reason()
    if reason is None and not OVERRIDES[0].agrees():
        reason = "this Python, NumPy or torch seeds its generators differently than the native library"
    return reason
