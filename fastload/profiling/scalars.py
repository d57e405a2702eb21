"""Writes the analysis as TensorBoard scalars. Tags are the JSON field names and states."""

from __future__ import annotations

import re

from ..errors import ConfigError
from .formatting import by_size
from .schema import Analysis


def write_scalars(analysis: Analysis, folder: str) -> None:
    """Write the analysis as event files into a folder; values of single steps have the number of the step.

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
        for tag, value, step in scalars(analysis):
            writer.add_scalar(tag, value, step)


def scalars(analysis: Analysis) -> list[tuple[str, float, int]]:
    """Return tags, values, and the number of the step (0 for means)."""
    found: list[tuple[str, float | None, int]] = [("fastload/overhead", analysis.overhead, 0)]
    for rank in analysis.ranks:
        name = "fastload" if rank.rank is None else f"fastload/rank{rank.rank}"
        found += [
            (f"{name}/step_ms", rank.step_ms.value, 0),
            (f"{name}/compute_ms", rank.compute_ms, 0),
            (f"{name}/stall", rank.stall.value, 0),
            (f"{name}/head_of_line", rank.head_of_line, 0),
            (f"{name}/first_batch_ms", rank.first_batch_ms, 0),
            (f"{name}/workers_busy", rank.workers.busy, 0),
            (f"{name}/workers_cache_hit", rank.workers.cache_hit, 0),
        ]
        found += [(f"{name}/blame_ms/{_tag(state)}", value, 0) for state, value in by_size(rank.blame_ms)]
        for number, step in enumerate(rank.steps):
            times = {"wait_ms": step.wait_ms, "stall_ms": step.stall_ms, "loop_ms": step.loop_ms}
            found += [(f"{name}/steps/{field}", value, number) for field, value in times.items()]
    return [(tag, value, step) for tag, value, step in found if value is not None]


def _tag(state: str) -> str:
    """Return a state as a tag, which has neither spaces nor colons: ``stage:Crop`` as ``stage/Crop``."""
    return "/".join(re.sub(r"[^A-Za-z0-9_.-]", "_", part) for part in state.split(":", 1))
