"""Which stage makes two runs differ: measured, by running both again without the last stages.

All samples of the batches are compared in each trial, not only the one that differed: a race between threads, or a
generator that workers share, affects another sample each time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from .plan import RunSetting
from .record import first_difference, index_of, record
from .report import Check, Culprit
from .stages import TransformStage, find_stages, label_of
from .subject import Subject, Yields

_TRIES = 3
"""With several workers: one worker that takes all samples hides what workers do not share."""

Differs = Callable[[Sequence[TransformStage]], bool | None]
"""Returns whether the runs differ without these stages; None: they cannot be run without them."""


def explain(check: Check, subject: Subject, reference: RunSetting, setting: RunSetting, num_batches: int) -> None:
    """Add to a check which sample of two settings differs first, and which stage makes it differ.

    Blocking: two runs for each trial; about log2 of the number of stages.
    """
    several = setting.method == "thread" or max(setting.num_workers, setting.resumed_by, reference.num_workers) > 1
    regrouped = bool(setting.world_size)

    def differs(removed: Sequence[TransformStage], yields: Yields = "samples") -> bool | None:
        for _ in range(_TRIES if several and yields == "samples" else 1):
            try:
                expected = record(subject, reference, num_batches, yields, removed=removed)
                actual = record(subject, setting, num_batches, yields, removed=removed)
            except (Exception, SystemExit):  # a later stage, or the dataset, needs what was taken out
                return None
            place = first_difference(expected, actual, yields, regrouped=regrouped)
            if place is not None:
                if yields == "samples" and not removed:
                    check.difference = place
                return True
        return False

    if not subject.iterable and differs([], "indices"):
        stage = label_of(subject.sampler) if subject.sampler is not None else "the order"
        check.culprit = Culprit(stage, "the sampler")
    elif differs([]):
        check.culprit = culprit_in(subject.dataset, differs)
    elif subject.collate_fn is not None:
        check.culprit = Culprit(label_of(subject.collate_fn), "collate_fn", False)
    place = check.difference
    if place is not None and place.sample is not None:
        index = index_of(subject, reference, num_batches, place.epoch, place.sample)
        check.difference = replace(place, index=index)


def culprit_in(dataset: Any, differs: Differs) -> Culprit:
    """Name the stage of a dataset without which, and those after it, two runs are equal; else the dataset itself."""
    stages = find_stages(dataset)
    found = first_that_differs(stages, differs)
    if found is None:
        where = "the dataset itself, before any transform" if stages else "the dataset; it has no known transforms"
        return Culprit(label_of(dataset), where)
    stage, certain = found
    return Culprit(stage.label, stage.place, certain)


def first_that_differs(stages: Sequence[TransformStage], differs: Differs) -> tuple[TransformStage, bool] | None:
    """Find the first stage of a chain that makes the difference, by halving; None: they differ without any stage.

    With it: whether it is certain. If a part of the chain could not be run, a stage before it may be the one as well.
    """
    without_any = differs(stages) if stages else True
    if without_any:
        return None
    certain = without_any is False
    low, high = 0, len(stages)  # with so many stages they are equal, or could not be run; they differ
    while high - low > 1:
        middle = (low + high) // 2
        answer = differs(stages[middle:])
        certain &= answer is not None
        low, high = (low, middle) if answer else (middle, high)
    return stages[high - 1], certain
