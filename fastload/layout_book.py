"""Which layout new work is to fit, and when layouts do not pay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .layout import Layout, learn


class LayoutBook:
    """Which layout new work is to fit. Pure bookkeeping; survives the workers that it was learnt with.

    A batch that did not fit teaches a new layout, if all its samples are of one. When that happens too often, layouts
    do not pay for this dataset, and batches are collated whole in the workers.
    """

    # Batches that may fail to fit among so many in a row before layouts are given up.
    MAX_MISFITS = 4
    AMONG = 32
    # Layouts that batches still under way may have been written by.
    KEPT = 64

    def __init__(self) -> None:
        self.generation = 0
        self.layout: Layout | None = None
        self.layouts: dict[int, Layout] = {}
        self.given_up: str | None = None
        self.misfits = 0
        self.sample_ns: float | None = None
        self._recent = 0.0

    def learn(self, samples: Sequence[Any]) -> Layout | None:
        """Learn from the first samples ever seen; returns the layout if it is to be published."""
        found = learn(samples[0])
        if isinstance(found, str):
            self.given_up = f"a sample has {found}"
            return None
        self.adopt(found)
        return found

    def adopt(self, layout: Layout) -> None:
        """Let new work fit this layout."""
        self.generation += 1
        self.layout = self.layouts[self.generation] = layout
        self.layouts.pop(self.generation - self.KEPT, None)

    def fitted(self) -> None:
        """A batch fitted its layout."""
        self._recent = max(0.0, self._recent - self.MAX_MISFITS / self.AMONG)

    def misfit(self, samples: Sequence[Any]) -> None:
        """Take note of a batch that did not fit; if its samples are all of one new layout, adopt that."""
        found = learn(samples[0])
        of_one = isinstance(found, Layout) and all(learn(sample) == found for sample in samples[1:])
        self.misfit_of(found if isinstance(found, Layout) and of_one else None)

    def misfit_of(self, found: Layout | None) -> None:
        """Take note of a batch that did not fit but is all of one layout, or of none."""
        if found is not None and found == self.layout:
            return  # it was under way when this layout was learnt
        self.misfits += 1
        self._recent += 1
        if self._recent > self.MAX_MISFITS:
            self.given_up = "samples change their shape, type or keys too often"
        elif found is not None:
            self.adopt(found)

    def observe_cost(self, busy_ns: int, num_samples: int) -> None:
        """Take a measured cost into the estimate that chooses the chunk size."""
        cost = busy_ns / num_samples
        self.sample_ns = cost if self.sample_ns is None else 0.9 * self.sample_ns + 0.1 * cost
