"""Randomness that belongs to the sample: (seed, epoch, domain, id) -> key -> generators.

In: a seed, an epoch, a domain and the id of a sample. Out: a 128-bit key, and the three global CPU generators
(``random``, ``numpy.random``, torch's default generator) seeded from it.

The key is a hash, never a sum: ``seed + epoch`` and ``seed + worker`` give the same stream to different samples,
and torch's CPU generator keeps only the low 32 bits of what it is given, so information must not lie in the high
ones. Neither the worker nor the rank enters the key, so that their number cannot change a sample.

``torch.manual_seed`` is not used: it seeds every accelerator too, and it takes 76 µs where
``torch.default_generator.manual_seed`` takes 0.9 µs.
"""

from __future__ import annotations

import functools
import hashlib
import random
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset

from .native import generators

# Domains keep the streams of different purposes apart. The numbers are part of the key: never renumber.
ORDER = 1
SAMPLE = 2
BATCH = 3
ALL_EPOCHS = 4
SUBSTITUTE = 5

# Those that random.seed() and np.random.seed() seed, whatever stands for them meanwhile: see workers/routing.py.
_random: Any = getattr(random.seed, "__self__", None)
_numpy: Any = np.random.mtrand._rand
_torch = torch.default_generator

_PREFIX = struct.Struct("<16sqq")
_WORDS = struct.Struct("<QII")


class Keys:
    """The keys of one epoch in one domain.

    Args:
        seed: any integer that fits 128 bits, signed.
        epoch: 0, 1, ...
        domain: one of the constants of this module.

    Cost: about 0.7 µs a key.
    """

    def __init__(self, seed: int, epoch: int, domain: int) -> None:
        self.prefix = _PREFIX.pack(seed.to_bytes(16, "little", signed=True), epoch, domain)
        """What is hashed before the id."""
        self._hash = hashlib.blake2b(self.prefix, digest_size=16, person=b"fastload.v1")

    def key(self, sample_id: int) -> bytes:
        """Return the 16 bytes of the sample with this id (any integer that fits 128 bits, signed)."""
        digest = self._hash.copy()
        digest.update(sample_id.to_bytes(16, "little", signed=True))
        return digest.digest()


def sample_id(index: int, position: int, length: int) -> int:
    """Return the id of a sample in an order of ours: its index, and above 64 bits which repeat of it this is.

    Args:
        index: in the dataset.
        position: in the epoch's global order.
        length: positions of the order, where those beyond it are repeats; 0 where there are none.
    """
    return int(index) + (position // length << 64 if length else 0)


def words(key: bytes) -> tuple[int, int, int]:
    """Return the seeds of ``random``, NumPy and torch's CPU generator (64, 32, 32 bits) that 16 bytes of key are."""
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
    """Seeds what samples draw from."""

    def seed(self, key: bytes) -> None:
        """Seed from 16 bytes of key."""

    def each(self, keys: Keys, ids: Sequence[int]) -> Callable[[], None]:
        """Return a function that seeds for the next of some samples, from the first on.

        Args:
            keys: of the samples.
            ids: of the samples; in a range more may follow than are asked for.
        """


def one_by_one(seed: Callable[[bytes], None], keys: Keys, ids: Iterable[int]) -> Callable[[], None]:
    """Return :meth:`Seeder.each` of a function that seeds from a key."""
    return functools.partial(next, map(seed, map(keys.key, ids)))


class GlobalSeeder:
    """Seeds ``random``, ``numpy.random`` and torch's CPU generator.

    Cost: 1 µs a sample where the native library can install states (see :mod:`fastload.native.generators`), 7 µs
    elsewhere, and for a list of one id. States are computed for 16 samples at once.
    """

    def __init__(self) -> None:
        self._run: generators.Run | None = None

    def seed(self, key: bytes) -> None:
        """Seed from 16 bytes of key."""
        seed_global_generators(key)

    def each(self, keys: Keys, ids: Sequence[int]) -> Callable[[], None]:
        """Return a function that seeds for the next sample: see :class:`Seeder`. It is good until the next call."""
        if len(ids) > 1:
            run = self._run
            if run is None or run.states.bits is not _numpy._bit_generator:
                states = global_states()
                run = self._run = None if states is None else generators.Run(states)
            if run is not None and run.begin(keys.prefix, ids):
                return _installer(run, keys, ids)
        return one_by_one(self.seed, keys, ids)


def _installer(run: generators.Run, keys: Keys, ids: Sequence[int]) -> Callable[[], None]:
    for_random, for_numpy, bits, lock = _random, _numpy, run.states.bits, run.states.lock
    step, step_locked, handle = run.step, run.step_locked, run.handle
    otherwise: Callable[[], None] | None = None

    def seed_next() -> None:
        nonlocal otherwise
        if otherwise is None and for_numpy._bit_generator is bits:
            status = step(handle)
            if status:
                if status == 1:
                    with lock:
                        status = step_locked(handle)
                if status:
                    raise IndexError("more samples are to be seeded than there are ids")
            for_random.gauss_next = None
            return
        # A sample has given NumPy another bit generator.
        otherwise = otherwise or one_by_one(seed_global_generators, keys, run.left(ids))
        otherwise()

    return seed_next


class VisitingSeeder(GlobalSeeder):
    """Seeds the global generators in the user's own process: notes their states before, and gives them back."""

    def __init__(self) -> None:
        super().__init__()
        self._noted: _Noted | None = None

    def seed(self, key: bytes) -> None:
        """Seed from 16 bytes of key."""
        self._note()
        super().seed(key)

    def each(self, keys: Keys, ids: Sequence[int]) -> Callable[[], None]:
        """Return a function that seeds for the next sample: see :class:`GlobalSeeder`."""
        self._note()
        return super().each(keys, ids)

    def give_back(self) -> None:
        """Give the generators the states they had before they were seeded, if they were."""
        noted, self._noted = self._noted, None
        if noted is not None:
            noted.give_back()

    def _note(self) -> None:
        if self._noted is None:
            self._noted = _Noted()


_known_states: generators.States | None = None


def global_states() -> generators.States | None:
    """Return the global generators' states as memory; None where they have to be seeded by their own functions."""
    global _known_states
    if _known_states is None or _known_states.bits is not _numpy._bit_generator:
        kinds = type(_random), type(_numpy), type(_numpy._bit_generator)
        usual = kinds == (random.Random, np.random.RandomState, np.random.MT19937)  # nobody has put in others
        usable = usual and slow_because() is None
        _known_states = generators.States(_random, _numpy, _torch) if usable else None
    return _known_states


@functools.cache
def slow_because() -> str | None:
    """Return why each sample has to be seeded by the generators' own functions; None where states can be installed.

    That is found with generators of its own: what is installed in them must be, to the last bit, what seeding gives.
    Cost: 5 ms, once in a process.
    """
    reason = generators.why_not()
    if reason is not None:
        return reason
    keys, ids = Keys(1, 2, SAMPLE), [-(2**63), 0, 2**62]
    for_random, for_numpy, for_torch = random.Random(0), np.random.RandomState(0), torch.Generator()
    try:
        states = generators.States(for_random, for_numpy, for_torch)
        run = generators.Run(states)
        run.begin(keys.prefix, ids)
        for identity in ids:
            # A Gaussian is kept of what was drawn before.
            for_numpy.standard_normal()
            torch.randn(1, generator=for_torch, device="cpu")
            with states.lock:
                if run.step_locked(run.handle):
                    return "the native library gives fewer states than there are samples"
            a, b, c = words(keys.key(identity))
            _, numbers, *rest = for_numpy.get_state(legacy=True)
            _, expected, *its_rest = np.random.RandomState(b).get_state(legacy=True)
            if (
                for_random.getstate()[:2] != random.Random(a).getstate()[:2]
                or (np.asarray(numbers).tobytes(), rest) != (np.asarray(expected).tobytes(), its_rest)
                or not torch.equal(for_torch.get_state(), torch.Generator().manual_seed(c).get_state())
            ):
                return "the states that the native library installs are not those of this Python, NumPy or torch"
    except Exception as error:  # whatever other versions raise
        return f"installing states failed: {error!r}"
    return None


class _Noted:
    """The states of the three global CPU generators."""

    def __init__(self) -> None:
        self._states = global_states()
        if self._states is not None:
            self._memory, self._gauss_next = self._states.read(), _random.gauss_next
        else:
            self._for_random, self._for_numpy = random.getstate(), np.random.get_state()
            self._for_torch = torch.default_generator.get_state()

    def give_back(self) -> None:
        """Give the generators these states."""
        if self._states is not None:
            self._states.write(self._memory)
            _random.gauss_next = self._gauss_next
        else:
            random.setstate(self._for_random)
            np.random.set_state(self._for_numpy)
            torch.default_generator.set_state(self._for_torch)


@contextmanager
def preserved_global_generators() -> Iterator[None]:
    """Give the three global CPU generators their state back at the end.

    For code that seeds them in the user's own process. Cost: 3 µs; 60 µs where their states are not known as memory.
    """
    noted = _Noted()
    try:
        yield
    finally:
        noted.give_back()


def torch_worker_streams(base_seed: int, worker_id: int) -> None:
    """Seed the global generators of a worker process as torch does: ``base_seed + worker_id``."""
    seed, for_numpy = torch_worker_seeds(base_seed, worker_id)
    random.seed(seed)
    torch.manual_seed(seed)
    np.random.seed(for_numpy)


def torch_worker_seeds(base_seed: int, worker_id: int) -> tuple[int, list[int]]:
    """Return the seed of ``random`` and torch, and NumPy's, in torch's worker of this number."""
    from torch.utils.data._utils.worker import _generate_state

    return base_seed + worker_id, _generate_state(base_seed, worker_id)


def draws_nothing(dataset: object) -> bool:
    """Whether indexing this dataset is known to draw no random numbers, so that seeding can be left out.

    Only exact types count: a subclass may do anything.
    """
    kind = type(dataset)
    if kind in (TensorDataset, list, tuple, range, str, bytes, np.ndarray, torch.Tensor):
        return True
    if isinstance(dataset, Subset) and kind is Subset:
        return draws_nothing(dataset.dataset)
    if isinstance(dataset, ConcatDataset) and kind is ConcatDataset:
        return all(draws_nothing(part) for part in dataset.datasets)
    if isinstance(dataset, StackDataset) and kind is StackDataset:
        parts: object = dataset.datasets
        members = parts.values() if isinstance(parts, dict) else parts
        return all(draws_nothing(part) for part in members)  # type: ignore[attr-defined]  # a tuple, by its constructor
    return False


__all__ = [
    "ALL_EPOCHS",
    "BATCH",
    "ORDER",
    "SAMPLE",
    "SUBSTITUTE",
    "GlobalSeeder",
    "Keys",
    "Seeder",
    "VisitingSeeder",
    "draws_nothing",
    "one_by_one",
    "preserved_global_generators",
    "sample_id",
    "seed_global_generators",
    "slow_because",
    "torch_worker_seeds",
    "torch_worker_streams",
    "words",
]
