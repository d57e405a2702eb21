"""Random parameters of a batch, drawn on the host: a sample's depend on its key alone, not on the batch."""

from __future__ import annotations

import functools
import itertools
import math
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from ..errors import ConfigError
from ..keys.philox import SampleWords, Words

Floats: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]


@dataclass(eq=False)
class Draws:
    """The random numbers of a batch, from the key of the epoch and the ids of its samples.

    Args:
        key: of the epoch, at least 8 bytes.
        ids: [N], int64: the samples' indices in the dataset, or their positions in the epoch.
        repeats: [N], int64: how often each sample has occurred before in a padded epoch; None: all 0.
        prefix: of the names of all streams.
        epochs: the epoch, and a key that all epochs share; None: ids do not name the same samples in all epochs.
    """

    key: bytes
    ids: Integers
    repeats: Integers | None = None
    prefix: str = ""
    epochs: tuple[int, bytes] | None = None
    shape: Any = field(default=None, init=False)
    """The ``fastload.transforms.BatchShape`` that parameters were drawn for last."""

    @classmethod
    def from_generator(cls, generator: torch.Generator | None, num_samples: int) -> Draws:
        """Return draws with a key from a CPU generator, or torch's global one; it gives 64 bits, whatever is drawn."""
        bits = torch.randint(-(2**63), 2**63 - 1, (), dtype=torch.int64, device="cpu", generator=generator).item()
        return cls(int(bits).to_bytes(8, "little", signed=True), np.arange(num_samples, dtype=np.int64))

    @staticmethod
    def joined(draws: Sequence[Draws]) -> Draws:
        """Return the draws of several batches of one epoch as those of one."""
        ids, repeats = np.concatenate([one.ids for one in draws]), None
        if any(one.repeats is not None for one in draws):
            repeats = np.concatenate([one._all_repeats() for one in draws])
        return replace(draws[0], ids=ids, repeats=repeats)

    def __len__(self) -> int:
        return len(self.ids)

    def stream(self, purpose: str) -> Stream:
        """Return the stream of one transform; streams of different purposes are independent."""
        return Stream(self, zlib.crc32((self.prefix + purpose).encode()))

    def for_images(self, num_images: int) -> Draws:
        """Return the draws of a batch's images, which may be more or fewer than its samples.

        Fewer: those of the first samples. More, for a collate_fn that makes several images of each sample: the images
        cycle through the samples, and each has its own draws.
        """
        if num_images <= len(self) or not len(self):
            return self if num_images == len(self) else self.of(slice(num_images))
        turns, rows = np.divmod(np.arange(num_images), len(self))
        return replace(self, ids=self.ids[rows], repeats=self._all_repeats()[rows] + (turns << 6))

    def of(self, rows: Any) -> Draws:
        """Return the draws of some of the samples."""
        return replace(self, ids=self.ids[rows], repeats=None if self.repeats is None else self.repeats[rows])

    def _all_repeats(self) -> Integers:
        return np.zeros(len(self), dtype=np.int64) if self.repeats is None else self.repeats


_given: ContextVar[tuple[Draws, Iterator[int]] | None] = ContextVar("_given", default=None)


@contextmanager
def using_draws(draws: Draws | None) -> Iterator[None]:
    """Make transforms that are called in this context without draws use these."""
    token = _given.set(None if draws is None else (draws, itertools.count(1)))
    try:
        yield
    finally:
        _given.reset(token)


def draws_for(num_images: int, generator: torch.Generator | None) -> Draws:
    """Return the draws of a call without any: of ``using_draws``, new for each call; else of a generator."""
    given = _given.get()
    if given is None or generator is not None:
        return Draws.from_generator(generator, num_images)
    draws, call = given[0].for_images(num_images), next(given[1])
    return draws if call == 1 else replace(draws, prefix=f"call {call}: ")


class Stream:
    """Random numbers for one transform: for N samples, independent of each other and of all other samples'."""

    def __init__(self, draws: Draws, purpose: int) -> None:
        self._draws = draws
        self._purpose = purpose
        self._block = 0

    def __len__(self) -> int:
        return len(self._draws)

    def of_all_epochs(self) -> tuple[int, Stream]:
        """Return the epoch, and a stream with the same numbers in all epochs.

        A ConfigError if ids do not name the same samples in all of them.
        """
        if self._draws.epochs is None:
            raise ConfigError(
                "draws that hold for all epochs need samples that are named by their index: use a "
                "fastload.DataLoader with an integer seed and without a sampler of your own"
            )
        epoch, key = self._draws.epochs
        return epoch, Stream(replace(self._draws, key=key, repeats=None), self._purpose)

    def words(self, count: int) -> Words:
        """Return [N, count] new uint32."""
        words = self._next().words(count)
        self._block += -(-count // 4)
        return words

    def _next(self) -> SampleWords:
        draws = self._draws
        return SampleWords(draws.key, draws.ids, self._purpose, self._block, draws.repeats)

    def uniform(self, low: float = 0.0, high: float = 1.0, count: int | None = None) -> Floats:
        """Return uniform numbers in [low, high): [N], or [N, count]."""
        num = count or 1
        unit = self._next().units(num)
        self._block += -(-2 * num // 4)
        if (low, high) != (0.0, 1.0):
            unit = unit * (high - low) + low
        return unit if count is not None else unit[:, 0]

    def log_uniform(self, low: float, high: float, count: int) -> Floats:
        """Return [N, count] numbers in [low, high), whose logarithms are uniform."""
        return np.exp(self.uniform(math.log(low), math.log(high), count=count))

    def integers(self, bound: int | Integers) -> Integers:
        """Return [N] uniform integers in [0, bound). ``bound`` is a number, or one for each of them."""
        return to_integers(self.uniform(), bound)

    def chance(self, probability: float) -> Flags:
        """Return [N] flags, each True with this probability."""
        return self.uniform() < probability

    def permutation(self, length: int) -> Integers:
        """Return [N, length]: a random order of 0 to length - 1 for each sample."""
        return np.argsort(self.uniform(count=length), axis=1, kind="stable")

    def beta(self, alpha: float) -> Floats:
        """Return [N] numbers of the distribution Beta(alpha, alpha): by the inverse of its distribution function."""
        unit = self.uniform()
        shares, roots, power = _half_of_beta(alpha)
        low = np.interp(np.minimum(unit, 1 - unit), shares, roots) ** power
        return np.where(unit < 0.5, low, 1 - low)


@functools.cache
def _half_of_beta(alpha: float) -> tuple[Floats, Floats, float]:
    """Return how much of Beta(alpha, alpha) lies below x, for places x of [0, 0.5].

    The places are given by their roots, x ** (1 / power), which are evenly spaced. Below alpha = 1 the density of x is
    infinite at 0, and that of its root is not.
    """
    power = max(1.0, 1 / alpha)
    roots = np.linspace(0, 0.5 ** (1 / power), 1 << 14)
    places = np.minimum(roots**power, 0.5)
    density = (4 * places * (1 - places) if alpha > 1 else 1 - places) ** (alpha - 1)
    shares = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return shares * (0.5 / shares[-1]), roots, power


def to_integers(unit: Floats, bound: int | Integers) -> Integers:
    """Return uniform integers in [0, bound), from uniform numbers in [0, 1)."""
    drawn: Integers = (unit * bound).astype(np.int64)
    least: Integers = np.minimum(drawn, bound - 1, out=drawn)  # a product may be rounded up to the bound
    return least


def first_fitting(fits: Flags, heights: Floats, widths: Floats) -> tuple[Flags, Floats, Floats]:
    """Return [N] each: whether one of [N, attempts] heights and widths fits, and the first that does."""
    first = fits.argmax(axis=1)[:, None]
    height, width = (np.take_along_axis(lengths, first, axis=1)[:, 0] for lengths in (heights, widths))
    return np.asarray(fits.any(axis=1)), height, width
