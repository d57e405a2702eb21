"""Which stage makes two runs differ: measured, by running both again without the last stages.

All samples of the batches are compared in each trial, not only the one that differed: a race between threads, or a
generator that workers share, affects another sample each time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..keys.own_generators import REMEDY
from .plan import Setting
from .record import first_difference, record
from .report import Culprit, Difference
from .stages import TransformStage, find_stages, inner_stages, label_of, without
from .subject import Subject

_TRIES = 3
"""With several workers: one worker that takes all samples hides what workers do not share."""

Differs = Callable[[Sequence[TransformStage]], bool | None]
"""Returns whether the runs differ without these stages; None: they cannot be run without them."""


def find_culprit(
    subject: Subject, reference: Setting, setting: Setting, num_batches: int, *, regrouped: bool
) -> tuple[Culprit, Difference | None]:
    """Find the stage that makes two settings differ; and the first place where samples differ before ``collate_fn``.

    ``regrouped``: the settings cut the samples into batches differently.

    Blocking: two runs for each trial; about log2 of the number of stages, twice.
    """
    several = setting.method == "thread" or max(setting.num_workers, setting.resumed_by, reference.num_workers) > 1
    places: list[Difference] = []

    def differs(removed: Sequence[TransformStage], *, indices_only: bool = False) -> bool | None:
        for _ in range(_TRIES if several and not indices_only else 1):
            try:
                made = [
                    record(subject, one, num_batches, edit=lambda dataset: without(dataset, removed), by_samples=True)
                    for one in (replace(one, indices_only=indices_only) for one in (reference, setting))
                ]
            except (Exception, SystemExit):  # a later stage, or the dataset, needs what was taken out
                return None
            place = first_difference(*made, regrouped=regrouped)
            if place is not None:
                places.append(place)
                return True
        return False

    if not subject.iterable and differs([], indices_only=True):
        stage = label_of(subject.sampler) if subject.sampler is not None else "the order"
        cause = (
            "it gives other indices: if it draws from the global generators, their state differs after a resume, and "
            "with persistent workers; give it a generator of its own, or use fastload's samplers, which have a seed"
        )
        return Culprit(stage=stage, place="the sampler", certain=True, cause=cause), None
    if not differs([]):
        return _after_the_samples(subject), None
    return culprit_in(subject.dataset, differs, _usual_cause(subject, setting)), places[0]


def culprit_in(dataset: Any, differs: Differs, cause: str) -> Culprit:
    """Name the stage of a dataset without which, and those after it, two runs are equal; else the dataset itself."""
    stages = find_stages(dataset)
    found = first_that_differs(stages, differs)
    if found is None:
        where = "the dataset itself, before any transform" if stages else "the dataset; it has no known transforms"
        label = label_of(dataset)
        label = label if len(label) <= 60 else f"{type(dataset).__qualname__}()"
        return Culprit(stage=label, place=where, certain=True, cause=cause)
    stage, certain = found
    behind = stages[stages.index(stage) + 1 :]
    inner = inner_stages(stage)
    if inner and certain:
        stage, certain = first_that_differs(inner, lambda removed: differs([*removed, *behind])) or found
    if not certain:
        cause += "; it may also be a stage before it: without some of the last ones, the others fail"
    return Culprit(stage=stage.label, place=stage.place, certain=certain, cause=cause)


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


def _after_the_samples(subject: Subject) -> Culprit:
    if subject.collate_fn is not None:
        cause = "the samples are equal, but the batches made of them are not"
        return Culprit(stage=label_of(subject.collate_fn), place="collate_fn", certain=False, cause=cause)
    cause = (
        "the samples were equal when they were loaded again, so the difference comes and goes, most likely in a stage "
        "that this report names for another check; if it names none, it may be a bug of fastload: please report it"
    )
    where = "the clock, or code that several threads run at once"
    return Culprit(stage=where, place="", certain=False, cause=cause)


def _usual_cause(subject: Subject, setting: Setting) -> str:
    if setting.world_size > 1 and callable(getattr(subject.dataset, "__getitems__", None)):
        return "the dataset loads whole batches (__getitems__), which are seeded as a whole; those of ranks differ"
    if setting.method == "thread":
        return "threads share this object: one may overwrite what another keeps in it, or draw from its generator"
    if setting.method in ("spawn", "ray"):
        return (
            "it differs in processes that are started anew, by spawn or Ray, and import the code again: hash() of a "
            "string, and so the order of a set, differs there (PYTHONHASHSEED); sort the set, or use hashlib"
        )
    return f"look for a generator, counter or cache of its own, the clock, process and worker ids in it; {REMEDY}"
