"""What a loader's state says of a mixture: which weights held when; and what becomes of it where others hold now. Pure.

A record is a list of plain values: the draw from which on the mixture was declared as it was when the state was saved,
the epoch and the draw that its epochs are counted from, the draws of an epoch, the limits of epochs of the last stage's
names (0: none) or nothing, and the stages: the draw that each holds from, and names, shares and lengths of its sources.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..base.checks import is_integer
from ..errors import StateError
from .epochs import Resume, Sampling
from .mixture import Mixture
from .mixture_order import MixtureOrder, Plan, Stage
from .quotas import END
from .samplers import EpochOrder


def record_of(order: MixtureOrder) -> list[Any]:
    """Return the record of a mixture's order."""
    plan, names = order.plan, order.plan.stages[-1].names
    limits = [plan.limits.get(name, 0) for name in names] if plan.limits else []
    stages = [[stage.start, *stage.names, *stage.weights, *stage.lengths] for stage in plan.stages]
    return [plan.since, *plan.origin, order.length, limits, *stages]


def differences_from(known: Any, record: Any) -> list[str]:
    """Return what differs in a loader's mixture from a record, in words: see :func:`differences`."""
    now = known.order.mixture
    return differences(order_in(record, now), now)


def same_but_for_lengths(name: Any, other: str) -> bool:
    """Return whether the names of two orders differ only in the digest of the samples' lengths."""
    cut = functools.partial(re.sub, "lengths=[0-9a-f]*", "")
    return isinstance(name, str) and cut(name) == cut(other)


def known_then(known: Any, record: Any) -> EpochOrder:
    """Return the order of a loader of a mixture as it was when a record was made."""
    now = known.order.mixture
    saved = order_in(record, now)
    # The history of a mixture that has not changed may end after a resume in the middle of it.
    return _with(known, saved if differences(saved, now) else resumed(saved, now))


def _with(known: Any, mixture: MixtureOrder) -> EpochOrder:
    order = known.order.with_mixture(mixture)
    made: EpochOrder = replace(known, order=order, shard=replace(known.shard, length=order.length))
    return made


def resume_of(known: Any, state: Mapping[str, Any]) -> Resume:
    """Return where a loader of a mixture resumes, and its order with the history that the state has."""
    now, epoch, position = known.order.mixture, state["epoch"], state["position"]
    saved = order_in(state["mixture"], now)
    if not differences(saved, now):
        return Resume(epoch, position, order=known.order.with_mixture(resumed(saved, now)))
    draw = _with(known, saved).draws_before(position, epoch)
    following, epoch, begins = continued(saved, now, draw, epoch)
    return Resume(epoch, 0 if begins else position, order=known.order.with_mixture(following))


def adopt(sampling: Sampling, order: Any) -> None:
    """Let the samplers of a loader have another order of its mixture, and the mixture count by it."""
    for sampler in sampling.samplers:
        if hasattr(sampler, "adopt"):
            sampler.adopt(order)
    if isinstance(sampling.dataset, Mixture):
        sampling.dataset.plan = order.mixture.plan


def order_in(record: Any, order: MixtureOrder) -> MixtureOrder:
    """Return an order as it was when a record of it was made.

    Raises:
        StateError: it is no such record.
    """
    match record:
        case [since, epoch, draw, length, [*limits], first, *more] if all(
            is_integer(one, 0, END) for one in (since, epoch, draw, length - 1 if length else -1, *limits)
        ):
            stages = [_stage_in(values) for values in (first, *more)]
            starts = [stage.start for stage in stages]
            if starts[0] == 0 and starts == sorted(set(starts)) and len(limits) in (0, len(stages[-1].names)):
                known = {name: most for name, most in zip(stages[-1].names, limits, strict=False) if most}
                return order.with_plan(Plan(stages, known, since, (epoch, draw)), length)
    raise StateError(f"the state is damaged: its mixture is {record!r:.300}")


def _stage_in(values: Any) -> Stage:
    if isinstance(values, list | tuple) and len(values) % 3 == 1 and is_integer(values[0], 0, END):
        num = len(values) // 3
        names, weights, lengths = (tuple(values[1 + column * num :][:num]) for column in range(3))
        if (
            all(isinstance(name, str) for name in names)
            and all(isinstance(weight, float) and 0 <= weight <= 1 for weight in weights)
            and sum(weights) > 0
            and all(is_integer(length, 1, END) for length in lengths)
        ):
            return Stage(values[0], names, weights, lengths)
    raise StateError(f"the state is damaged: a stage of its mixture is {values!r:.300}")


def resumed(saved: MixtureOrder, now: MixtureOrder) -> MixtureOrder:
    """Return the order of now with the history of one that was saved and does not differ from it."""
    history = (stage for stage in saved.plan.stages if stage.start < saved.plan.since)
    stages = (*history, *_from(now.plan, saved.plan.since))
    plan = Plan(stages, now.plan.limits, saved.plan.since, saved.plan.origin, now.plan.declared)
    return now.with_plan(plan, now.length)


def continued(saved: MixtureOrder, now: MixtureOrder, draw: int, epoch: int) -> tuple[MixtureOrder, int, bool]:
    """Return the order of before up to a draw of an epoch and that of now after it, the epoch, and whether that begins.

    Each source goes on where it was. An epoch that is at its end, by the number of draws that it had or has, is over.
    """
    begin, origin = saved.draw_at(epoch, 0), saved.plan.origin
    is_over = draw - begin >= min(now.length, saved.length)
    if is_over:
        epoch, begin = epoch + 1, draw
    if is_over or now.length != saved.length:
        origin = epoch, begin
    stages = (*saved.plan.happened(draw), *_from(now.plan, draw))
    return now.with_plan(Plan(stages, now.plan.limits, draw, origin, now.plan.declared), now.length), epoch, is_over


def _from(plan: Plan, draw: int) -> list[Stage]:
    """Return what a plan declares from a draw on."""
    later = [stage for stage in plan.declared if stage.start > draw]
    return [plan.declared[-len(later) - 1]._replace(start=draw), *later]


def differences(saved: MixtureOrder, now: MixtureOrder) -> list[str]:
    """Return what differs in two orders of a mixture from where the one that was saved was declared, in words."""
    stages = (
        [stage for stage in saved.plan.stages if stage.start >= saved.plan.since],
        _from(now.plan, saved.plan.since),
    )
    before, after = (dict(zip(some[-1].names, some[-1].lengths, strict=True)) for some in stages)
    found = [f"source {name!r} is new" for name in after.keys() - before.keys()]
    found += [f"source {name!r} is missing" for name in before.keys() - after.keys()]
    for name in sorted(before.keys() & after.keys()):
        of_both = {
            "length": (before[name], after[name]),
            "max_epochs": (saved.plan.limits.get(name), now.plan.limits.get(name)),
        }
        found += [f"the {what} of {name!r} was {a} and is {b}" for what, (a, b) in of_both.items() if a != b]
    starts = [[stage.start for stage in some] for some in stages]
    if starts[0] != starts[1]:
        found.append(f"weights changed at draws {starts[0]} and change at {starts[1]}")
    elif before.keys() == after.keys():
        for old, new in zip(*stages, strict=True):
            weights = dict(zip(old.names, old.weights, strict=True)), dict(zip(new.names, new.weights, strict=True))
            changed = [name for name in old.names if weights[0].get(name) != weights[1].get(name)]
            found += [
                f"the share of {name!r} from draw {old.start} on was {weights[0][name]:g} and is {weights[1][name]:g}"
                for name in changed
            ]
    if saved.length != now.length:
        found.append(f"num_samples was {saved.length} and is {now.length}")
    return found
