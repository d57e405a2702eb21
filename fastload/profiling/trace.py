"""What a recording says, put together: for each rank its steps, and for each step how its batch came about. Plain data.

All times are ns on one clock (``CLOCK_MONOTONIC``), durations end in ``_ns``. What was not heard is None, never zero;
:attr:`Trace.missing` says what that is and why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .trials import Trials


@dataclass(slots=True)
class Span:
    """A stretch of time."""

    begun: int
    ended: int

    @property
    def ns(self) -> int:
        """How long it is."""
        return self.ended - self.begun


@dataclass(slots=True)
class Stage(Span):
    """A stage within a sample, as ``RandomResizedCrop``. Stages do not overlap; gaps between them are the sample's."""

    name: str
    cpu_ns: int | None


@dataclass(slots=True)
class Sample(Span):
    """A sample that the dataset gave."""

    place: int
    """Within its task."""
    index: int | None
    """Of the dataset; None if it is no integer."""
    cpu_ns: int | None
    """On the CPU; None if not measured."""
    weight: int
    """Samples that it stands for: of many small ones not every one is recorded."""
    stages: list[Stage] = field(default_factory=list)


@dataclass(slots=True)
class Task(Span):
    """What a worker did at one go: a whole batch, or, in fastload's loaders, some of its samples."""

    worker: int
    """0 to num_workers - 1; -1: the main process itself."""
    number: int
    """Within the batch."""
    num_samples: int
    """As many as were asked for; 0 if not known (IterableDataset)."""
    dispatched: int | None
    """When it was handed to the worker."""
    arrived: int | None
    """When the main process had its result."""
    cpu_ns: int | None
    runnable_ns: int | None
    """Ready to run, while others had the cores."""
    read_bytes: int | None
    """Asked for."""
    device_bytes: int | None
    """Read from a storage device: what was not in the page cache."""
    faults: int | None
    """Major page faults."""
    samples: list[Sample] = field(default_factory=list)
    collate: Span | None = None
    collate_cpu_ns: int | None = None


@dataclass(slots=True)
class Batch:
    """How a batch came about."""

    number: int
    """Within its pass, from 0."""
    drawn: Span | None
    """When its indices were drawn and handed out, by the main thread."""
    sampler_ns: int | None
    """Of that, time in the sampler."""
    tasks: list[Task] = field(default_factory=list)
    pinned: Span | None = None
    """When a thread copied it to page-locked memory."""
    iterator: int = -1
    """The pass that it is of: see :attr:`Step.iterator`; -1 if not known."""
    loader: int = -1

    @property
    def worked(self) -> int | None:
        """When the last of its tasks was done; None if that is not known."""
        return max((task.ended for task in self.tasks), default=None)

    @property
    def arrived(self) -> int | None:
        """When the main process had all of it; None if that is not known."""
        if not self.tasks or any(task.arrived is None for task in self.tasks):
            return None
        return max(task.arrived for task in self.tasks if task.arrived is not None)


@dataclass(slots=True)
class Copy(Span):
    """A copy to a device, as the host saw it."""

    num_bytes: int
    pinned: bool
    non_blocking: bool


@dataclass(slots=True)
class Step:
    """A wait for a batch and what the loop did with it."""

    number: int
    """Of the rank's, from 0."""
    loader: int
    iterator: int
    """A number of its own for each pass."""
    wait: Span
    """The host waited in ``next()``."""
    batch: Batch
    startup: list[Span]
    """Since the step before: making iterators and starting workers."""
    first: bool
    """The first of its pass."""
    loop_ns: int | None
    """From the wait's end to the next wait, or to the next iterator's making; None for the last step."""
    loop_cpu_ns: int | None = None
    loop_runnable_ns: int | None = None
    wait_cpu_ns: int | None = None
    """Of the wait, time that its thread was on the CPU; None if that is not known, as for the first of a pass."""
    wait_runnable_ns: int | None = None
    device_idle_ns: int | None = None
    """The device had nothing to do, around the wait; None without a device, or if its events were not read."""
    device_busy_ns: int | None = None
    """The device's time between the waits."""
    ending: Span | None = None
    """The wait after it that found the pass at its end; ``loop_ns`` is without it."""
    copies: list[Copy] = field(default_factory=list)
    """From this wait to the next."""


@dataclass(slots=True)
class Rank:
    """A process that trained."""

    rank: int | None
    """As torchrun numbers them; None if it started none."""
    process: int
    cores: int
    loaders: dict[int, Mapping[str, Any]]
    """What was noted of each loader: see ``described`` in hooks/loader_info.py."""
    steps: list[Step]
    ahead: list[Batch]
    """Batches that were never delivered, or whose wait was overwritten: they kept workers busy."""
    begun: int
    ended: int
    """Of what was recorded."""
    ceiling_ns: float | None = None
    """Mean time of a step with cached batches; None if there were no such steps."""
    probe_ns: list[int] = field(default_factory=list)
    """How late a thread that slept got the interpreter again, each time."""
    files: dict[int, str] = field(default_factory=dict)
    """Names of the files of samples that took long, by their index."""
    trials: dict[int, Trials] = field(default_factory=dict)
    """What samples cost with other settings, by the number of the loader."""


@dataclass(slots=True)
class Trace:
    """A recording."""

    ranks: list[Rank]
    command: list[str]
    missing: dict[str, str]
    """Signals that could not be heard, and why."""
    versions: Mapping[str, str]
    warmup: int
    """Steps at the beginning of each rank that no verdict is based on."""
    num_lost: int
    """Records overwritten by newer ones."""
    seconds_per_hook: float | None = None
    """Mean cost of a record, with what had to be measured for it, as the recording itself has found it."""
    recorded: str = ""
    """When: date and time with zone, ISO 8601."""
    exit_status: int | None = None
    """The script's own; None while it runs, or if that is not known."""


__all__ = ["Batch", "Copy", "Rank", "Sample", "Span", "Stage", "Step", "Task", "Trace"]
