"""Which settings are compared where a seed is given: a covering set, since their product would take hours.

Each value of each axis is covered: workers 0, 1, 3; inline, thread, fork, spawn; chunks of 1, 3, whole batches and
chosen; prefetching 1 and 4; world sizes 1, 2, 4; one epoch and the next, with persistent workers and without; a resume.
Cheap checks come first, and spawned processes, which import torch, once.

Pure.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

Method = Literal["inline", "thread", "fork", "spawn", "ray"]
METHODS: tuple[Method, ...] = ("inline", "thread", "fork", "spawn")
"""Methods that are checked by default."""
KNOWN_METHODS: tuple[Method, ...] = (*METHODS, "ray")
"""Methods that can be checked. Ray must be installed, and takes much longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSetting:
    """How a loader is run for one record."""

    method: Method = "inline"
    num_workers: int = 0
    worker_threads: int = 1
    chunk_size: int | Literal["batch"] | None = None
    prefetch_factor: int | None = None
    persistent_workers: bool = False
    num_epochs: int = 1
    world_size: int = 0
    """Ranks, run one after the other, their samples joined; 0: no ranks, the loader's own batches."""
    resume_after: int | None = None
    """Batches until a state is taken, which another loader resumes from."""
    resumed_by: int = 0
    """Number of workers of that loader."""
    cache: bool = False
    """With the loader's own cache; without: with none."""

    def in_words(self) -> str:
        """Return what differs from a plain inline loader."""
        words = {
            "1 rank" if self.world_size == 1 else f"{self.world_size} ranks": self.world_size,
            self._workers(self.num_workers): True,
            f"{self.worker_threads} samples at a time": self.worker_threads > 1,
            "whole batches" if self.chunk_size == "batch" else f"chunks of {self.chunk_size}": self.chunk_size,
            f"prefetch {self.prefetch_factor}": self.prefetch_factor,
            "with its cache": self.cache,
            "persistent": self.persistent_workers,
            f"{self.num_epochs} epochs": self.num_epochs > 1,
            f"resumed at batch {self.resume_after} by {self._workers(self.resumed_by)}": self.resume_after,
        }
        return ", ".join(one for one, applies in words.items() if applies)

    def _workers(self, number: int) -> str:
        return f"{number} {self.method}" if number else "inline"


REFERENCE = RunSetting(num_epochs=2)
"""The run that all others are compared with: no workers, two epochs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCheck:
    """A pair of settings whose records must be equal."""

    name: str
    setting: RunSetting
    reference: RunSetting = REFERENCE


_WITH_WORKERS = (
    ("workers", RunSetting(num_workers=1, prefetch_factor=1)),
    ("workers", RunSetting(num_workers=3, chunk_size=1, prefetch_factor=4)),
    ("next epoch", RunSetting(num_workers=3, chunk_size=3, prefetch_factor=4, persistent_workers=True, num_epochs=2)),
)
_WITH_PROCESSES = (
    ("workers", RunSetting(num_workers=3, chunk_size="batch", prefetch_factor=1)),
    ("workers", RunSetting(num_workers=2, worker_threads=4)),
    ("next epoch", RunSetting(num_workers=1, prefetch_factor=4, num_epochs=2)),
)
_WITH_RAY = (
    ("workers", RunSetting(method="ray", num_workers=1, chunk_size=3)),
    ("next epoch", RunSetting(method="ray", num_workers=2, prefetch_factor=4, persistent_workers=True, num_epochs=2)),
)
_SPAWNED = RunSetting(method="spawn", num_workers=1, chunk_size=3, prefetch_factor=1)


def plan_checks(
    methods: Sequence[Method], *, num_batches: int, seed: int, has_cache: bool = False
) -> list[PlannedCheck]:
    """Return the checks for a map-style dataset, for these kinds of workers and inline.

    The seed chooses the one of ``num_batches``, all that are loaded of an epoch, after which the state is taken.
    ``has_cache``: whether the loader has one; then the others are without it.
    """
    process = _process_of(methods)
    made = [("again", RunSetting(num_epochs=2))]
    if process is not None:
        made += [(name, replace(setting, method=process)) for name, setting in (*_WITH_WORKERS, *_WITH_PROCESSES)]
    if "thread" in methods:
        made += [(name, replace(setting, method="thread")) for name, setting in _WITH_WORKERS]
    method: Method = process or ("thread" if "thread" in methods else "inline")
    workers = 0 if method == "inline" else 1
    # Two ranks with workers, the others without: twelve processes would show nothing more.
    with_workers = RunSetting(world_size=2, method=method, num_workers=workers)
    made += [
        ("world size", with_workers if world_size == 2 else RunSetting(world_size=world_size))
        for world_size in (1, 2, 4)
    ]
    if num_batches > 1:
        step = random.Random(seed).randrange(1, num_batches)
        for before, after in ((0, 3 * workers), (3 * workers, workers)):
            made.append(("resume", RunSetting(resume_after=step, num_workers=before, resumed_by=after, method=method)))
    if "spawn" in methods and process != "spawn":
        made.append(("workers", _SPAWNED))
    if "ray" in methods:
        made += _WITH_RAY
    if has_cache:  # the first fills the cache, and the second finds all in it
        made.append(("cache", RunSetting(cache=True, num_epochs=2)))
        if process is not None:
            made.append(("cache", RunSetting(cache=True, num_epochs=2, method=process, num_workers=2)))
    return [PlannedCheck(name=name, setting=setting) for name, setting in made]


def _process_of(methods: Sequence[Method]) -> Method | None:
    return "fork" if "fork" in methods else "spawn" if "spawn" in methods else None


def plan_iterable_checks(methods: Sequence[Method], *, has_cache: bool = False) -> list[PlannedCheck]:
    """Return the checks for an IterableDataset; ``has_cache``: see :func:`plan_checks`.

    Its replicas divide the data as they please, so another number of them gives other batches, as in torch. The same
    number, started another way, must give the same.
    """
    process = _process_of(methods)
    made = [PlannedCheck(name="again", setting=RunSetting(), reference=RunSetting())]
    if has_cache:
        made += [PlannedCheck(name="cache", setting=RunSetting(cache=True), reference=RunSetting()) for _ in range(2)]
    if process is not None:
        one = RunSetting(method=process, num_workers=1, prefetch_factor=1)
        three = replace(one, num_workers=3)
        pairs = [(replace(reference, prefetch_factor=4), reference) for reference in (one, three)]
        pairs += [(replace(three, method=method), three) for method in methods if method == "thread"]
        pairs += [(replace(one, method=method), one) for method in methods if method in {"spawn", "ray"} - {process}]
        made += [PlannedCheck(name="replicas", setting=setting, reference=reference) for setting, reference in pairs]
    return made
