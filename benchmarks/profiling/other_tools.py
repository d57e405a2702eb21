"""Runs a pipeline of the zoo under one tool and reads what the tool says: a pipeline -> :class:`Seen`.

What a tool says is taken from its own output. Where it gives numbers and no verdict, :data:`NOTICED` decides; what
counts as naming the cause stands in :data:`FUNCTIONS` and in each reader, in the tool's favour where there is doubt.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastload
from benchmarks.profiling.edits import (
    STACKED_STEPS,
    bounded,
    for_loader_evaluator,
    for_torch_profiler,
    for_traceml,
    timed,
)
from benchmarks.profiling.pipelines import Pipeline
from fastload.profiling.schema import Analysis

NOTICED = 0.20
"""Share of the time in ``next()`` from which on a reader would say that the loader is the problem: what TensorBoard's
profiler calls highly input-bound. By construction it is 45 % and more, or next to nothing."""
FUNCTIONS: Mapping[str, str] = {
    "read": r"__getitem__",
    "cpu": r"__getitem__|: collate$",
    "sampler": r"train\.py\(\d+\): __iter__",
    "transport": r"built-in.* loads|rebuild_",
    "startup": r"process\.py\(\d+\): start|_shutdown_workers",
}
"""Functions that tell a reader of a stack what the cause is, if most of the time in ``next()`` is within one."""
LIMIT_S = 240.0


class ToolError(Exception):
    """A tool could not be run; the message says why, in one line."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a tool came to."""

    words: str = ""
    """Its verdict, as it says it; empty if it gives none."""
    share: float | None = None
    """Of the time that went into waiting for data, as the tool counts it."""
    input_bound: bool | None = None
    """Whether it says that the input is the problem, or shows at least :data:`NOTICED`."""
    cause: bool = False
    """Whether it says why."""
    clue: str = ""
    """What it points at."""
    step_ms: float | None = None
    """A step as the tool itself has it."""
    fix: str = ""
    """What to change."""
    fix_ms: float | None = None
    """A step after the change, as the tool says."""
    took_ms: float | None = None
    """A step under the tool, by the script's own clock."""
    problem: str = ""
    """Why there is nothing else here."""


Run = Callable[[Pipeline, Path, str], Seen]


def plain(pipeline: Pipeline, folder: Path, python: str) -> Seen:
    """Run it under nothing."""
    _run([python, *_ranks(pipeline)], timed(bounded(pipeline, _total(pipeline))), folder)
    return Seen(took_ms=_took(pipeline, folder))


def fastload_profile(pipeline: Pipeline, folder: Path, python: str) -> Seen:
    """Run it under ``fastload profile``, with the interpreter of this process."""
    out = folder / "recording"
    command = [sys.executable, "-m", "fastload.cli", "profile", "--full", "--warmup", str(pipeline.warmup)]
    program = ["--", sys.executable, *_ranks(pipeline)] if pipeline.late_rank is not None else []
    _run([*command, "--out", str(out), *program], timed(bounded(pipeline, _total(pipeline))), folder)
    path = out / "profile.json"
    seen = of_analysis(Analysis.from_json(path.read_text(encoding="utf-8"), str(path)), pipeline)
    return Seen(**{**vars(seen), "took_ms": _took(pipeline, folder)})


def of_analysis(analysis: Analysis, pipeline: Pipeline) -> Seen:
    """Read what fastload says."""
    rank = analysis.ranks[pipeline.late_rank or 0]
    late = pipeline.late_rank is None or analysis.culprit == pipeline.late_rank
    best = analysis.fixes[0] if analysis.fixes else None
    simulation = analysis.simulation
    return Seen(
        words=rank.verdict.cause or "abstained",
        share=rank.stall.value,
        input_bound=None if rank.verdict.cause is None else rank.verdict.cause != "compute",
        cause=rank.verdict.cause == pipeline.cause and late,
        clue=f"rank {analysis.culprit}" if analysis.culprit is not None else "",
        step_ms=rank.step_ms.value,
        fix="" if best is None else best.title,
        fix_ms=None if best is None else best.step_ms.value,
        problem="" if best or simulation is None or simulation.trusted else simulation.reason,
    )


def torch_profiler(pipeline: Pipeline, folder: Path, python: str) -> Seen:
    """Run it under torch.profiler and read its table."""
    script = for_torch_profiler(bounded(pipeline, _total(pipeline)), pipeline.warmup, pipeline.steps, stacks=False)
    _run([python, *_ranks(pipeline)], script, folder)
    seen = of_table(_json(folder, "rows", pipeline))
    return Seen(**{**vars(seen), "took_ms": _took(pipeline, folder)})


def of_table(rows: Iterable[Sequence[Any]]) -> Seen:
    """Read the table: [name, calls, microseconds] each."""
    waited = stepped = 0.0
    for name, _, us in rows:
        if name.startswith("enumerate(DataLoader)"):
            waited += us
        elif name.startswith("ProfilerStep"):
            stepped += us
    if not stepped:
        return Seen(problem="its table has no steps")
    share = waited / stepped
    return Seen(share=share, input_bound=share >= NOTICED)


def torch_profiler_stacks(pipeline: Pipeline, folder: Path, python: str) -> Seen:
    """Run it under torch.profiler with stacks, for a few steps, and read its trace."""
    steps = pipeline.warmup + STACKED_STEPS
    script = for_torch_profiler(bounded(pipeline, steps), pipeline.warmup, STACKED_STEPS, stacks=True)
    _run([python, *_ranks(pipeline)], script, folder)
    table = of_table(_json(folder, "rows", pipeline))
    trace = folder / f"trace-{pipeline.late_rank or 0}.json"
    events = json.loads(trace.read_text(encoding="utf-8", errors="replace"))["traceEvents"]
    trace.unlink()  # hundreds of MB
    within, total = functions_within(events, "enumerate(DataLoader)")
    pattern = FUNCTIONS.get(pipeline.cause)
    named = pattern is not None and any(us >= total / 2 for name, us in within.items() if re.search(pattern, name))
    return Seen(
        share=table.share, input_bound=table.input_bound, cause=bool(total) and named, clue=_telling(within, total)
    )


def functions_within(events: Iterable[Mapping[str, Any]], prefix: str) -> tuple[dict[str, float], float]:
    """Return for each Python function the microseconds within it during ranges of a name, and those of the ranges.

    Args:
        events: of a Chrome trace; a function within itself counts once.
        prefix: what the ranges' names begin with.
    """
    threads: dict[Any, list[tuple[float, float, str]]] = defaultdict(list)
    for event in events:
        if event.get("ph") == "X":
            threads[event["pid"], event["tid"]].append((event["ts"], -event["dur"], event["name"]))
    found: dict[str, float] = defaultdict(float)
    total = 0.0
    for spans in threads.values():
        open_spans: list[tuple[float, str]] = []
        for begun, minus, name in sorted(spans):
            while open_spans and open_spans[-1][0] <= begun:
                open_spans.pop()
            names = [above for _, above in open_spans]
            if any(above.startswith(prefix) for above in names):
                if name not in names:
                    found[name] -= minus
            elif name.startswith(prefix):
                total -= minus
            open_spans.append((begun - minus, name))
    return dict(found), total


def _telling(within: Mapping[str, float], total: float) -> str:
    """Return the innermost function that has most of the time: of those above half, the one with least."""
    above = {name: us for name, us in within.items() if us >= total / 2}
    if not above:
        return ""
    name = min(above, key=lambda one: above[one])
    built_in = re.search(r"<built-in (?:method|function) (\w+)", name)
    return built_in[1] if built_in else re.sub(r"^.*?([\w.]+\.py)\(\d+\): ", r"\1: ", name)


def traceml(pipeline: Pipeline, folder: Path, python: str) -> Seen:
    """Run it under TraceML and read its summary."""
    script = for_traceml(bounded(pipeline, _total(pipeline)), patched=pipeline.engine == "torch")
    logs = folder / "logs"
    ranks = [] if pipeline.late_rank is None else ["--nproc-per-node", "2"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    options = ["--mode", "summary", "--logs-dir", str(logs), "--aggregator-port", port, *ranks]
    command = [str(Path(python).with_name("traceml")), "run", *options]
    _run(command, script, folder)
    summaries = sorted(logs.rglob("final_summary.json"))
    if not summaries:
        raise ToolError("it wrote no final_summary.json")
    seen = of_summary(json.loads(summaries[0].read_text(encoding="utf-8")), pipeline)
    return Seen(**{**vars(seen), "took_ms": _took(pipeline, folder)})


def of_summary(summary: Mapping[str, Any], pipeline: Pipeline) -> Seen:
    """Read TraceML's summary. Naming the rank whose input is late counts as the cause, though it does not say why."""
    diagnosis = summary["primary_diagnosis"]
    average = summary["step_time"]["global"]["average"]
    waited, step_ms = average["input_wait_ms"], average["step_time_ms"]
    status = str(diagnosis["status"])
    late = diagnosis["evidence"]["worst"]["rank"] if status == "INPUT STRAGGLER" else None
    return Seen(
        words=status,
        share=waited / step_ms if waited is not None and step_ms else None,
        input_bound="INPUT" in status,
        cause=late is not None and late == pipeline.late_rank,
        clue="" if late is None else f"rank {late}",
        step_ms=step_ms,
        fix=str(diagnosis["action"]),
    )


def loader_evaluator(pipeline: Pipeline, folder: Path, python: str) -> Seen:
    """Run it with DALI's LoaderEvaluator twice, to log and to replay, and read both."""
    script = bounded(pipeline, _total(pipeline))
    found = {}
    for mode in ("log", "replay"):
        _run([python, *_ranks(pipeline)], for_loader_evaluator(script, mode), folder / mode)
        found[mode] = _json(folder / mode, "metrics", pipeline)
    seen = of_metrics(found["log"], found["replay"])
    return Seen(**{**vars(seen), "took_ms": _took(pipeline, folder / "log")})


def of_metrics(log: Mapping[str, Any], replay: Mapping[str, Any]) -> Seen:
    """Read the metrics of a run that logged and of one that replayed."""
    share = sum(log["batch_times"]) / log["total_time"]
    step, ceiling = (1e3 * one["total_time"] / one["total_batches"] for one in (log, replay))
    return Seen(share=share, input_bound=share >= NOTICED, step_ms=step, fix="replayed batches", fix_ms=ceiling)


TOOLS: Mapping[str, Run] = {
    "fastload": fastload_profile,
    "torch.profiler": torch_profiler,
    "with stacks": torch_profiler_stacks,
    "TraceML": traceml,
    "LoaderEvaluator": loader_evaluator,
}


def _total(pipeline: Pipeline) -> int:
    return pipeline.warmup + pipeline.steps


def _ranks(pipeline: Pipeline) -> list[str]:
    """Return the words between the interpreter and the script."""
    if pipeline.late_rank is None:
        return []
    return ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def _run(command: Sequence[str], script: str, folder: Path) -> None:
    """Write a script into a folder and run it there.

    Raises:
        ToolError: it failed, or took longer than :data:`LIMIT_S`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "train.py"
    path.write_text(script, encoding="utf-8")
    environment = os.environ | {
        "PYTHONPATH": str(Path(fastload.__file__).parents[1]),
        "OMP_NUM_THREADS": "1",
        "ZOO_OUT": str(folder),
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # or every start compiles torch anew
    with (folder / "output.txt").open("w+", encoding="utf-8", errors="replace") as output:
        process = subprocess.Popen(
            [*command, str(path)], cwd=folder, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            status = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            raise ToolError(f"took more than {LIMIT_S:.0f} s") from None
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)  # what it may have left
            except ProcessLookupError:
                pass
            process.wait()
        if status:
            output.seek(0)
            lines = [line.strip() for line in output if line.strip()]
            raise ToolError(f"ended with status {status}: {lines[-1] if lines else 'no output'}")


def _json(folder: Path, name: str, pipeline: Pipeline) -> Any:
    path = folder / f"{name}-{pipeline.late_rank or 0}.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ToolError(f"wrote no {path.name}: {error.strerror}") from error


def _took(pipeline: Pipeline, folder: Path) -> float:
    """Return the mean of the steady steps in ms, by the script's own clock."""
    marks = _json(folder, "marks", pipeline)[pipeline.warmup : _total(pipeline)]
    return 1e3 * float(marks[-1] - marks[0]) / (len(marks) - 1)


__all__ = ["NOTICED", "TOOLS", "Run", "Seen", "ToolError", "plain"]
