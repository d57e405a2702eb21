"""``Stall``: what the steps of a training lost to data, for its tracker. Every callback is a shell around one."""

from __future__ import annotations

import sys
from typing import Any

import torch.distributed as dist

from ..engine.statistics import samples_of_step
from ..loader import DataLoader
from ..measurement.numbers import Steps, over_ranks, stall_in_words, stall_of


class Stall:
    """Measures what the steps over a loader lose to data, from now on, for the tracker of a training.

    The loader counts its steps itself, by the host's clock; see ``stall`` in ``DataLoader.statistics()``. torch's own
    loader does not: then one line on standard error says so, and there are no numbers.

    Args:
        loader: a :class:`fastload.DataLoader`, or what Accelerate has prepared from one.
    """

    def __init__(self, loader: Any) -> None:
        self._loader: DataLoader[Any] | None = None
        self._before = self._counted = self._logged = Steps()
        self._has_told = False
        self.follow(loader)

    def follow(self, loader: Any) -> None:
        """Take the numbers of this loader from now on; those so far stay."""
        self._take()
        while (inner := getattr(loader, "base_dataloader", None)) is not None:
            loader = inner
        if isinstance(loader, DataLoader):
            self._loader, self._before = loader, Steps(*loader._runtime.measured.steps)
            return
        self._loader = None
        if not self._has_told:
            self._has_told = True
            say(
                f"nothing is logged of what steps lose to data: the loader is no fastload.DataLoader, but of type "
                f"{type(loader).__qualname__}. `fastload run` on the script puts fastload's class in place of torch's; "
                "`fastload profile` measures a script with torch's"
            )

    def skip(self) -> None:
        """Something else than the step happens now, as a validation: the current step does not count."""
        if self._loader is not None:
            self._loader._runtime.measured.skip_step()

    def numbers(self) -> dict[str, float]:
        """Return the numbers of the steps since the last call: ``data/share`` and others, see the documentation.

        Empty where no step was completed meanwhile. With a process group: the means over its ranks, and the worst one.
        Then all ranks must call this at the same steps, and wait for each other here.
        """
        self._take()
        own, self._logged = self._numbers_of(self._counted.since(self._logged)), self._counted
        if self._loader is None or not (dist.is_available() and dist.is_initialized()):
            return own
        of_ranks: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(of_ranks, own)
        return over_ranks(of_ranks)

    def last_line(self) -> str:
        """Return what all steps so far lost to data, and where, in words: those of this rank."""
        self._take()
        return stall_in_words(self._numbers_of(self._counted))

    def end(self) -> None:
        """Print :meth:`last_line` on rank 0, if the loader counts its steps."""
        if self._loader is not None:
            say(self.last_line())

    def _take(self) -> None:
        """Add what the loader has counted since the last time."""
        if self._loader is not None:
            now = Steps(*self._loader._runtime.measured.steps)
            self._counted, self._before = self._counted.plus(now.since(self._before)), now

    def _numbers_of(self, steps: Steps) -> dict[str, float]:
        loader = self._loader
        if loader is None:
            return {}
        samples = samples_of_step(loader.dataset, loader.batch_size, loader._runtime.counts)
        return stall_of(steps, num_workers=loader.num_workers, batch_size=samples)


def say(line: str) -> None:
    """Print a line for the user, on rank 0."""
    if not (dist.is_available() and dist.is_initialized() and dist.get_rank()):
        print(f"fastload: {line}", file=sys.stderr, flush=True)
