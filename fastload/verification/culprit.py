"""Which stage makes two settings differ: found by running both again without the last stages.

In: a difference that was seen. Out: the first stage without which both settings agree.

All samples of the batches are compared in each trial, not only the one that differed: a race between threads, or a
generator that workers share, shows in another sample each time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from .causes import causes_in
from .plan import Method, Setting
from .record import Place, first_difference, record
from .report import Culprit
from .stages import Stage, find_stages, inner_stages, label_of, without
from .subject import Subject

_TRIES = 3
"""Where workers take samples as they come: one worker that takes them all hides what they do not share."""

Differs = Callable[[Sequence[Stage]], bool | None]
"""Returns whether the settings differ without these stages; None: they cannot be run without them."""


def find_culprit(
    subject: Subject, reference: Setting, setting: Setting, num_batches: int, *, regrouped: bool
) -> tuple[Culprit, Place | None]:
    """Find the stage that makes two settings differ.

    Args:
        subject: what is loaded.
        reference: one setting.
        setting: the other, with which a difference was seen.
        num_batches: how many batches to compare.
        regrouped: they cut the samples into batches differently.

    Returns:
        The stage; and the first place where samples differ before ``collate_fn``, if they do.

    Blocking: two runs for each trial; about log2 of the number of stages, twice.
    """
    thread = "thread" in (setting.method, reference.method)
    most_workers = max(setting.num_workers, setting.resumed_by, reference.num_workers)
    tries = _TRIES if thread or most_workers > 1 else 1
    places: list[Place] = []

    def differs(removed: Sequence[Stage]) -> bool | None:
        def edit(dataset: Any) -> Any:
            return without(dataset, removed)

        for _ in range(tries):
            try:
                made = [record(subject, one, num_batches, edit=edit, by_samples=True) for one in (reference, setting)]
            except (Exception, SystemExit):  # a later stage, or the dataset, needs what was taken out
                return None
            place = first_difference(*made, regrouped=regrouped)
            if place is not None:
                places.append(place)
                return True
        return False

    if _orders_differ(subject, reference, setting, num_batches, regrouped):
        return _of_the_order(subject, setting), None
    if not differs([]):
        return _after_the_samples(subject), None
    first = places[0]
    stages = find_stages(subject.parts.dataset)
    found = first_that_differs(stages, differs)
    if found is None:
        dataset = subject.parts.dataset
        where = "the dataset itself, before any transform" if stages else "the dataset; it has no known transforms"
        causes = causes_in(dataset) or [_usual(subject, setting)]
        return Culprit(stage=_short(dataset), place=where, certain=True, causes=causes), first
    earliest, stage = found
    inner = inner_stages(stage)
    if inner:
        behind = stages[stages.index(stage) + 1 :]
        deeper = first_that_differs(inner, lambda removed: differs([*removed, *behind]))
        if deeper is not None:
            earliest, stage = deeper
    causes = causes_in(stage.transform) or [_usual(subject, setting)]
    if earliest is not None:
        causes.append(f"it may also be a stage before it, from {earliest.label} on: without those, others fail")
    return Culprit(stage=stage.label, place=stage.place, certain=earliest is None, causes=causes), first


def _orders_differ(subject: Subject, reference: Setting, setting: Setting, num_batches: int, regrouped: bool) -> bool:
    if subject.iterable:
        return False
    made = []
    for one in (reference, setting):
        # The order is made in this process, so any kind of worker will do; threads start at once.
        method: Method = "thread" if one.method == "spawn" else one.method
        made.append(record(subject, replace(one, indices_only=True, method=method), num_batches, by_samples=True))
    return first_difference(*made, regrouped=regrouped) is not None


def _of_the_order(subject: Subject, setting: Setting) -> Culprit:
    sampler = subject.parts.batch_sampler or subject.parts.sampler
    causes = []
    if setting.resume_after is not None or setting.persistent:
        causes.append(
            "it gives other indices: it draws from the global generators, whose state differs after a resume, or with "
            "persistent workers; give it a generator of its own, or use fastload's samplers, which have a seed"
        )
    return Culprit(
        stage=label_of(sampler) if sampler is not None else "the order",
        place="the sampler",
        certain=True,
        causes=[*causes, *causes_in(sampler)] or ["it gives other indices"],
    )


def first_that_differs(stages: Sequence[Stage], differs: Differs) -> tuple[Stage | None, Stage] | None:
    """Find the first stage of a chain that makes the difference, by halving.

    Args:
        stages: the chain; with all of it, the settings differ.
        differs: tries without some stages.

    Returns:
        None: they differ without any stage. Else the stage; and before it, where chains in between could not be run,
        the first stage that it may be as well.
    """
    if not stages:
        return None
    without_any = differs(stages)
    if without_any:
        return None
    # Numbers of stages that are kept: at low the settings are equal, at high they differ.
    lengths = list(range(1 if without_any is None else 0, len(stages) + 1))
    low, high = (0, len(lengths) - 1) if without_any is False else (-1, len(lengths) - 1)
    while high - low > 1:
        middle = (low + high) // 2
        answer = differs(stages[lengths[middle] :])
        if answer is None:
            del lengths[middle]
            high -= 1
        elif answer:
            high = middle
        else:
            low = middle
    kept = lengths[high]
    first_possible = lengths[low] + 1 if low >= 0 else 1
    return (stages[first_possible - 1] if first_possible < kept else None), stages[kept - 1]


def _after_the_samples(subject: Subject) -> Culprit:
    collate_fn = subject.parts.collate_fn
    if collate_fn is not None:
        causes = ["the samples are equal, but the batches made of them are not", *causes_in(collate_fn)]
        return Culprit(stage=label_of(collate_fn), place="collate_fn", certain=False, causes=causes)
    cause = (
        "the samples were equal when they were loaded again: the difference comes and goes (the clock, a race between "
        "threads), or it is a bug of fastload's; please report it"
    )
    return Culprit(stage="what lies between the samples and the batch", place="", certain=False, causes=[cause])


def _usual(subject: Subject, setting: Setting) -> str:
    if setting.world_size > 1 and callable(getattr(subject.parts.dataset, "__getitems__", None)):
        return "the dataset loads whole batches (__getitems__), which are seeded as a whole; those of ranks differ"
    if setting.method == "thread":
        return "threads share this object: one may overwrite what another keeps in it while it works on a sample"
    if setting.method == "spawn":
        return (
            "it differs in processes started by spawn, which import the script anew: hash() of a string, and so the "
            "order of a set, differs there (PYTHONHASHSEED); sort the set, or use hashlib"
        )
    return "its code shows no reason: look for generators, counters or caches of its own, the clock, process ids"


def _short(dataset: Any) -> str:
    text = label_of(dataset)
    return text if len(text) <= 60 else f"{type(dataset).__qualname__}()"


__all__ = ["find_culprit", "first_that_differs"]
