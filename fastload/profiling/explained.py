"""A recording's folder -> its analysis, with what changes would bring."""

from __future__ import annotations

from .analysing import analyse
from .analysis import Analysis, Fix, Grid, Simulation
from .reading import read_trace
from .trace import Rank, Trace
from .whatif import fixes, grid


def analysis_of(folder: str) -> Analysis:
    """Explain a recording.

    Args:
        folder: as ``fastload profile`` and :func:`fastload.profile` make it.

    Raises:
        TraceError: it is none, it is damaged, or no loader was asked for a batch.
    """
    predicted: Grid | None = None

    def what_if(trace: Trace, rank: Rank) -> tuple[list[Fix], Simulation]:
        nonlocal predicted
        predicted = grid(trace, rank)
        return fixes(trace, rank)

    analysis = analyse(read_trace(folder), what_if)
    analysis.grid = predicted
    return analysis


__all__ = ["analysis_of"]
