"""A recording's folder -> its analysis, with what changes would bring."""

from __future__ import annotations

from .analysing import analyse
from .analysis import Analysis
from .reading import read_trace
from .whatif import what_if


def analysis_of(folder: str) -> Analysis:
    """Explain a recording.

    Args:
        folder: as ``fastload profile`` and :func:`fastload.profile` make it.

    Raises:
        TraceError: it is none, it is damaged, or no loader was asked for a batch.
    """
    return analyse(read_trace(folder), what_if)


__all__ = ["analysis_of"]
