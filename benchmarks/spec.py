"""Descriptions of what is measured: plain values that the runner carries out and the report prints."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

# What a measuring function returns: metric name -> value. "statistics" holds what the loader says of itself, "skipped"
# why this side cannot be measured here, "versions" those of the side's library, Python and torch.
Measurement = dict[str, object]


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the loaders that take turns in a case."""

    name: str
    """What the table calls it."""
    package: str
    """Where its DataLoader comes from: "torch", "fastload" or a peer's module; "none": it has no loader."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Arguments that only this side's loader gets, such as ``seed=1``."""
    compared_with: str | None = None
    """Name of the side that this side is divided by; None for the sides that others are compared with."""
    arguments: Mapping[str, object] = field(default_factory=dict)
    """What replaces the case's arguments for this side."""
    prepare: str = ""
    """``module:function`` that makes this side's files first, in a process that measures nothing; empty: none."""
    python: str = sys.executable
    """The interpreter that runs it."""
    missing: str = ""
    """Why it cannot be measured on this machine; empty if it can."""


TORCH = Side(name="torch", package="torch")
FASTLOAD = Side(name="fastload", package="fastload", compared_with="torch")
# What keys cost, for samples so cheap that seeding each of them shows; and what they bring for uneven ones.
FASTLOAD_SEED = Side(name="fastload seed=1", package="fastload", options={"seed": 1}, compared_with="torch")
WITH_SEED = (TORCH, FASTLOAD, FASTLOAD_SEED)


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One number of a measurement, and what it has to reach."""

    name: str
    """Key in the measurement; ends with the unit."""
    more_is_better: bool = False
    """True for rates. Decides which way round the ratio is taken: above 1 always favours fastload."""
    least_ratio: float | None = 0.97
    """The ratio to reach, or None where a ratio says nothing."""
    most_value: float | None = None
    """The value that fastload must not exceed, in the metric's own unit."""
    has_ratio: bool = True
    """False for numbers near zero, such as growth, where a ratio is noise."""


def rates(least_ratio: float | None = 0.97, whole: float | None = 0.97) -> tuple[Metric, ...]:
    """Return the metrics of an epoch: two rates with their goals, and the processor's time."""
    return (
        Metric(name="samples/s steady", more_is_better=True, least_ratio=least_ratio),
        Metric(name="samples/s", more_is_better=True, least_ratio=whole),
        Metric(name="CPU us/sample", least_ratio=None),
    )


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A side beside another one."""

    ours: str
    theirs: str
    metric: Metric
    least_ratio: float | None = None
    """The goal, or None: just to know. A ratio above 1 is in favour of ``ours``, whichever way the metric runs."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """The same work, measured on several sides, in turn, several times."""

    name: str
    """``subject`` or ``subject-variant``."""
    measure: str
    """``module:function`` of the measuring function, called as ``function(side, **arguments)`` in a child process."""
    first: str = ""
    """The function that a child runs before it is measured, and whose answer is kept; empty: ``measure``, unkept."""
    metrics: tuple[Metric, ...]
    sides: tuple[Side, ...] = (TORCH, FASTLOAD)
    compared: tuple[Comparison, ...] = ()
    """Empty: each side with the one that it is compared with, by all metrics whose ratio says something."""
    ratios_with_theirs: bool = False
    """True if a ratio stands in the row of ``theirs``: where one side is compared with many."""
    arguments: Mapping[str, object] = field(default_factory=dict)
    """Keyword arguments of the measuring function; must survive JSON."""
    quick: Mapping[str, object] = field(default_factory=dict)
    """What replaces them under ``--quick``."""
    repetitions: int = 5
    """Recorded measurements of each side."""
    fresh_process: bool = False
    """One child process for each measurement, where what ran before in the process would show in the number."""
    needs_images: bool = False
    """True if the measuring function takes ``image_root``, the folder given by ``--data``."""

    @property
    def subject(self) -> str:
        return self.name.partition("-")[0]

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        return self.compared or tuple(
            Comparison(
                ours=side.name,
                theirs=side.compared_with,
                metric=metric,
                least_ratio=metric.least_ratio if metric.most_value is None else None,
            )
            for side in self.sides
            if side.compared_with is not None
            for metric in self.metrics
            if metric.has_ratio
        )
