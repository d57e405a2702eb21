"""Writes the analysis as TensorBoard scalars. Tags are the JSON field names and states."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Protocol

from ..errors import ConfigError
from .formatting import by_size
from .schema import Analysis, RankAnalysis


class Writer(Protocol):
    """The part of :class:`torch.utils.tensorboard.SummaryWriter` that is used."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> Any:
        """Store a value."""


def write_scalars(analysis: Analysis, to: Writer | str | Path, *, global_step: int = 0) -> None:
    """Store the analysis as scalars.

    Args:
        analysis: what to store.
        to: a writer, which stays open, or a folder for event files.
        global_step: of the means; values of single steps have the number of the step.

    Raises:
        ConfigError: a folder was given, and tensorboard is not installed.
    """
    if not isinstance(to, (str, Path)):
        _write(analysis, to, global_step)
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError(
            f"scalars in {str(to)!r} need the package tensorboard: {error}; install it, or ask for --json"
        ) from error
    with SummaryWriter(str(to)) as writer:
        _write(analysis, writer, global_step)


def _write(analysis: Analysis, writer: Writer, global_step: int) -> None:
    for rank in analysis.ranks:
        name = "fastload" if rank.rank is None else f"fastload/rank{rank.rank}"
        for tag, value in _means(rank).items():
            writer.add_scalar(f"{name}/{tag}", value, global_step)
        for number, step in enumerate(rank.steps):
            writer.add_scalar(f"{name}/steps/wait_ms", step.wait_ms, number)
            writer.add_scalar(f"{name}/steps/stall_ms", step.stall_ms, number)
            if step.loop_ms is not None:
                writer.add_scalar(f"{name}/steps/loop_ms", step.loop_ms, number)
    if analysis.overhead is not None:
        writer.add_scalar("fastload/overhead", analysis.overhead, global_step)


def _means(rank: RankAnalysis) -> dict[str, float]:
    """Return the known values of a mean step."""
    values: dict[str, float | None] = {
        "step_ms": rank.step_ms.value,
        "compute_ms": rank.compute_ms,
        "stall": rank.stall.value,
        "head_of_line": rank.head_of_line,
        "first_batch_ms": rank.first_batch_ms,
        "workers_busy": rank.workers.busy,
        "workers_cache_hit": rank.workers.cache_hit,
    }
    values |= {f"blame_ms/{_tag(state)}": value for state, value in by_size(rank.blame_ms)}
    return {name: value for name, value in values.items() if value is not None}


def _tag(state: str) -> str:
    """Return a state as a tag, which has neither spaces nor colons: ``stage:Crop`` as ``stage/Crop``."""
    return "/".join(re.sub(r"[^A-Za-z0-9_.-]", "_", part) for part in state.split(":", 1))
