"""Which settings are compared with which: a covering set, not the product, which would take hours.

In: what kind of dataset, which kinds of workers, a seed. Out: checks, each a pair of settings whose records must be
equal. Every value of every axis comes at least once: workers 0, 1, 3; inline, thread, fork, spawn; chunks of 1, 3,
whole batches and chosen; prefetching 1 and 4; world sizes 1, 2, 4; one epoch and the next, with workers that stay and
that do not; a resume. The cheap checks stand first, and what is expensive (spawned processes import torch anew) comes
once.

Pure.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Method = Literal["inline", "thread", "fork", "spawn"]
METHODS: tuple[Method, ...] = ("inline", "thread", "fork", "spawn")
WORLD_SIZES = (1, 2, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How a loader is run for one record."""

    engine: Literal["fastload", "torch"] = "fastload"
    seeding: Literal["sample", "torch"] = "sample"
    indices_only: bool = False
    """Record which indices are asked for, in place of the samples."""
    method: Method = "inline"
    num_workers: int = 0
    chunk_size: int | Literal["batch"] | None = None
    prefetch_factor: int | None = None
    persistent: bool = False
    num_epochs: int = 1
    world_size: int = 0
    """Ranks that are run one after the other, their samples joined; 0: no ranks, the loader's own batches."""
    resume_after: int | None = None
    """Batches until a state is taken, and loaded into another loader, which goes on."""
    resumed_by: int = 0
    """Its workers."""

    def in_words(self) -> str:
        """Return what differs from a plain inline loader."""
        words = [_workers(self.num_workers, self.method)]
        if self.engine == "torch":
            words.insert(0, "torch")
        if self.chunk_size is not None:
            words.append("whole batches" if self.chunk_size == "batch" else f"chunks of {self.chunk_size}")
        if self.prefetch_factor is not None:
            words.append(f"prefetch {self.prefetch_factor}")
        if self.persistent:
            words.append("persistent")
        if self.num_epochs > 1:
            words.append(f"{self.num_epochs} epochs")
        if self.world_size:
            words.insert(0, "1 rank" if self.world_size == 1 else f"{self.world_size} ranks")
        if self.resume_after is not None:
            words.append(f"from step {self.resume_after} on {_workers(self.resumed_by, self.method)}")
        return ", ".join(words)


def _workers(num_workers: int, method: Method) -> str:
    return f"{num_workers} {method}" if num_workers else "inline"


REFERENCE = Setting(num_epochs=2)
"""What all else is compared with: no workers, two epochs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCheck:
    """A pair of settings whose records must be equal."""

    name: str
    setting: Setting
    reference: Setting
    family: str
    """Checks of one name and family are made to fail together by one cause: the first that fails is bisected."""


def plan_checks(methods: Sequence[Method], *, num_batches: int, seed: int) -> list[PlannedCheck]:
    """Return the checks for a map-style dataset.

    Args:
        methods: kinds of workers to check; inline is always one.
        num_batches: batches of an epoch that are loaded; the step of the resume lies among them.
        seed: chooses that step.
    """
    made: list[PlannedCheck] = [_check("again", Setting(num_epochs=2), "inline")]
    process: Method | None = "fork" if "fork" in methods else "spawn" if "spawn" in methods else None
    if process is not None:
        made += [
            _check("workers", Setting(method=process, num_workers=1, prefetch_factor=1), process),
            _check("workers", Setting(method=process, num_workers=3, chunk_size=1, prefetch_factor=4), process),
            _check("workers", Setting(method=process, num_workers=3, chunk_size="batch", prefetch_factor=1), process),
            _check(
                "next epoch",
                Setting(method=process, num_workers=3, chunk_size=3, prefetch_factor=4, persistent=True, num_epochs=2),
                process,
            ),
            _check("next epoch", Setting(method=process, num_workers=1, prefetch_factor=4, num_epochs=2), process),
        ]
    if "thread" in methods:
        made += [
            _check("workers", Setting(method="thread", num_workers=1, prefetch_factor=1), "thread"),
            _check("workers", Setting(method="thread", num_workers=3, chunk_size=1, prefetch_factor=4), "thread"),
            _check(
                "next epoch",
                Setting(method="thread", num_workers=3, chunk_size=3, prefetch_factor=1, persistent=True, num_epochs=2),
                "thread",
            ),
        ]
    any_method: Method = process or ("thread" if "thread" in methods else "inline")
    workers = 0 if any_method == "inline" else 1
    for world_size in WORLD_SIZES:
        # Two ranks with workers, the others without: twelve processes would show nothing more.
        own: Method = any_method if world_size == 2 else "inline"
        made.append(
            _check(
                "world size", Setting(world_size=world_size, method=own, num_workers=workers * (own != "inline")), own
            )
        )
    if num_batches > 1:
        step = random.Random(seed).randrange(1, num_batches)
        made += [
            _check("resume", Setting(resume_after=step, resumed_by=3 * workers, method=any_method), any_method),
            _check(
                "resume",
                Setting(resume_after=step, num_workers=3 * workers, resumed_by=workers, method=any_method),
                any_method,
            ),
        ]
    if "spawn" in methods and process != "spawn":
        made.append(_check("workers", Setting(method="spawn", num_workers=1, chunk_size=3, prefetch_factor=1), "spawn"))
    return made + _against_torch(process)


def _against_torch(process: Method | None) -> list[PlannedCheck]:
    made = []
    for name, num_workers in (
        ("torch's order", 0),
        ("torch's order", 2),
        ("torch's samples", 0),
        ("torch's samples", 2),
    ):
        if num_workers and process is None:
            continue
        method: Method = process if num_workers and process is not None else "inline"
        indices_only = name == "torch's order"
        both = [
            Setting(
                engine=engine,
                seeding="torch",
                indices_only=indices_only,
                method=method,
                num_workers=num_workers,
                num_epochs=2 if indices_only else 1,
            )
            for engine in ("fastload", "torch")
        ]
        made.append(PlannedCheck(name=name, setting=both[0], reference=both[1], family="torch"))
    return made


def plan_iterable_checks(methods: Sequence[Method]) -> list[PlannedCheck]:
    """Return the checks for an IterableDataset.

    Its replicas divide the data as they please, so another number of them gives other batches, as in torch. What can be
    the same is the same number of them, started another way.
    """
    process: Method | None = "fork" if "fork" in methods else "spawn" if "spawn" in methods else None
    made = [_check("again", Setting(), "inline", Setting())]
    if process is not None:
        for num_workers in (1, 3):
            reference = Setting(method=process, num_workers=num_workers, prefetch_factor=1)
            again = Setting(method=process, num_workers=num_workers, prefetch_factor=4)
            made.append(_check("replicas", again, process, reference))
        if "thread" in methods:
            one = Setting(method=process, num_workers=3, prefetch_factor=1)
            made.append(_check("replicas", Setting(method="thread", num_workers=3, prefetch_factor=1), "thread", one))
        if "spawn" in methods and process != "spawn":
            one = Setting(method=process, num_workers=1, prefetch_factor=1)
            made.append(_check("replicas", Setting(method="spawn", num_workers=1, prefetch_factor=1), "spawn", one))
    return made + [one for one in _against_torch(process) if one.name == "torch's samples"]


def _check(name: str, setting: Setting, family: str, reference: Setting = REFERENCE) -> PlannedCheck:
    return PlannedCheck(name=name, setting=setting, reference=reference, family=family)


__all__ = ["METHODS", "REFERENCE", "WORLD_SIZES", "Method", "PlannedCheck", "Setting", "plan_checks"]
__all__ += ["plan_iterable_checks"]
