"""Samples that a fused dataset loads, many at once, in the place of the user's dataset. Imported with ``fuse=True``."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor

from ..buffers.layout import LayoutMismatch, Sink
from ..buffers.rows import write_column
from ..cache.records import take_not_kept
from ..keys.seeding import Seeder
from ..observe import Watch
from ..work import Task
from .samples import Job, SampleLoader


class FusedLoader(SampleLoader):
    """Loads samples by a fused dataset, as long as the user's dataset can be fused."""

    def __init__(self, fused: Any, job: Job, seeder: Seeder, watch: Watch | None) -> None:
        super().__init__(job, seeder, watch)
        self._fused: Any = fused if watch is None else watch.batched(fused)

    def follows(self, epoch: int) -> bool:
        """Return whether the dataset, as it was when this epoch began, is loaded here."""
        return bool(self._fused.follows(epoch))

    def decoded(self) -> dict[str, int] | None:
        found: dict[str, int] | None = self._fused.decoded()
        return found if found is None or self.job.cache is None else found | take_not_kept()

    def load(self, indices: Any, epoch: int, position: int) -> Any:
        if not self.follows(epoch):
            return super().load(indices, epoch, position)
        made = self.load_fused(indices, epoch, position)
        return made if isinstance(made, list) else made.samples()

    def one(self, index: Any, identity: int, epoch: int) -> Any:
        if not self.follows(epoch):
            return super().one(index, identity, epoch)
        return self.guarded(lambda index: self._fused.load([index], [identity], epoch).samples()[0], index)

    def load_fused(self, indices: Sequence[Any], epoch: int, position: int, out: Tensor | None = None) -> Any:
        """Load samples at once; ``out``: rows for the images, of a layout that fits.

        Returns:
            A :class:`fastload.fusion.dataset.FusedSamples`; if samples failed, a list of the others and the
            substitutes.
        """
        ids = itertools.islice(self.ids(indices, position), len(indices))
        try:
            return self._fused.load(indices, ids, epoch, out=out)
        except Exception as error:
            if not self.tolerates(error):
                raise
        return self.one_by_one(indices, epoch, position)

    def to_collate(self, loaded: Any) -> list[Any]:
        """Return the samples of what :meth:`load_fused` has loaded, for ``collate_fn``."""
        samples: list[Any] = loaded.samples()
        return samples

    def chunk(self, task: Task, sink: Sink) -> tuple[Any] | list[Any]:
        """Write the images of a chunk where they are to be, if they can be there. Either way they are loaded once.

        Returns:
            What goes with the rows, in a tuple; or the samples, which were not written.
        """
        loaded: Any
        load = partial(self.load_fused, task.indices, task.epoch, task.position)
        assert task.layout is not None
        layout = sink.layout(task.layout)
        if layout is None or not self._fused.fits(layout):
            loaded = load()
            return loaded if isinstance(loaded, list) else loaded.samples()

        def write(rows: list[Tensor]) -> list[Sequence[Any]]:
            nonlocal loaded
            loaded = load(rows[0])
            if isinstance(loaded, list):
                raise LayoutMismatch("some samples could not be loaded")
            return write_column(layout, 1, loaded.targets, rows)

        try:
            return (sink.write_rows(layout, task, write),)
        except LayoutMismatch:
            return loaded if isinstance(loaded, list) else loaded.copied().samples()
