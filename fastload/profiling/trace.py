"""A recording as plain data: for each rank its steps, and for each step how its batch was made.

All times are ns on one clock (``CLOCK_MONOTONIC``), durations end in ``_ns``. What was not recorded is None, never
zero; :attr:`Trace.missing` says what that is and why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CARRYING = "network and object store"
"""The stage that brings rows from a worker on another machine."""


@dataclass(slots=True)
class Span:
    """A time span."""

    begun: int
    ended: int

    @property
    def ns(self) -> int:
        """Its length."""
        return self.ended - self.begun


@dataclass(slots=True)
class StageSpan(Span):
    """A stage within a sample, such as ``RandomResizedCrop``. Stages do not overlap; gaps between them are possible."""

    name: str
    cpu_ns: int | None


@dataclass(slots=True)
class Sample(Span):
    """A sample of the dataset."""

    index: int | None
    """Index in the dataset; None if it is not an integer."""
    weight: int
    """How many samples it is: a dataset may return several at once."""
    stages: list[StageSpan] = field(default_factory=list)


@dataclass(slots=True)
class TaskSpan(Span):
    """A task of a worker: a whole batch, or, in fastload's loaders, some of its samples."""

    worker: int
    """0 to num_workers - 1; -1: the main process itself."""
    num_samples: int = 0
    """Number of samples requested; 0 if unknown (IterableDataset)."""
    dispatched: int | None = None
    """When it was sent to the worker."""
    arrived: int | None = None
    """When the main process had its result."""
    cpu_ns: int | None = None
    runnable_ns: int | None = None
    """Ready to run, while others had the cores."""
    samples: list[Sample] = field(default_factory=list)
    collate: Span | None = None
    collate_cpu_ns: int | None = None

    @property
    def awake_ns(self) -> int:
        """Its time without waiting for a core."""
        return max(0, self.ns - (self.runnable_ns or 0))


@dataclass(slots=True)
class TracedBatch:
    """How a batch was made."""

    number: int
    """Within its epoch, from 0."""
    drawn: Span | None = None
    """When its indices were drawn and sent, by the main thread."""
    sampler_ns: int | None = None
    """The part of that spent in the sampler."""
    tasks: list[TaskSpan] = field(default_factory=list)
    pinned: Span | None = None
    """When a thread copied it to page-locked memory."""
    iterator: int = -1
    """Its epoch: see :attr:`TracedStep.iterator`; -1 if unknown."""
    loader: int = -1

    @property
    def complete(self) -> int | None:
        """When the main process had all of it, or, if that was not recorded, when all of it was done; None: unknown."""
        arrived = [task.arrived for task in self.tasks if task.arrived is not None]
        ended = [task.ended for task in self.tasks]
        return max(arrived if len(arrived) == len(ended) else ended, default=None)


@dataclass(slots=True)
class TracedStep:
    """A wait for a batch and what the loop did with the batch."""

    number: int
    """Within the rank, from 0."""
    loader: int
    iterator: int
    """Number of the epoch, unique among all loaders."""
    wait: Span
    """Time in ``next()``, on the host's clock."""
    batch: TracedBatch
    startup: list[Span]
    """Since the previous step: making iterators and starting workers."""
    first: bool
    """The first of its epoch."""
    loop_ns: int | None
    """From the wait's end to the next wait, or until the next iterator is made; None for the last step."""
    loop_cpu_ns: int | None = None
    loop_runnable_ns: int | None = None
    device_idle_ns: int | None = None
    """Idle time of the device around the wait; None without a device, or if its events were not read."""
    ending: Span | None = None
    """The following wait, if that found the end of the epoch; not part of ``loop_ns``."""
    copy_ns: int = 0
    """Copies to a device from this wait to the next, as the host saw them; not those that it need not wait for: from
    page-locked memory, and non-blocking."""

    @property
    def asked(self) -> int:
        """When its iterator was made, or else when its batch was asked for."""
        return min([self.wait.begun, *(span.begun for span in self.startup)])

    @property
    def ended(self) -> int:
        """When the loop was done with its batch, as far as that is known."""
        return self.wait.ended + (self.loop_ns or 0)


@dataclass(slots=True)
class Rank:
    """A process that trained."""

    rank: int | None
    """As numbered by torchrun; None without it."""
    process: int
    cores: int
    loaders: dict[int, Mapping[str, Any]]
    """Description of each loader: see hooks/loader_info.py."""
    steps: list[TracedStep]
    ahead: list[TracedBatch]
    """Batches that were never delivered, or whose wait was overwritten: they kept workers busy."""
    probe_ns: list[int] = field(default_factory=list)
    """How late a thread that slept got the interpreter, each time."""
    files: dict[int, str] = field(default_factory=dict)
    """Names of the files of slow samples, by their index."""
    level: int | None = None
    """``--level``: 2 if the stages of samples were looked for; None if unknown."""

    @property
    def batches(self) -> list[TracedBatch]:
        """All batches that were worked on."""
        return [*(step.batch for step in self.steps), *self.ahead]


@dataclass(slots=True)
class Trace:
    """A recording."""

    ranks: list[Rank]
    command: list[str]
    missing: dict[str, str]
    """Signals that were not recorded, and why."""
    versions: Mapping[str, str]
    warmup: int
    """Number of first steps of each rank on which no verdict is based."""
    hooks_ns: float | None = None
    """Lower bound of the time of all hooks; None if unknown."""
    recorded: str = ""
