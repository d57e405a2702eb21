"""The zoo's scripts can be edited for other tools, and what these say is read rightly; runs of them are benchmarks."""

from __future__ import annotations

import io
import sys
import typing
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[2]))  # from where the benchmarks can be imported

from benchmarks.profiling import edits, other_tools, others
from benchmarks.profiling.other_tools import Seen
from benchmarks.profiling.pipelines import Pipeline, drawn


def one(name: str) -> Pipeline:
    (pipeline,) = drawn(0, [name])
    return pipeline


@pytest.mark.parametrize("name", ["read-sleep", "slow-rank"])
def test_every_script_of_the_zoo_can_be_edited_for_every_tool(name: str) -> None:
    pipeline = one(name)
    script = edits.bounded(pipeline, 72)
    stacked = edits.for_torch_profiler(script, 12, 5, stacks=True)
    edited = {
        "profiler.step()": edits.for_torch_profiler(script, 12, 60, stacks=False),
        "export_chrome_trace": stacked,
        "with traceml.trace_step(model):": edits.for_traceml(script, patched=True),
        "wrap_dataloader_fetch(loader)": edits.for_traceml(script, patched=False),
        'LoaderEvaluator(loader, mode="replay")': edits.for_loader_evaluator(script, "replay"),
    }
    for needed, text in edited.items():
        compile(text, name, "exec")
        assert needed in text
        assert text.count("MARKS.append(time.perf_counter())") == 1
        assert text.endswith("file.write(str(MARKS))\n")
    assert "profiler.stop()\n\n\nif __name__" in stacked


def test_the_profilers_table_gives_the_loaders_share_of_its_steps() -> None:
    rows = [
        ["enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 60, 300.0],
        ["ProfilerStep*", 60, 1000.0],
        ["aten::empty", 60, 5.0],
    ]
    assert other_tools.of_table(rows) == Seen(share=0.3, input_bound=True)
    assert (
        other_tools.of_table([["ProfilerStep*", 1, 100.0], ["enumerate(DataLoader)#x", 1, 19.0]]).input_bound is False
    )
    assert other_tools.of_table([]).problem == "its table has no steps"


def span(name: str, begun: float, dur: float, thread: int = 1) -> dict[str, typing.Any]:
    return {"ph": "X", "pid": 1, "tid": thread, "ts": begun, "dur": dur, "name": name}


def test_time_within_the_loader_is_charged_to_each_function_once_and_only_on_its_thread() -> None:
    events = [
        span("enumerate(DataLoader)#x", 0, 100),
        span("train.py(26): __getitem__", 10, 80),
        span("train.py(9): spin", 20, 60),
        span("train.py(9): spin", 25, 10),
        span("train.py(9): spin", 120, 50),
        span("train.py(9): spin", 0, 100, thread=2),
        {"ph": "i", "name": "mark"},
    ]
    within, total = other_tools.functions_within(events, "enumerate(DataLoader)")
    assert total == 100
    assert within == {"train.py(26): __getitem__": 80, "train.py(9): spin": 60}


def summary(status: str, waited: float | None, late: int | None = None) -> dict[str, typing.Any]:
    evidence = {} if late is None else {"worst": {"rank": late, "value_ms": waited}}
    return {
        "primary_diagnosis": {"status": status, "action": "Increase workers.", "evidence": evidence},
        "step_time": {"global": {"average": {"input_wait_ms": waited, "step_time_ms": 40.0}}},
    }


def test_tracemls_summary_gives_its_verdict_and_share_and_the_rank_that_it_names_counts_as_the_cause() -> None:
    seen = other_tools.of_summary(summary("INPUT-BOUND", 20.0), one("read-sleep"))
    assert (seen.words, seen.share, seen.input_bound, seen.cause) == ("INPUT-BOUND", 0.5, True, False)
    assert other_tools.of_summary(summary("COMPUTE-BOUND", 1.0), one("compute-bound")).input_bound is False
    assert other_tools.of_summary(summary("INCOMPLETE DATA", None), one("read-sleep")).share is None
    pipeline = one("slow-rank")
    assert pipeline.late_rank is not None
    for rank, right in ((pipeline.late_rank, True), (1 - pipeline.late_rank, False)):
        seen = other_tools.of_summary(summary("INPUT STRAGGLER", 20.0, rank), pipeline)
        assert (seen.cause, seen.clue) == (right, f"rank {rank}")


def row(**others_: typing.Any) -> others.Row:
    made = others.Row(
        seed=0,
        name="read-sleep",
        cause="read",
        stall=0.5,
        step_ms=40.0,
        changed_ms=20.0,
        plain_ms=[40.0, 42.0],
        others_cores=0.5,
        seen={
            "fastload": Seen(words="read", share=0.5, input_bound=True, cause=True, step_ms=41.0, fix="x", fix_ms=20.0),
            "torch.profiler": Seen(share=0.5, input_bound=True, took_ms=45.1),
        },
    )
    return replace(made, **others_)


def shown(*parts: typing.Any) -> list[list[str]]:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(*parts)
    return [line.split() for line in console.export_text().splitlines() if line.strip()]


def test_tools_are_counted_right_where_they_tell_stalled_from_not_and_causes_only_where_there_is_a_stall() -> None:
    fine = Seen(words="compute", share=0.0, input_bound=False, cause=True)
    idle = row(cause="compute", seen={"fastload": fine, "torch.profiler": Seen(share=0.2, input_bound=True)})
    lines = shown(others.counts([row(), idle], ["fastload", "torch.profiler"]))
    assert ["fastload", "2", "of", "2", "1", "of", "1", "1", "of", "1"] in lines
    assert ["torch.profiler", "1", "of", "2", "0", "of", "1", "0", "of", "1"] in lines
