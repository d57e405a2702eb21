"""The analysis as a trace for Perfetto (ui.perfetto.dev) and chrome://tracing.

In the Trace Event Format: a rank is a process; its tracks are the main thread, the copies to page-locked memory, the
device, and the workers. Counters show how many workers are busy and how many batches are ready; an arrow leads from a
worker's task to the step that took its batch. Times are in microseconds from the first event; ranks are aligned at
their first steps. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from .formatting import by_size, cause_name, printable, rank_name, state_of
from .schema import Analysis, RankAnalysis

Event = dict[str, Any]

_MAIN, _PIN, _DEVICE, _WORKERS = 1, 2, 3, 10
"""Numbers of the tracks; that of worker ``i`` is ``_WORKERS + i``."""


def trace_json(analysis: Analysis) -> str:
    """Return the trace's text."""
    events = [event for place, rank in enumerate(analysis.ranks) for event in _rank_events(place, rank)]
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


def _rank_events(place: int, rank: RankAnalysis) -> Iterator[Event]:
    pid = place + 1  # 0 is the idle process of the viewers
    yield from _names(pid, rank)
    yield from _main(pid, rank)
    if rank.clock == "device":
        yield from _device(pid, rank)
    for pin in rank.pins:
        yield _slice(pid, _PIN, f"pin batch {pin.batch}", pin.begun_ms, pin.ended_ms, {"epoch": pin.pass_number})
    for task in rank.tasks:
        about = {"batch": task.batch, "epoch": task.pass_number}
        yield _slice(pid, _track(task.worker), f"batch {task.batch}", task.begun_ms, task.ended_ms, about)
    yield from _arrows(pid, rank)
    yield from _counter(pid, "workers busy", _busy(rank))
    yield from _counter(pid, "batches ready", _ready(rank))


def _track(worker: int) -> int:
    return _MAIN if worker < 0 else _WORKERS + worker


def _names(pid: int, rank: RankAnalysis) -> Iterator[Event]:
    yield _meta(pid, 0, "process_name", {"name": rank_name(rank)})
    yield _meta(pid, 0, "process_labels", {"labels": cause_name(rank.verdict.cause)})
    yield _meta(pid, 0, "process_sort_index", {"sort_index": pid})
    tracks = {_MAIN: "main thread"}
    if rank.pins:
        tracks[_PIN] = "pin thread"
    if rank.clock == "device":
        tracks[_DEVICE] = "device"
    for worker in sorted({task.worker for task in rank.tasks if task.worker >= 0}):
        tracks[_track(worker)] = f"worker {worker}"
    for tid, name in tracks.items():
        yield _meta(pid, tid, "thread_name", {"name": name})
        yield _meta(pid, tid, "thread_sort_index", {"sort_index": tid})


def _main(pid: int, rank: RankAnalysis) -> Iterator[Event]:
    for number, step in enumerate(rank.steps):
        waited = step.begun_ms + step.wait_ms
        blame = {state_of(state).name: round(value, 3) for state, value in by_size(step.blame_ms)}
        about = {"step": number, "batch": step.batch, "stall_ms": round(step.stall_ms, 3), "blame_ms": blame}
        yield _slice(pid, _MAIN, "wait", step.begun_ms, waited, about)
        if step.stall_ms > 0 and rank.clock == "host":
            most = next(iter(blame), "stall")
            yield _slice(pid, _MAIN, f"stall: {most}", max(waited - step.stall_ms, step.begun_ms), waited, {})
        if step.loop_ms is not None:
            yield _slice(pid, _MAIN, f"step {number}", waited, waited + step.loop_ms, {"step": number})


def _device(pid: int, rank: RankAnalysis) -> Iterator[Event]:
    """Yield when the device was idle for data, on the host's clock: the stall ends when the wait does."""
    for number, step in enumerate(rank.steps):
        waited = step.begun_ms + step.wait_ms
        if step.stall_ms > 0:
            begun = max(waited - step.stall_ms, step.begun_ms)
            yield _slice(pid, _DEVICE, "stall: idle device", begun, waited, {"step": number})


def _arrows(pid: int, rank: RankAnalysis) -> Iterator[Event]:
    takers = {
        (step.pass_number, step.batch): step.begun_ms + step.wait_ms for step in rank.steps if step.batch is not None
    }
    for number, task in enumerate(rank.tasks):
        taken = takers.get((task.pass_number, task.batch))
        if task.worker < 0 or taken is None or taken < task.ended_ms:
            continue
        # Viewers show an arrow only if both ends lie within their slices.
        begun = task.begun_ms + (task.ended_ms - task.begun_ms) * 0.999
        flow = {"cat": "batch", "name": "batch", "id": pid * 10_000_000 + number, "pid": pid}
        yield {**flow, "ph": "s", "tid": _track(task.worker), "ts": begun * 1000}
        yield {**flow, "ph": "f", "bp": "e", "tid": _MAIN, "ts": taken * 1000}


def _busy(rank: RankAnalysis) -> Iterator[tuple[float, int]]:
    for task in rank.tasks:
        if task.worker >= 0:
            yield task.begun_ms, 1
            yield task.ended_ms, -1


def _ready(rank: RankAnalysis) -> Iterator[tuple[float, int]]:
    done: dict[tuple[int, int], float] = {}
    for task in rank.tasks:
        key = task.pass_number, task.batch
        done[key] = max(done.get(key, task.ended_ms), task.ended_ms)
    for step in rank.steps:
        if step.batch is None or step.pass_number is None:
            continue
        ended, taken = done.get((step.pass_number, step.batch)), step.begun_ms + step.wait_ms
        if ended is not None and ended <= taken:
            yield ended, 1
            yield taken, -1


def _counter(pid: int, name: str, changes: Iterable[tuple[float, int]]) -> Iterator[Event]:
    value = 0
    for at, change in sorted(changes):
        value += change
        yield {"ph": "C", "pid": pid, "tid": 0, "name": name, "ts": at * 1000, "args": {name: value}}


def _slice(pid: int, tid: int, name: str, begun: float, ended: float, about: dict[str, Any]) -> Event:
    return {
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "name": name,
        "cat": "fastload",
        "ts": begun * 1000,
        "dur": round(max(ended - begun, 0.0) * 1000, 3),
        "args": about,
    }


def _meta(pid: int, tid: int, name: str, about: dict[str, Any]) -> Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": name, "args": about}
