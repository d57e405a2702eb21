"""The record that a loader's state has of a mixture, and a mixture that goes on from it with other weights. Pure.

A record is a list of plain values: the draw from which on the mixture was declared as it was when the state was saved,
the epoch and the draw that its epochs are counted from, the draws of an epoch, and the stages: the draw that each holds
from, and names, shares and lengths of its sources, ``[length, max_epochs]`` of those with a limit; shares alone where
the sources are those of the stage before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..base.checks import is_integer
from ..base.users_line import warn_at_users_line
from ..errors import StateError
from .epochs import Resume, Sampling
from .mixture import Mixture
from .mixture_order import MixtureOrder, Plan, Share, Stage
from .quotas import END
from .samplers import EpochOrder


def record_of(order: MixtureOrder) -> list[Any]:
    """Return the record of a mixture's order."""
    stages: list[list[Any]] = []
    before: list[Any] = []
    for start, sources in order.plan.stages:
        weights, lengths, limits = zip(*sources.values(), strict=True)
        sizes = [[length, limit] if limit else length for length, limit in zip(lengths, limits, strict=True)]
        same, before = before == [*sources, *sizes], [*sources, *sizes]
        stages.append([start, *weights] if same else [start, *sources, *weights, *sizes])
    return [order.plan.since, *order.plan.origin, order.length, *stages]


def _order_in(record: Any, order: MixtureOrder) -> MixtureOrder:
    """Return an order as it was when a record of it was made."""
    try:
        since, epoch, draw, length, *values = record
        stages: list[Stage] = []
        for some in values:
            stages.append(_stage_in(some, stages[-1].sources if stages else {}))
        starts = [stage.start for stage in stages]
        right = starts[0] == 0 and since in starts and starts == sorted(set(starts))
        if right and all(is_integer(one, 0, END) for one in (since, epoch, draw, length - 1)):
            return order.with_plan(Plan(stages, since, (epoch, draw)), length)
    except (TypeError, ValueError, IndexError):
        pass
    raise StateError(f"the state is damaged: its mixture is {record!r:.300}")


def _stage_in(values: Any, before: Mapping[str, Share]) -> Stage:
    start, *rest = values
    if isinstance(rest[0], float):  # shares alone
        sizes_before = ([one.length, one.limit] for one in before.values())
        rest = [*before, *rest, *sizes_before]
    names, weights, sizes = (rest[place * len(rest) // 3 : (place + 1) * len(rest) // 3] for place in range(3))
    sources = {}
    for name, weight, size in zip(names, weights, sizes, strict=True):
        length, limit = size if isinstance(size, list | tuple) else (size, 0)
        right = isinstance(name, str) and isinstance(weight, float) and 0 <= weight <= 1
        if not (right and is_integer(length, 1, END) and is_integer(limit, 0, END)):
            raise ValueError
        sources[name] = Share(weight, length, limit)
    if not is_integer(start, 0, END) or not any(share.weight for share in sources.values()):
        raise ValueError
    return Stage(start, sources)


@dataclass
class Saved:
    """A loader's order of a mixture now, and the one that a state has."""

    known: Any
    record: Any

    def __post_init__(self) -> None:
        self.now: MixtureOrder = self.known.order.mixture
        self.then = _order_in(self.record, self.now)
        self.changes = _changes(self.then, self.now)
        """All that differs, in words."""
        if not self.changes:
            plan, declared = self.then.plan, self.now.plan
            history = (stage for stage in plan.stages if stage.start < plan.since)
            stages = (*history, *declared.declared_from(plan.since))
            self.then = self.now.with_plan(Plan(stages, plan.since, plan.origin, declared.declared), self.now.length)

    @property
    def order(self) -> EpochOrder:
        """The loader's order as it was when the state was saved."""
        order = self.known.order.with_mixture(self.then)
        made: EpochOrder = replace(self.known, order=order, shard=replace(self.known.shard, length=order.length))
        return made

    def resume(self, sampling: Sampling, state: Mapping[str, Any]) -> Resume:
        """Let a loader's samplers have this order, after the block under way as it is now, and return where it resumes.

        An epoch that is at its end, by the number of draws that it had or has, is over.
        """
        epoch, position, plan, now = state["epoch"], state["position"], self.then.plan, self.now
        if self.changes:
            given, draw = self.order.draws_before(position, epoch)
            begin, origin = self.then.draw_at(epoch, 0), plan.origin
            self.then.at(epoch, np.arange(given - begin, draw - begin))  # an error where these are not there any more
            shortest = min(now.length, self.then.length)
            if given < draw and draw - begin >= shortest and now.length != self.then.length:
                raise StateError(
                    f"num_samples was {self.then.length} and is {now.length}, and the state was saved within the last "
                    f"block or window of an epoch, which is another one then: give num_samples={self.then.length}, or "
                    "take another state"
                )
            if given - begin >= shortest:
                epoch, position, begin, origin = epoch + 1, 0, draw, (epoch + 1, draw)
            if now.length != self.then.length:
                origin = epoch, begin
            was, sources = plan.stages[-1].sources, now.plan.declared[-1].sources
            if others := [name for name in was.keys() & sources.keys() if was[name].length != sources[name].length]:
                warn_at_users_line(
                    "sources of the mixture have other lengths than they had, and so another order, and begin their "
                    f"next epoch now: {', '.join(sorted(others))}"
                )
            history = (stage for stage in plan.stages if stage.start < draw)
            plan = Plan((*history, *now.plan.declared_from(draw)), draw, origin, now.plan.declared)
        order = self.known.order.with_mixture(now.with_plan(plan, now.length))
        for sampler in sampling.samplers:
            if hasattr(sampler, "adopt"):
                sampler.adopt(order)
        if isinstance(sampling.dataset, Mixture):
            sampling.dataset.plan = plan
        return Resume(epoch, position)


def same_but_for_lengths(name: Any, other: str) -> bool:
    """Return whether the names of two orders differ only in the digest of the samples' lengths."""
    return re.sub("lengths=[0-9a-f]*", "", str(name)) == re.sub("lengths=[0-9a-f]*", "", other)


def _changes(then: MixtureOrder, now: MixtureOrder) -> list[str]:
    """Return what differs from where the mixture was declared as it was, in words."""
    before = [stage for stage in then.plan.stages if stage.start >= then.plan.since]
    after = now.plan.declared_from(then.plan.since)
    was, is_now = before[0].sources.keys(), after[0].sources.keys()
    found = [f"source {name!r} is {'new' if name in is_now else 'missing'}" for name in sorted(was ^ is_now)]
    for name in () if found else sorted(is_now):
        shares = [[(start, sources.get(name, Share(0.0, 0))) for start, sources in some] for some in (before, after)]
        of_both: dict[str, list[Any]] = {
            "the length": [some[0][1].length for some in shares],
            "max_epochs": [some[0][1].limit or None for some in shares],
            "the weight, by draw,": [{start: share.weight for start, share in some} for some in shares],
        }
        found += [f"{what} of {name!r} was {a} and is {b}" for what, (a, b) in of_both.items() if a != b]
    if then.length != now.length:
        found.append(f"num_samples was {then.length} and is {now.length}")
    return found
