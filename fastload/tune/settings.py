"""The arguments that are tried, and with which values.

Each stage changes the best setting of the stage before in one argument, so that about ten settings are run, not all
combinations. Pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..base.worker_kinds import WORKER_KINDS
from ..options import OPTIONS

WORKER_THREADS = (16, 4, 64)
SEED = 1
"""Seed for a loader with torch's random streams that is tried with keys."""
PREFETCH = 2
"""torch's default for ``prefetch_factor``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneSetting:
    """Arguments of a loader that are tried."""

    num_workers: int
    worker_method: str
    prefetch_factor: int | None
    fuse: bool | str
    chunk_size: int | str | None
    resident: str | None
    worker_threads: int = 1
    cache: Any = None
    seed: int | None = None

    def having(self, **changes: Any) -> TuneSetting:
        """Return the setting with other arguments; ``prefetch_factor`` is None exactly without workers.

        ``worker_threads`` is 1 where processes cannot have several.
        """
        changed = dataclasses.replace(self, **changes)
        if not changed.num_workers or changed.worker_method != "multiprocessing":
            changed = dataclasses.replace(changed, worker_threads=1)
        if not changed.num_workers:
            return dataclasses.replace(changed, prefetch_factor=None)
        return changed if changed.prefetch_factor else dataclasses.replace(changed, prefetch_factor=PREFETCH)

    def changes(self, present: TuneSetting) -> dict[str, Any]:
        """Return the arguments that differ from the present ones, in the order of the fields."""
        before, after = dataclasses.asdict(present), dataclasses.asdict(self)
        changed = {name: value for name, value in after.items() if value != before[name]}
        if not (self.num_workers and present.num_workers) and changed.get("prefetch_factor") in (None, PREFETCH):
            changed.pop("prefetch_factor", None)  # the default, with workers
        return changed

    def in_words(self, present: TuneSetting) -> str:
        """Return the workers, and the other arguments that differ from the present setting."""
        words = [workers_in_words(self)]
        words += [
            f"{name}={_quoted(value)}"
            for name, value in self.changes(present).items()
            if name not in ("num_workers", "worker_method")
        ]
        return ", ".join(words)


def workers_in_words(setting: TuneSetting) -> str:
    """Return number and kind of the workers."""
    return WORKER_KINDS[setting.worker_method].counted(setting.num_workers) if setting.num_workers else "inline"


def as_call(changes: Mapping[str, Any]) -> str:
    """Return the line to paste."""
    return f"DataLoader(..., {', '.join(f'{name}={_quoted(value)}' for name, value in changes.items())})"


def _quoted(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def as_options(changes: Mapping[str, Any]) -> str | None:
    """Return the options of ``fastload run`` for the changes; None if one of them has no option."""
    if not all(name in OPTIONS and OPTIONS[name].help and value is not None for name, value in changes.items()):
        return None
    words = []
    for name, value in changes.items():
        option = f"--{name.replace('_', '-')}"
        words.append(option if value is True else f"{option}={'false' if value is False else value}")
    return " ".join(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Facts of the machine that the candidates depend on."""

    processors: int
    has_device: bool = False
    """True if batches are moved to a device, where data can be resident."""
    waits: bool = False
    """True if workers wait for storage more than they compute, as measured with the best setting so far."""
    left_out: frozenset[tuple[str, Any]] = frozenset()
    """Values of arguments that are not tried."""


Stage = Callable[[TuneSetting, Machine], list[TuneSetting]]


def _making(best: TuneSetting, machine: Machine) -> list[TuneSetting]:
    """How samples are loaded: the largest gains, so they come first."""
    made = [best.having(fuse=level) for level in ("auto", True)]
    made.append(best.having(resident="device" if machine.has_device else "host"))
    return made


def _keeping(best: TuneSetting, machine: Machine) -> list[TuneSetting]:
    """Coefficients of files, which later epochs find: what it gains there is measured."""
    return [best.having(cache="auto")] if best.cache is None and best.fuse is not False else []


def _kind(best: TuneSetting, machine: Machine) -> list[TuneSetting]:
    """Processes or threads; always workers: without them nothing is loaded during the training step."""
    number = best.num_workers or machine.processors
    return [best.having(num_workers=number, worker_method=method) for method in ("multiprocessing", "thread")]


def _number(best: TuneSetting, machine: Machine) -> list[TuneSetting]:
    """How many workers."""
    if not best.num_workers:
        return []
    half, all_of_them = max(1, machine.processors // 2), machine.processors
    return [best.having(num_workers=number) for number in (all_of_them, 2 * all_of_them, half)]


def _waiting(best: TuneSetting, machine: Machine) -> list[TuneSetting]:
    """Samples at a time in each worker process, where they wait."""
    if not machine.waits or best.worker_method == "ray":
        return []
    processes = best.having(num_workers=best.num_workers or machine.processors, worker_method="multiprocessing")
    return [processes.having(worker_threads=number) for number in WORKER_THREADS]


def _flow(best: TuneSetting, machine: Machine) -> list[TuneSetting]:
    """Tasks and batches in flight; and keys for the samples, with which workers share a batch."""
    if not best.num_workers:
        return []
    made = [best.having(prefetch_factor=2 * (best.prefetch_factor or PREFETCH))]
    if best.seed is None:
        made.append(best.having(seed=SEED))
    made.append(best.having(chunk_size=None if best.chunk_size == "batch" else "batch"))
    return made


STAGES: tuple[Stage, ...] = (_making, _waiting, _keeping, _kind, _number, _flow)


def candidates(stage: Stage, best: TuneSetting, machine: Machine) -> list[TuneSetting]:
    """Return what a stage tries besides the best setting so far, each once."""
    if best.resident is not None and stage is not _making:
        return []  # batches are gathered in next(), whatever the workers
    found = dict.fromkeys(stage(best, machine))
    return [one for one in found if one != best and not machine.left_out & {*one.changes(best).items()}]
