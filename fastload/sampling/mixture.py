"""Several datasets as one, drawn by weight: :class:`Mixture`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from torch.utils.data import BatchSampler, ConcatDataset, Dataset, IterableDataset

from ..base.checks import as_integer, check_count, check_number, check_seed, is_integer, one_of
from ..errors import ConfigError
from .epochs import Sampling, known_batches
from .mixture_order import MOST_IN_BLOCK, MixtureOrder, Plan, Share, Stage
from .order import Indices
from .packs import Numbers, as_lengths
from .quotas import END

Weights: TypeAlias = Mapping[str, float]

# Differences of pow() between machines must not make different orders.
_DIGITS = 12
_LEAST_SHARE = 2.0**-62


class Mixture(ConcatDataset[Any]):
    """Several map-style datasets, drawn by weight: each block of draws has exactly as many of each as its weight says.

    It is a dataset of all their samples, one source after the other, and brings its own order: give it to a
    ``DistributedBatchSampler``, a ``DistributedSampler``, or ``DataLoader(mixture, shuffle=True, seed=1)``.
    Draw ``n`` of the whole training, all ranks together, depends only on the seed, the weights and ``n``. After any
    number of draws each source has its share of them, off by less than three samples. Each source has its own order and
    its own epochs, by its name: none of its samples comes twice before all have come, and other sources do not matter.

    Args:
        datasets: by name; each with a length of at least 1.
        weights: of each name, relative, not negative; without a name 0. A schedule is a list of them,
            ``[(0, weights), (1_000_000, others)]``, with the draw of the whole training that each holds from. None:
            as many as there are samples, so that an epoch is each sample once.
        alpha: each weight is raised to this power, the inverse of a temperature: with 0 all are equal.
        unit: what weights count. ``"token"``: they are divided by the mean of the source's ``lengths``.
        lengths: of each name [number of samples], integers: the tokens of each sample.
        block: draws in which each source has its quota, in random order. None: a global batch (with a
            ``DistributedSampler`` 256 draws). 1: the sources in fixed turns.
        max_epochs: how often each sample may come in the whole training, of each name or of all; then the other sources
            share that weight.
        num_samples: draws of an epoch of the loader, of all ranks together. ``"first"``: until a source would begin
            anew, ``"all"``: until all have been drawn once. The next epoch goes on with the draw after it.

    Raises:
        ConfigError: an argument is out of its range, or names another source; a source is empty or iterable.

    Examples:
        >>> import fastload
        >>> mixture = fastload.Mixture({"a": range(100), "b": range(1000, 1050)}, {"a": 0.75, "b": 0.25})
        >>> next(iter(fastload.DataLoader(mixture, batch_size=4, shuffle=True, seed=1))).tolist()
        [71, 40, 50, 1006]
    """

    names: tuple[str, ...]
    """Names of the sources, as they were given."""
    lengths: Numbers | None
    """[number of samples]: tokens of each sample, in the order of the dataset's indices."""
    num_samples: int
    """Draws of an epoch."""

    def __init__(
        self,
        datasets: Mapping[str, Dataset[Any]],
        weights: Weights | Sequence[tuple[int, Weights]] | None = None,
        *,
        alpha: float = 1.0,
        unit: Literal["sample", "token"] = "sample",
        lengths: Mapping[str, Any] | None = None,
        block: int | None = None,
        max_epochs: int | Mapping[str, int] | None = None,
        num_samples: int | Literal["first", "all"] = "first",
    ) -> None:
        super().__init__(_checked_sources(datasets))
        self.names = tuple(datasets)
        self.block = None if block is None else check_count("block", block)
        if (self.block or 0) > MOST_IN_BLOCK:
            raise ConfigError(f"block must be at most {MOST_IN_BLOCK}, since a block is drawn as a whole, got {block=}")
        sizes = dict(zip(self.names, np.diff(self.cumulative_sizes, prepend=0).tolist(), strict=True))
        one_of("sample", "token")("unit", unit)
        if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 <= alpha < math.inf:
            raise ConfigError(f"alpha must be a number of at least 0, got {alpha=!r}")
        known = None if lengths is None else _checked_lengths(lengths, sizes)
        self.lengths = None if known is None else np.concatenate([known[name] for name in self.names])
        means = dict.fromkeys(self.names, 1.0)
        if unit == "token":
            if known is None:
                raise ConfigError(
                    "unit='token' needs lengths, the tokens of each sample: for example "
                    "lengths={name: fastload.token_lengths(dataset) for name, dataset in datasets.items()}"
                )
            means = {name: int(known[name].sum(dtype=np.int64)) / sizes[name] for name in self.names}
            if empty := [name for name in self.names if not means[name]]:
                raise ConfigError(f"unit='token' needs sources with tokens, and all lengths of {empty} are 0")
        if weights is None:
            weights = {name: sizes[name] * means[name] for name in self.names}
        given = max_epochs if isinstance(max_epochs, Mapping) else dict.fromkeys(self.names, max_epochs)
        limits = {
            name: check_count(f"max_epochs[{name!r}]", most)
            for name, most in _by_name("max_epochs", given, self.names, all_of_them=False).items()
            if most is not None
        }
        stages = []
        for start, some in _schedule(weights):
            shares = _shares(some, self.names, alpha, means)
            sources = {name: Share(shares[name], sizes[name], limits.get(name, 0)) for name in sorted(sizes)}
            stages.append(Stage(start, sources))
        self.plan = Plan(stages)
        """Which weights hold when; of the loader that was continued last, if one was."""
        self.num_samples = self._num_draws(num_samples)

    def order(self, seed: int, block: int | None = None) -> MixtureOrder:
        """Return the order of the draws, from the beginning of a training on.

        Args:
            seed: an integer of up to 128 bits.
            block: draws of a block, if the mixture was made without one; None: 256.
        """
        ends = self.cumulative_sizes
        places = dict(zip(self.names, map(range, [0, *ends], ends), strict=True))
        check_seed("seed", seed)
        # That of a loader that was continued goes on in the middle of its training.
        plan = Plan(self.plan.declared) if self.plan.since else self.plan
        return MixtureOrder(plan, places, self.num_samples, seed, self.block or block or 256)

    fastload_order = order

    def source_of(self, indices: Any) -> Indices:
        """Return the sources of samples, as places in ``names``, int64, in the shape of ``indices``.

        Raises:
            IndexError: there is no such sample.
        """
        values = np.asarray(indices)
        if values.size and not 0 <= values.min() <= values.max() < len(self):
            raise IndexError(f"indices must be in 0 to {len(self) - 1}, got {values.min()} to {values.max()}")
        return np.searchsorted(self.cumulative_sizes, values, side="right").astype(np.int64)

    def counts(self, num_draws: int) -> dict[str, int]:
        """Return how often each source is drawn in the first ``num_draws`` of the whole training, all ranks together.

        Divided by the lengths of the sources these are their epochs.

        Raises:
            ConfigError: it is not a number of draws, or all sources have reached ``max_epochs`` before.
        """
        number = check_number("num_draws", num_draws)
        counts = self.plan.counts(min(number, END - 1))
        if sum(counts.values()) < number:
            raise ConfigError(f"num_draws must be at most {sum(counts.values())}, all that {self.names} may give")
        return counts

    def _num_draws(self, given: Any) -> int:
        if isinstance(given, str) and given in ("first", "all"):
            number = self.plan.draws_until(every=given == "all")
        elif not is_integer(number := as_integer(given), 1, END - 1):
            raise ConfigError(
                f"num_samples must be 'first', 'all' or an integer of at least 1, got num_samples={given!r}"
            )
        if number is None or self.plan.part_at(number - 1) is None:
            raise ConfigError(
                f"num_samples={given!r} needs draws that the mixture does not have: with these weights and max_epochs "
                f"its sources may give {self.plan.counts(END)}; give a smaller number, or weights and max_epochs with "
                "which each source comes to its end"
            )
        return number


def check_sampler(sampling: Sampling) -> None:
    """Check that the order of a mixture's loader is the mixture's.

    Raises:
        ConfigError: it is torch's, or one that was made for another dataset.
    """
    known = known_batches(sampling)
    if not isinstance(sampling.dataset, Mixture) or getattr(known and known.order, "mixture", None) is not None:
        return
    samplers = [one for one in sampling.samplers if type(one) is not BatchSampler]
    of_torch = [one for one in samplers if type(one).__module__.startswith("torch.")]
    if known is not None or of_torch:
        sampler = [*of_torch, *samplers][0]
        raise ConfigError(
            f"a Mixture is drawn by weight, which {type(sampler).__name__} does not know: write "
            "DataLoader(mixture, batch_size=32, shuffle=True, seed=1), or with several ranks "
            "batch_sampler=fastload.DistributedBatchSampler(mixture, global_batch_size, seed=1); for each sample once "
            "take torch.utils.data.ConcatDataset(mixture.datasets)"
        )


def _checked_sources(datasets: Any) -> list[Dataset[Any]]:
    if not isinstance(datasets, Mapping) or not datasets or not all(isinstance(name, str) for name in datasets):
        raise ConfigError(
            f"datasets must be a dict of at least one dataset by its name, got {type(datasets).__name__} of "
            f"{list(datasets) if isinstance(datasets, Mapping) else '...'}"
        )
    for name, dataset in datasets.items():
        is_map_style = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
        if isinstance(dataset, IterableDataset) or not is_map_style:
            raise ConfigError(
                f"datasets must have a length and take an index, and {name!r} is {type(dataset).__name__}: write a "
                "stream to files once, or mix streams by datasets.interleave_datasets"
            )
        if hasattr(type(dataset), "fastload_order"):
            raise ConfigError(f"datasets must not be mixtures, and {name!r} is one: give its sources and their weights")
        if not len(dataset):
            raise ConfigError(f"datasets must not be empty, and {name!r} has no sample; leave it out")
    return list(datasets.values())


def _by_name(argument: str, values: Any, names: Sequence[str], *, all_of_them: bool) -> dict[str, Any]:
    if not isinstance(values, Mapping):
        raise ConfigError(f"{argument} must be a dict with the names of the sources, got {type(values).__name__}")
    unknown = [name for name in values if name not in names]
    missing = [name for name in names if name not in values] if all_of_them else []
    if unknown or missing:
        raise ConfigError(f"{argument} must be for the sources {list(names)}, got {unknown=}, {missing=}")
    return dict(values)


def _checked_lengths(lengths: Any, sizes: Mapping[str, int]) -> dict[str, Numbers]:
    given = _by_name("lengths", lengths, tuple(sizes), all_of_them=True)
    return {name: as_lengths(some, sizes[name], f"one for each of {name!r}", 0) for name, some in given.items()}


def _schedule(weights: Any) -> list[tuple[int, Any]]:
    if isinstance(weights, Mapping):
        return [(0, weights)]
    try:
        stages = [(as_integer(start), some) for start, some in weights]
    except (TypeError, ValueError):
        stages = []
    starts = [start for start, _ in stages]
    in_order = all(is_integer(start, 0, END) for start in starts) and starts == sorted(set(starts))
    if not in_order or starts[:1] != [0]:
        raise ConfigError(
            "weights must be a dict with the names of the sources, or a list of (draw, such a dict) with rising draws, "
            f"the first of which is 0, got {type(weights).__name__} with draws {starts}"
        )
    return stages


def _shares(weights: Any, names: Sequence[str], alpha: float, means: Mapping[str, float]) -> dict[str, float]:
    """Return the share of each name in the draws."""
    given = _by_name("weights", weights, names, all_of_them=False)
    for name, weight in given.items():
        try:
            number = float(weight)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not 0 <= number < math.inf:
            raise ConfigError(f"weights must be finite numbers of at least 0, got {weight!r} for {name!r}")
        given[name] = number
    most = max(given.values(), default=0.0)
    if not most:
        raise ConfigError(f"weights must not all be 0, got {weights!r}")
    shares = {name: (weight / most) ** alpha / means[name] if weight else 0.0 for name, weight in given.items()}
    if alpha not in (0, 1):
        shares = {name: float(f"{share:.{_DIGITS}g}") for name, share in shares.items()}
    total = math.fsum(shares.values())
    # A source with any weight stays one, however small that is.
    return {name: max(shares[name] / total, _LEAST_SHARE) if given.get(name) else 0.0 for name in names}
