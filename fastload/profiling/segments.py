"""What a worker's task was made of: stretches of time, each with what it is charged to. Pure.

The system says of a task how long its thread was on the CPU and how long it was ready to run without a core; of
samples, stages and collation how long they were on the CPU is known too. A thread waits for a core in proportion to
what it computes, so that time is given to the stretches by their time on the CPU; what is left of one, it was blocked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .trace import Sample, Task


@dataclass(slots=True)
class Segment:
    """A stretch of time."""

    begun: int
    ended: int
    parts: Mapping[str, int]
    """State -> ns; they sum to its length."""


@dataclass(slots=True)
class _Leaf:
    """A stretch of which nothing smaller is known."""

    begun: int
    ended: int
    state: str
    cpu_ns: float | None
    runnable_ns: float = 0.0

    @property
    def ns(self) -> int:
        return self.ended - self.begun


def spread(into: dict[str, int], shares: Mapping[str, int], ns: int) -> None:
    """Add ``ns`` to states in proportion to their shares, in whole ns that sum to ``ns``."""
    total = sum(shares.values())
    if not total:
        into["other"] += ns
        return
    left = ns
    largest = max(shares, key=lambda state: shares[state])
    for state, share in shares.items():
        if state != largest and share > 0:
            part = ns * share // total
            if part:
                into[state] += part
                left -= part
    if left:
        into[largest] += left


def segments_of(task: Task, interpreter: float) -> list[Segment]:
    """Cut a task into segments.

    Args:
        task: a worker's.
        interpreter: share of blocked time that is waiting for the interpreter, as in threads that compute in Python.

    Returns:
        Segments in the order of time, from the task's begin to its end without gaps.
    """
    leaves = _leaves(task)
    _give_cpu(leaves, task.cpu_ns)
    _give_runnable(leaves, task.runnable_ns)
    return [_segment(leaf, interpreter) for leaf in leaves]


def _leaves(task: Task) -> list[_Leaf]:
    known: list[_Leaf] = []
    for sample in task.samples:
        known.extend(_leaves_of(sample))
    if task.collate is not None:
        known.append(_Leaf(task.collate.begun, task.collate.ended, "collate", task.collate_cpu_ns))
    leaves: list[_Leaf] = []
    at = task.begun
    for leaf in sorted(known, key=lambda one: (one.begun, one.ended)):
        begun, ended = max(at, leaf.begun), min(leaf.ended, task.ended)
        if ended <= begun:
            continue
        if begun > at:
            leaves.append(_Leaf(at, begun, "sample", None))
        cpu = leaf.cpu_ns if leaf.cpu_ns is None else leaf.cpu_ns * (ended - begun) / leaf.ns
        leaves.append(_Leaf(begun, ended, leaf.state, cpu))
        at = ended
    if task.ended > at:
        leaves.append(_Leaf(at, task.ended, "sample", None))
    return leaves


def _leaves_of(sample: Sample) -> list[_Leaf]:
    """Return the stages of a sample and the gaps between them."""
    if not sample.stages:
        return [_Leaf(sample.begun, sample.ended, "sample", sample.cpu_ns)]
    leaves: list[_Leaf] = []
    gaps: list[_Leaf] = []
    at = sample.begun
    in_stages = 0
    for stage in sorted(sample.stages, key=lambda one: one.begun):
        if stage.begun > at:
            gaps.append(_Leaf(at, stage.begun, "sample", None))
        leaves.append(_Leaf(stage.begun, stage.ended, f"stage:{stage.name}", stage.cpu_ns))
        in_stages += stage.ns if stage.cpu_ns is None else stage.cpu_ns
        at = max(at, stage.ended)
    if sample.ended > at:
        gaps.append(_Leaf(at, sample.ended, "sample", None))
    if sample.cpu_ns is not None:
        rest, length = max(0, sample.cpu_ns - in_stages), sum(gap.ns for gap in gaps)
        for gap in gaps:
            gap.cpu_ns = min(gap.ns, rest * gap.ns / length)
    return leaves + gaps


def _give_cpu(leaves: list[_Leaf], cpu_ns: int | None) -> None:
    """Give what is known of the whole task to those leaves of which it is not known."""
    for leaf in leaves:
        if leaf.cpu_ns is not None:
            leaf.cpu_ns = max(0.0, min(leaf.cpu_ns, leaf.ns))
    unknown = [leaf for leaf in leaves if leaf.cpu_ns is None]
    length = sum(leaf.ns for leaf in unknown)
    rest = length if cpu_ns is None else cpu_ns - sum(leaf.cpu_ns or 0.0 for leaf in leaves)
    share = max(0.0, min(1.0, rest / length)) if length else 0.0
    for leaf in unknown:
        leaf.cpu_ns = leaf.ns * share


def _give_runnable(leaves: list[_Leaf], runnable_ns: int | None) -> None:
    """Give the time in the run queue to leaves by their time on the CPU, to none more than it was off the CPU."""
    left = float(runnable_ns or 0)
    free = [leaf for leaf in leaves if leaf.ns - (leaf.cpu_ns or 0.0) >= 1.0]
    while left >= 1.0 and free:
        weight = sum(leaf.cpu_ns or 0.0 for leaf in free)
        by_length = weight < 1.0
        if by_length:
            weight = float(sum(leaf.ns for leaf in free))
        given = 0.0
        for leaf in free:
            room = leaf.ns - (leaf.cpu_ns or 0.0) - leaf.runnable_ns
            part = min(room, left * (leaf.ns if by_length else leaf.cpu_ns or 0.0) / weight)
            leaf.runnable_ns += part
            given += part
        left -= given
        if given < 1.0:
            return
        free = [leaf for leaf in free if leaf.ns - (leaf.cpu_ns or 0.0) - leaf.runnable_ns >= 1.0]


def _segment(leaf: _Leaf, interpreter: float) -> Segment:
    """Return what a leaf is charged to."""
    on_cpu = min(leaf.ns, round(leaf.cpu_ns or 0.0))
    runnable = min(leaf.ns - on_cpu, round(leaf.runnable_ns))
    blocked = leaf.ns - on_cpu - runnable
    if leaf.state == "collate":
        parts = {"collate": on_cpu + blocked, "run-queue": runnable}
    else:
        waiting = round(blocked * interpreter)
        parts = {leaf.state: on_cpu, "run-queue": runnable, "gil": waiting, "read": blocked - waiting}
    return Segment(leaf.begun, leaf.ended, {state: ns for state, ns in parts.items() if ns})


__all__ = ["Segment", "segments_of", "spread"]
