"""Writes the analysis as TensorBoard scalars. Tags are the JSON field names and states."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..errors import ConfigError
from .analysis import Analysis, RankAnalysis
from .text import by_size


def write_scalars(analysis: Analysis, folder: str) -> None:
    """Write event files into a folder.

    Raises:
        ConfigError: tensorboard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError(
            f"scalars in {folder!r} need the package tensorboard: {error}; install it, or ask for --json"
        ) from error
    with SummaryWriter(folder) as writer:
        for tag, value, step in scalars_of(analysis):
            writer.add_scalar(tag, value, step)


def scalars_of(analysis: Analysis) -> Iterator[tuple[str, float, int]]:
    """Yield tag, value and step: means have step 0."""
    for rank in analysis.ranks:
        name = "fastload" if rank.rank is None else f"fastload/rank{rank.rank}"
        for tag, value in _means(rank).items():
            yield f"{name}/{tag}", value, 0
        for number, step in enumerate(rank.steps):
            yield f"{name}/steps/wait_ms", step.wait_ms, number
            yield f"{name}/steps/stall_ms", step.stall_ms, number
            if step.loop_ms is not None:
                yield f"{name}/steps/loop_ms", step.loop_ms, number
    if analysis.overhead is not None:
        yield "fastload/overhead", analysis.overhead, 0


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
