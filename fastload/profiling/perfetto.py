"""A recording as a trace for Perfetto (ui.perfetto.dev) and chrome://tracing: its first steps.

In the Trace Event Format: a rank is a process; its tracks are the main thread, the copies to page-locked memory, the
device, and the workers. Times are in microseconds from the first event; ranks are aligned at their first steps. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from .blame import blamed_steps
from .formatting import by_size, cause_name, printable, rank_name, state_of
from .schema import Analysis, RankAnalysis
from .trace import Rank, Span, TracedBatch

Event = dict[str, Any]

_MOST_STEPS = 2_000
_MAIN, _DEVICE = 1, 2
"""Numbers of tracks; those of other threads follow."""


def trace_json(ranks: list[Rank], analysis: Analysis) -> str:
    """Return the trace's text; ``analysis``: that of the ranks."""
    events: list[Event] = []
    for place, (rank, about) in enumerate(zip(ranks, analysis.ranks, strict=True)):
        pid = place + 1  # 0 is the idle process of the viewers
        events += ({"pid": pid, **event} for event in _events(rank, about))
    earliest = min((event["ts"] for event in events if "ts" in event), default=0.0)
    for event in events:
        if "ts" in event:
            event["ts"] = round(event["ts"] - earliest, 3)
    value = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "command": printable(" ".join(analysis.command)),
            "recorded": printable(analysis.recorded),
            "ranks": "aligned at their first steps",
        },
    }
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _events(rank: Rank, about: RankAnalysis) -> Iterator[Event]:
    shown = blamed_steps(rank, about.clock)[:_MOST_STEPS]
    base = rank.steps[0].asked if rank.steps else 0
    until = max((one.step.wait.ended for one in shown), default=0)
    spans = [one for one in _spans(rank) if base <= one[1].begun < until]
    others = sorted({track for track, _, _ in spans} - {"main"}, key=lambda track: (len(track), track))
    tracks = {"main": _MAIN, **{track: number for number, track in enumerate(others, _DEVICE + 1)}}
    if about.clock == "device":
        tracks["device"] = _DEVICE
    yield {"ph": "M", "tid": 0, "name": "process_name", "args": {"name": rank_name(rank)}}
    yield {"ph": "M", "tid": 0, "name": "process_labels", "args": {"labels": cause_name(about.verdict.cause)}}
    for name, tid in tracks.items():
        yield {"ph": "M", "tid": tid, "name": "thread_name", "args": {"name": name}}
        yield {"ph": "M", "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}}

    def slice_of(track: str, name: str, begun: int, ended: int, **args: Any) -> Event:
        times = {"ts": (begun - base) / 1e3, "dur": max(ended - begun, 0) / 1e3}
        return {"ph": "X", "tid": tracks[track], "name": name, "cat": "fastload", **times, "args": args}

    for number, one in enumerate(shown):
        step, wait = one.step, one.step.wait
        blame = {state_of(state).name: round(ns / 1e6, 3) for state, ns in by_size(one.parts)}
        stall_ms = round(one.stall_ns / 1e6, 3)
        about_wait = {"step": number, "batch": step.batch.number, "stall_ms": stall_ms, "blame_ms": blame}
        yield slice_of("main", "wait", wait.begun, wait.ended, **about_wait)
        if one.stall_ns > 0:  # on the host's clock: the stall ends when the wait does
            track, most = ("device", "idle device") if about.clock == "device" else ("main", next(iter(blame), ""))
            yield slice_of(track, f"stall: {most}", max(wait.ended - one.stall_ns, wait.begun), wait.ended, step=number)
        yield slice_of("main", f"step {number}", wait.ended, step.ended, step=number)
    for track, span, batch in sorted(spans, key=lambda one: (one[1].begun, one[0])):
        name = f"{'pin ' if track == 'pin' else ''}batch {batch.number}"
        yield slice_of(track, name, span.begun, span.ended, batch=batch.number, epoch=batch.iterator)


def _spans(rank: Rank) -> Iterator[tuple[str, Span, TracedBatch]]:
    """Yield what threads did for batches, with the track of each."""
    for batch in rank.batches:
        for task in batch.tasks:
            yield "main" if task.worker < 0 else f"worker {task.worker}", task, batch
        if batch.pinned is not None:
            yield "pin", batch.pinned, batch
