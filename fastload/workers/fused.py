"""Samples that a fused dataset loads, many at once, in the place of the user's dataset.

In: indices. Out: samples, or rows that were written where they are to be. Imported only with ``fuse=True``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

from torch import Tensor

from ..buffers.layout import DoesNotFit, Layout, Sink
from ..observe import Watch
from ..work import WorkItem
from .samples import SampleLoader, stopped


class FusedSamples(Protocol):
    """Samples that were loaded at once: see :class:`fastload.fusion.Loaded`."""

    @property
    def targets(self) -> list[Any]:
        """The second part of each sample."""

    def samples(self) -> list[Any]:
        """Return the samples as the dataset gives them."""

    def batch(self) -> Any:
        """Return what ``default_collate`` makes of the samples; None: the images are not in one tensor."""

    def copied(self) -> FusedSamples:
        """Return the same with images in memory of their own."""


class Fused(Protocol):
    """A dataset whose transform is fused: see :class:`fastload.fusion.FusedDataset`."""

    def of(self, dataset: Any) -> Fused:
        """Return the same for one worker, and its own dataset."""

    def follows(self, epoch: int) -> bool:
        """Whether the dataset, as it is now, can still be loaded here; to be asked before what follows."""

    def fits(self, layout: Layout) -> bool:
        """Whether the images can be written into rows of this layout."""

    def load(
        self,
        indices: Sequence[Any],
        ids: Iterable[int],
        epoch: int,
        *,
        out: Tensor | None = None,
        seed: Callable[[bytes], None],
        failed: Callable[[int, Exception], bool] | None = None,
    ) -> FusedSamples:
        """Load samples, and call the user's code once for each; ``out``: rows for the images, of a layout that fits.

        An error of the user's code is raised, unless ``failed(row, error)`` returns True; then that sample is void,
        and the next ones are loaded. Every other error is raised before the user's code is called.
        """

    def decoded(self) -> dict[str, int]:
        """Return how many images were decoded since this was asked last, by what decoded them."""


class FusedLoader:
    """Loads samples by a fused dataset for one worker.

    Args:
        loader: of the same worker; loads what stands in for samples that fail.
        fused: the dataset.
        watch: records the samples; None: they are not recorded.
    """

    def __init__(self, loader: SampleLoader, fused: Fused, watch: Watch | None) -> None:
        self._loader = loader
        self._fused: Fused = fused if watch is None else watch.batched(fused)

    def follows(self, epoch: int) -> bool:
        """See :meth:`Fused.follows`."""
        return self._fused.follows(epoch)

    def decoded(self) -> dict[str, int]:
        """See :meth:`Fused.decoded`."""
        return self._fused.decoded()

    def load_one(self, index: Any, identity: int, epoch: int) -> Any:
        """Load one sample with the randomness that belongs to an id."""
        return self._fused.load([index], [identity], epoch, seed=self._loader.seed_generators).samples()[0]

    def load(
        self, indices: Sequence[Any], epoch: int, position: int, out: Tensor | None = None
    ) -> FusedSamples | list[Any]:
        """Load samples by :meth:`Fused.load`.

        Returns:
            What was loaded at once; where samples failed, a list: of the others, and of what stands in for those.
        """
        loader = self._loader
        ids = list(itertools.islice(loader.ids(indices, position), len(indices)))
        errors: dict[int, Exception] = {}

        def failed(row: int, error: Exception) -> bool:
            if loader.forgives(error):
                errors[row] = error
            return row in errors

        try:
            loaded = self._fused.load(indices, ids, epoch, out=out, seed=loader.seed_generators, failed=failed)
        except StopIteration as error:
            raise stopped(loader.job.dataset) from error
        except Exception as error:
            if not loader.forgives(error):
                raise
            from .substitution import one_by_one

            return one_by_one(loader, indices, epoch, position)
        if not errors:
            return loaded
        from .substitution import instead_of

        samples: list[Any] = []
        made = (loaded if out is None else loaded.copied()).samples()
        for row, (index, identity, sample) in enumerate(zip(indices, ids, made, strict=True)):
            samples += instead_of(loader, errors[row], row, index, identity, epoch) if row in errors else [sample]
        return samples

    def chunk(self, item: WorkItem, sink: Sink) -> tuple[int, Any] | list[Any]:
        """Write the images of a chunk where they are to be, if they can be there. Either way they are loaded once.

        Returns:
            The generation of the layout and what goes with the rows; or the samples, which were not written.
        """
        loaded: FusedSamples | list[Any]
        load = partial(self.load, item.indices, item.epoch, item.position)
        generation = item.layout or 1
        layout = sink.layout(generation)
        if layout is None or not self._fused.fits(layout):
            loaded = load()
            return loaded if isinstance(loaded, list) else loaded.samples()

        def write(rows: list[Tensor]) -> list[Sequence[Any]]:
            nonlocal loaded
            loaded = load(rows[0])
            if isinstance(loaded, list):
                raise DoesNotFit("some samples could not be loaded")
            return layout.write_column(1, loaded.targets, rows)

        try:
            return generation, sink.write_rows(layout, item, write)
        except DoesNotFit:
            return loaded if isinstance(loaded, list) else loaded.copied().samples()


__all__ = ["Fused", "FusedLoader", "FusedSamples"]
