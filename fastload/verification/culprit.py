"""Which stage makes two settings differ: the first one without which they are equal.

In: a difference that was seen. Out: the stage, by trying both settings again with the last stages taken out.

All samples of the batches that were compared are looked at in each trial, not the one alone that differed: a race, or a
generator that workers share out as they come, shows in another sample each time.
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
"""Where which worker gets which sample is left to chance: one that gets all of them hides what they do not share."""

Differs = Callable[[Sequence[Stage]], bool | None]
"""Whether the settings still differ when these stages are taken out; None: that cannot be run."""


def find_culprit(
    subject: Subject, reference: Setting, setting: Setting, num_batches: int, *, regrouped: bool
) -> tuple[Culprit, Place | None]:
    """Find the stage that makes two settings differ.

    Args:
        subject: what is loaded.
        reference: one of them.
        setting: the other, with which a difference was seen.
        num_batches: how many batches to look at.
        regrouped: they cut the samples into batches differently.

    Returns:
        The stage; and the first place where samples differ before ``collate_fn``, with the whole chain, if they do.

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
            except Exception:  # a later stage, or the dataset, needs what was taken out
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
    spawn = setting.method == "spawn"
    stages = find_stages(subject.parts.dataset)
    found = first_that_differs(stages, differs)
    if found is None:
        dataset = subject.parts.dataset
        where = "the dataset itself, before any transform" if stages else "the dataset; no transforms were found in it"
        causes = causes_in(dataset, thread=thread, spawn=spawn) or [_usual(subject, setting)]
        return Culprit(stage=_short(dataset), place=where, certain=True, causes=causes), first
    last_good, stage = found
    inner = inner_stages(stage)
    if inner:
        behind = [one for one in stages if stages.index(one) > stages.index(stage)]
        deeper = first_that_differs(inner, lambda removed: differs([*removed, *behind]))
        if deeper is not None:
            last_good, stage = deeper
    causes = causes_in(stage.transform, thread=thread, spawn=spawn) or [_usual(subject, setting)]
    if last_good is not None:
        causes.append(f"the stages from {last_good.label} on could not be told apart: without them others fail")
    return Culprit(stage=stage.label, place=stage.place, certain=last_good is None, causes=causes), first


def _orders_differ(subject: Subject, reference: Setting, setting: Setting, num_batches: int, regrouped: bool) -> bool:
    if subject.iterable:
        return False
    made = []
    for one in (reference, setting):
        # The order is made in this process, so any workers will do; threads start at once.
        method: Method = "thread" if one.method == "spawn" else one.method
        made.append(record(subject, replace(one, indices_only=True, method=method), num_batches, by_samples=True))
    return first_difference(*made, regrouped=regrouped) is not None


def _of_the_order(subject: Subject, setting: Setting) -> Culprit:
    sampler = subject.parts.batch_sampler or subject.parts.sampler
    causes = []
    if setting.resume_after is not None or setting.persistent:
        causes.append(
            "other indices were asked for: the sampler draws from the global generators, whose state after a resume, "
            "or with workers that stay, is another; give it a generator of its own, or use fastload's samplers, which "
            "have a seed"
        )
    return Culprit(
        stage=label_of(sampler) if sampler is not None else "the order",
        place="the sampler",
        certain=True,
        causes=[*causes, *causes_in(sampler, thread=False, spawn=False)] or ["other indices were asked for"],
    )


def first_that_differs(stages: Sequence[Stage], differs: Differs) -> tuple[Stage | None, Stage] | None:
    """Find the first stage of a chain that makes the difference, by halving.

    Args:
        stages: the chain; with all of it, the settings differ.
        differs: tries with some stages taken out.

    Returns:
        None: they differ without any stage. Else the stage; before it, where chains in between could not be run, the
        first stage that it may be as well.
    """
    if not stages:
        return None
    # How many stages are kept: at lowest[0] they are equal, at the last of lowest they differ.
    without_any = differs(stages)
    if without_any:
        return None
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
    if subject.parts.collate_fn is not None:
        function = subject.parts.collate_fn
        return Culprit(
            stage=label_of(function),
            place="collate_fn",
            certain=False,
            causes=[
                "samples are equal, or were when this was tried again; what is made of them is not",
                *causes_in(function, thread=False, spawn=False),
            ],
        )
    return Culprit(
        stage="what lies between the samples and the batch",
        place="",
        certain=False,
        causes=[
            "samples were equal when this was tried again: either the difference comes and goes (the clock, a race "
            "between threads), or fastload changed them on the way, a bug of fastload's: please report it"
        ],
    )


def _usual(subject: Subject, setting: Setting) -> str:
    if setting.world_size > 1 and callable(getattr(subject.parts.dataset, "__getitems__", None)):
        return "the dataset loads batches itself (__getitems__), which are seeded as a whole, and ranks have others"
    if setting.method == "thread":
        return "threads share this object: what it keeps while it works on a sample, another thread may overwrite"
    return "nothing in it tells why: look for generators, counters or caches of its own, the clock, ids of processes"


def _short(dataset: Any) -> str:
    text = label_of(dataset)
    return text if len(text) <= 60 else f"{type(dataset).__qualname__}()"


__all__ = ["find_culprit", "first_that_differs"]
