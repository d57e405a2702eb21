"""The zoo's pipelines are what they say they are, and its tables say what came out; runs of it are the benchmark."""

from __future__ import annotations

import io
import sys
import typing
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[2]))  # from where the benchmarks can be imported

from benchmarks.profiling import zoo
from benchmarks.profiling.pipelines import drawn, names

# This one measures the disk first.
PURE = [name for name in names() if name != "read-files"]


@pytest.mark.parametrize("seed", [0, 1, 99])
def test_pipelines_are_scripts_in_which_much_is_lost_for_one_reason_or_nothing(seed: int) -> None:
    for pipeline in drawn(seed, PURE):
        compile(pipeline.script(), pipeline.name, "exec")
        compile(pipeline.script(pipeline.change), pipeline.name, "exec")
        assert set(pipeline.change) <= set(pipeline.constants)
        if pipeline.cause in ("compute", "launch-starved"):
            assert pipeline.stall == 0
        elif not pipeline.needs:
            assert 0.35 <= pipeline.stall <= 0.8, pipeline.name


def row(**others: typing.Any) -> zoo.Row:
    made = zoo.Row(
        seed=0,
        name="read-sleep",
        cause="read",
        verdict="read",
        sentence="Bound by reading",
        built_ms=40.0,
        step_ms=40.0,
        built_stall=0.5,
        stall=0.5,
        state="read",
        state_right=True,
        other=0.01,
        others_cores=0.0,
        settings={"num_workers": 4},
        built_changed_ms=20.0,
        changed_ms=20.0,
        predicted_ms=21.0,
        why_not="",
    )
    return replace(made, **others)


def shown(*parts: typing.Any) -> str:
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(*parts)
    return console.export_text()


def test_the_matrix_counts_verdicts_by_their_true_cause_and_abstaining_has_a_column() -> None:
    rows = [row(), row(verdict="cpu"), row(cause="cpu", verdict="abstained")]
    lines = [line.split() for line in shown(zoo.matrix(rows)).splitlines() if line.strip()]
    assert ["cause", "abstained", "cpu", "read"] in lines
    assert ["cpu", "1", "·", "·"] in lines
    assert ["read", "·", "1", "1"] in lines


def test_the_sums_leave_out_changes_that_do_little_and_count_abstaining_predictions() -> None:
    rows = [
        row(),
        row(predicted_ms=18.0),
        row(changed_ms=39.0, predicted_ms=10.0),
        row(predicted_ms=None, why_not="not reproduced"),
        row(verdict="cpu", other=0.04),
    ]
    assert zoo.summary(rows) == [
        "verdicts: 4 of 5 right",
        "states: 5 of 5 right",
        "blamed on other: at most 4.0% of a stall",
        "predictions: median error 5.0%, p90 10.0%, 1 of 4 abstained",
        "cores used by others meanwhile: 0.0",
    ]
    table = shown(zoo.predictions(rows))
    assert "not reproduced" in table
    assert "39.0" not in table
