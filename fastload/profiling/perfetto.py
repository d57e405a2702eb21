"""The analysis as a trace for Perfetto (ui.perfetto.dev) and chrome://tracing.

In the Trace Event Format: a rank is a process; its tracks are the main thread, the copies to page-locked memory, the
device, and the workers. Times are in microseconds from the first event; ranks are aligned at their first steps. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from .formatting import by_size, cause_name, printable, rank_name, state_of
from .schema import Analysis, RankAnalysis

Event = dict[str, Any]

_MAIN, _PIN, _DEVICE, _WORKERS = 1, 2, 3, 10
"""Numbers of the tracks; that of worker ``i`` is ``_WORKERS + i``."""


def trace_json(analysis: Analysis) -> str:
    """Return the trace's text."""
    events: list[Event] = []
    for place, rank in enumerate(analysis.ranks):
        pid = place + 1  # 0 is the idle process of the viewers
        events += ({"pid": pid, **event} for event in (*_names(pid, rank), *_slices(rank)))
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


def _names(pid: int, rank: RankAnalysis) -> Iterator[Event]:
    tracks = {_MAIN: "main thread"}
    if rank.pins:
        tracks[_PIN] = "pin thread"
    if rank.clock == "device":
        tracks[_DEVICE] = "device"
    for worker in sorted({task.worker for task in rank.tasks if task.worker >= 0}):
        tracks[_WORKERS + worker] = f"worker {worker}"
    named: list[tuple[int, str, Event]] = [
        (0, "process_name", {"name": rank_name(rank)}),
        (0, "process_labels", {"labels": cause_name(rank.verdict.cause)}),
        (0, "process_sort_index", {"sort_index": pid}),
        *((tid, "thread_name", {"name": name}) for tid, name in tracks.items()),
        *((tid, "thread_sort_index", {"sort_index": tid}) for tid in tracks),
    ]
    for tid, name, about in named:
        yield {"ph": "M", "tid": tid, "name": name, "args": about}


def _slices(rank: RankAnalysis) -> Iterator[Event]:
    for number, step in enumerate(rank.steps):
        taken = step.begun_ms + step.wait_ms
        blame = {state_of(state).name: round(value, 3) for state, value in by_size(step.blame_ms)}
        about = {"step": number, "batch": step.batch, "stall_ms": round(step.stall_ms, 3), "blame_ms": blame}
        yield _slice(_MAIN, "wait", step.begun_ms, taken, **about)
        if step.stall_ms > 0:  # on the host's clock: the stall ends when the wait does
            tid, most = (_DEVICE, "idle device") if rank.clock == "device" else (_MAIN, next(iter(blame), ""))
            yield _slice(tid, f"stall: {most}", max(taken - step.stall_ms, step.begun_ms), taken, step=number)
        if step.loop_ms is not None:
            yield _slice(_MAIN, f"step {number}", taken, taken + step.loop_ms, step=number)
    for pin in rank.pins:
        yield _slice(_PIN, f"pin batch {pin.batch}", pin.begun_ms, pin.ended_ms, epoch=pin.pass_number)
    for task in rank.tasks:
        about = {"batch": task.batch, "epoch": task.pass_number}
        track = _MAIN if task.worker < 0 else _WORKERS + task.worker
        yield _slice(track, f"batch {task.batch}", task.begun_ms, task.ended_ms, **about)


def _slice(tid: int, name: str, begun_ms: float, ended_ms: float, **about: Any) -> Event:
    duration = round(max(ended_ms - begun_ms, 0.0) * 1000, 3)
    return {
        "ph": "X",
        "tid": tid,
        "name": name,
        "cat": "fastload",
        "ts": begun_ms * 1000,
        "dur": duration,
        "args": about,
    }
