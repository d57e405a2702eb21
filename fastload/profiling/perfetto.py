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

_MAIN, _DEVICE = 1, 2
"""Numbers of tracks; those of other threads follow."""


def trace_json(analysis: Analysis) -> str:
    """Return the trace's text."""
    events: list[Event] = []
    for place, rank in enumerate(analysis.ranks):
        pid = place + 1  # 0 is the idle process of the viewers
        events += ({"pid": pid, **event} for event in (*_names(rank), *_slices(rank)))
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


def _tracks(rank: RankAnalysis) -> dict[str, int]:
    """Return the numbers of the tracks by their names."""
    main, *others = rank.tracks()
    device = {"device": _DEVICE} if rank.clock == "device" else {}
    return {main: _MAIN, **device, **{track: number for number, track in enumerate(others, _DEVICE + 1)}}


def _names(rank: RankAnalysis) -> Iterator[Event]:
    tracks = _tracks(rank)
    yield {"ph": "M", "tid": 0, "name": "process_name", "args": {"name": rank_name(rank)}}
    yield {"ph": "M", "tid": 0, "name": "process_labels", "args": {"labels": cause_name(rank.verdict.cause)}}
    for name, tid in tracks.items():
        yield {"ph": "M", "tid": tid, "name": "thread_name", "args": {"name": name}}
        yield {"ph": "M", "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}}


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
    tracks = _tracks(rank)
    for span in rank.spans:
        name = f"{'pin ' if span.track == 'pin' else ''}batch {span.batch}"
        about = {"batch": span.batch, "epoch": span.epoch}
        yield _slice(tracks[span.track], name, span.begun_ms, span.ended_ms, **about)


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
