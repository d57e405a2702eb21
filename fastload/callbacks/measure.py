"""``Stall``: measures what the steps of a training lose to data. Every callback is a shell around one."""

from __future__ import annotations

import sys
from typing import Any

import torch.distributed as dist
from torch.utils.data import IterableDataset

from ..base.cgroups import processors
from ..engine.stall import Loads, Totals, WorkerTimes, last_line, numbers, over_ranks
from ..engine.steps import Steps
from ..loader import DataLoader
from .processes import WorkerClocks
from .ranks import Exchange, Numbers, kind_of
from .watching import innermost, unwatch, watch, worker_pids


class Stall:
    """Measures what the steps over a loader lose to data, for the tracker of a training.

    It costs at most 20 µs a step, and never waits for a device: without a GPU 3 to 8 µs of the loop's thread, numbers
    every 50 steps included (``benchmarks/stall.py``). With CUDA the device's clock counts (not verified: no GPU), else
    the host's.

    Args:
        loader: a :class:`fastload.DataLoader`, torch's, or what Accelerate has prepared.
        iterator: one over it that has begun; without it torch's loader is measured from its next iteration on.

    Raises:
        ConfigError: it is no ``DataLoader``.
    """

    def __init__(self, loader: Any, iterator: Any = None) -> None:
        self._loader: Any = None
        self._steps: Steps | None = None
        self._window = self._sum = Totals()
        self._last: Numbers = {}
        self._window_workers: WorkerTimes | None = None
        self._workers: WorkerTimes | None = None
        self.follow(loader, iterator)
        self._exchange = Exchange(kind_of(self._loader))

    def follow(self, loader: Any, iterator: Any = None) -> None:
        """Measure this loader from now on; what was measured so far stays. Nothing happens if it is the same."""
        inner = innermost(loader)
        if inner is self._loader:
            return
        self.close()
        self._loader, self._clocks = inner, WorkerClocks()
        self._steps = watch(inner, iterator)
        self._before = Totals.of(self._steps.sums, self._steps.device)

    def skip(self) -> None:
        """Something else than the step happens now, as a validation: the current step does not count."""
        if self._steps is not None:
            self._steps.skip()

    def numbers(self) -> Numbers:
        """Return the numbers of the steps since the last call: ``data/share`` and others, see the documentation.

        With several ranks, on rank 0: their means, ``data/worst_share``, ``data/worst_rank`` and ``data/ranks``, of the
        numbers that the others left last. Every rank must call this, and none waits for another. Empty where no step
        was completed meanwhile.
        """
        self._take()
        self._last = self._numbers_of(self._window, self._window_workers)
        self._window, self._window_workers = Totals(), None
        return over_ranks({rank: window for rank, (window, _) in self._swap().items()})

    def last_line(self) -> str:
        """Return what all steps so far lost to data, the stage to blame, and the fix, in words."""
        self._take()
        found = over_ranks({rank: whole for rank, (_, whole) in self._swap().items()})
        line = last_line(found, self.loads, by_device=self._sum.busy_ns > 0)
        lost = self._exchange.lost
        return line if lost is None else f"{line} (without the other ranks: {lost})"

    def _swap(self) -> dict[int, tuple[Numbers, Numbers]]:
        """Exchange the numbers of the last window and of all steps."""
        return self._exchange.swap((self._last, self._numbers_of(self._sum, self._workers)))

    @property
    def rank(self) -> int:
        """This process's rank, also after its process group has ended."""
        return self._exchange.rank

    @property
    def loads(self) -> Loads:
        """How the loader loads."""
        loader = self._loader
        return Loads(
            num_workers=loader.num_workers,
            cores=processors(),
            is_ours=isinstance(loader, DataLoader),
            persistent_workers=loader.persistent_workers,
        )

    def close(self) -> None:
        """Measure no longer. What was measured so far stays."""
        if self._steps is not None:
            self._take()
            unwatch(self._loader, self._steps)
            self._steps = None

    def _take(self) -> None:
        """Add what was counted since the last time to the window and the whole."""
        if self._steps is None:
            return
        totals = Totals.of(self._steps.sums, self._steps.device)
        passed, self._before = totals.since(self._before), totals
        workers = None
        if getattr(self._loader, "worker_threads", 1) == 1:  # else their other threads do the work
            workers = self._clocks.read(worker_pids(self._loader, self._steps))
        self._window, self._sum = _sum(self._window, passed), _sum(self._sum, passed)
        if workers is not None:
            self._window_workers = workers if self._window_workers is None else _sum(self._window_workers, workers)
            self._workers = workers if self._workers is None else _sum(self._workers, workers)

    def _numbers_of(self, totals: Totals, workers: WorkerTimes | None) -> Numbers:
        return numbers(
            totals, num_workers=self._loader.num_workers, batch_size=_batch_size(self._loader), workers=workers
        )


def say(line: str, rank: int | None = None) -> None:
    """Print a line for the user, on rank 0. ``rank``: this process's, where it is known."""
    if rank is None:
        rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
    if rank == 0:
        print(f"fastload: {line}", file=sys.stderr, flush=True)


def _sum(one: Any, other: Any) -> Any:
    return type(one)(*map(sum, zip(one, other, strict=True)))


def _batch_size(loader: Any) -> float | None:
    """Return the samples of a step, on average; None: unknown."""
    if isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset):
        counts = loader._kept.counts
        if counts.batches:
            return float(counts.samples / counts.batches)
    size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    return float(size) if isinstance(size, int) else None
