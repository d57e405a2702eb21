"""From the results of a batch's chunks to the batch; and what they teach of layouts on the way.

A batch lies in its slot where its samples are all of one layout; else torch's own function collates it here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..base.compat import worker_collate
from ..base.worker_errors import error_of, wrap_exception
from ..buffers.layout import FIRST_LAYOUT, LayoutBook
from ..buffers.rows import samples_in
from ..errors import NothingLeft
from ..work import Task
from ..workers.fetch import Outcome, Result
from ..workers.pool import Pool


class Assembly:
    """Puts the batches of one pool of workers together.

    ``book``: shared with other iterations of the same loader. ``where``: ends the sentence "Caught ... " of errors of
    collation that happen here.
    """

    def __init__(self, pool: Pool, book: LayoutBook, where: str) -> None:
        self._pool = pool
        self._book = book
        self._where = where
        self._published: set[int] = set()

    def layout(self) -> int:
        """Return the number of the layout for new work, made known to the workers if there is one yet."""
        self._publish(self._book.generation)
        return max(FIRST_LAYOUT, self._book.generation)

    def take(self, result: Result, task: Task) -> Result:
        """Read what a result carries; afterwards the payload of rows is their layout and the samples' objects.

        Raises:
            Exception: what the user's code raised, for reading a sample may run it.
        """
        book, payload = self._book, result.payload
        if result.outcome == Outcome.SAMPLES:
            payload = self._pool.take_samples(payload, task)
            book.learn(payload)
        elif result.outcome == Outcome.ROWS_NEW_LAYOUT:
            layout, payload = payload
            book.met(layout)
            payload = layout, self._pool.take_rows(payload, task, layout)
        elif result.outcome == Outcome.ROWS and task.layout is not None:
            layout = book.layouts[task.layout]
            payload = layout, self._pool.take_rows(payload, task, layout)
        self._publish(FIRST_LAYOUT)  # at once: work that was given out before may use it
        return result._replace(payload=payload)

    def _publish(self, generation: int) -> None:
        """Let the workers know a layout, if there is one: another iteration of this loader may have learnt it."""
        layout = self._book.layouts.get(generation)
        if layout is not None and generation not in self._published:
            self._pool.publish(generation, layout)
            self._published.add(generation)

    def build(self, slot: int, num_rows: int, results: Sequence[tuple[Task, Result]]) -> tuple[Any, str | None]:
        """Make the batch of chunks, given in order, without an error; its slot is the user's, or free, afterwards.

        Returns:
            The batch; and why it has no layout, or None if it has.

        Raises:
            NothingLeft: all samples were left out.
            Exception: what torch's collation raised.
        """
        task, first = results[0]
        if first.outcome == Outcome.BATCH:
            reason = (
                self._book.fallback_reason or "a worker collated it: its samples differ, or __getitems__ gave no list"
            )
            return self._pool.take_whole(first.payload, task), reason
        own = first.outcome == Outcome.ROWS_NEW_LAYOUT
        if not own and any(one.outcome != Outcome.ROWS for _, one in results):
            return self._collated_here(slot, num_rows, results)
        layout = first.payload[0]
        memory = self._pool.slots.lend(slot, layout.offsets(num_rows)[1])
        objects = [_joined(column) for column in zip(*(result.payload[1] for _, result in results), strict=True)]
        if not own:
            self._book.fitted()
        return layout.build(memory, num_rows, objects), None

    def _collated_here(
        self, slot: int, num_rows: int, results: Sequence[tuple[Task, Result]]
    ) -> tuple[Any, str | None]:
        """Collate a batch whose samples did not all fit one layout, or are not all there."""
        samples: list[Any] = []
        try:
            for task, result in results:
                if result.outcome == Outcome.SAMPLES:
                    samples += result.payload
                else:
                    layout, objects = result.payload
                    rows = self._pool.slots.view(slot, layout.offsets(num_rows)[1])
                    samples += samples_in(layout, rows, num_rows, task.row, len(task.indices), objects)
            if not samples:
                raise NothingLeft
            reason: str | None = "samples were left out"
            if len(samples) == num_rows:
                differ = self._book.fallback_reason is not None or self._book.misfit(samples)
                reason = self._book.fallback_reason or "samples of one batch differ, or a new shape" if differ else None
            try:
                with torch.device("cpu"):  # as in the workers, whatever the user's default is
                    return worker_collate(samples), reason
            except Exception as error:
                wrapper = wrap_exception(error, self._where)
            raise error_of(wrapper)
        finally:
            self._pool.slots.release(slot)


def _joined(columns: Sequence[Sequence[Any]]) -> Sequence[Any]:
    return columns[0] if len(columns) == 1 else [value for column in columns for value in column]
