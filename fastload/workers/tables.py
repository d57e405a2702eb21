"""Samples of a Hugging Face dataset, many at once. Imported only for such datasets."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from ..buffers.layout import LayoutMismatch, Sink
from ..keys.seeding import Seeder
from ..observe import Watch
from ..tables.hugging_face import TableReader
from ..tables.padding import Features, padding_for
from ..work import Task
from .samples import Job, SampleLoader


class TableLoader(SampleLoader):
    """Loads samples from a table, and by the dataset's own ``__getitems__`` what is not known there."""

    def __init__(self, job: Job, seeder: Seeder, watch: Watch | None) -> None:
        padding = padding_for(job.collate_fn)
        super().__init__(job if padding is None else replace(job, collate_fn=padding), seeder, watch)
        self._pads = padding is not None
        read = TableReader(job.dataset).read
        self._read = read if watch is None else watch.batched(read)

    def follows(self, epoch: int) -> bool:
        """Return True: what is not known is left to the dataset batch by batch."""
        return True

    def load(self, indices: Any, epoch: int, position: int) -> Any:
        made = self.load_fused(indices, epoch, position)
        return made if isinstance(made, list) else made.samples()

    def load_fused(self, indices: Any, epoch: int, position: int) -> Any:
        """Return a :class:`~fastload.tables.hugging_face.TableBatch`, or the result of ``__getitems__``."""
        loaded = self._read(indices)
        return super().load(indices, epoch, position) if loaded is None else loaded

    def to_collate(self, loaded: Any) -> list[Any]:
        """Return the samples of what :meth:`load_fused` has loaded, for ``collate_fn``: a list of them, or as good."""
        if self._pads:
            return Features(loaded)
        samples: list[Any] = loaded.samples()
        return samples

    def chunk(self, task: Task, sink: Sink) -> tuple[Any] | list[Any]:
        """Write the samples of a batch where they are to be, if they can be there. Either way they are read once.

        Returns:
            What goes with the rows, in a tuple; or the samples, which were not written.
        """
        loaded = self.load_fused(task.indices, task.epoch, task.position)
        if isinstance(loaded, list):
            return loaded
        assert task.layout is not None
        layout = sink.layout(task.layout)
        if layout is not None:
            try:
                return (sink.write_rows(layout, task, partial(loaded.write_into, layout)),)
            except LayoutMismatch:
                pass
        samples: list[Any] = loaded.samples()
        return samples


class TableRows(NamedTuple):
    """Loads the samples of a job whose dataset is a table."""

    in_next: bool
    """True if ``next()`` reads them, although there are workers."""

    def loader(self, job: Job, seeder: Seeder, watch: Watch | None) -> TableLoader:
        """Return what loads samples for one worker."""
        return TableLoader(job, seeder, watch)
