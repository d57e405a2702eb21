"""The zoo's pipelines are what they say they are, and its tables say what came out; runs of it are the benchmark."""

from __future__ import annotations

import io
import math
import sys
import typing
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from fastload.profiling.schema import Cause

sys.path.insert(0, str(Path(__file__).parents[2]))  # from where the benchmarks can be imported

from benchmarks.profiling import zoo
from benchmarks.profiling.pipelines import drawn, names


@pytest.mark.parametrize("seed", [0, 1, 99])
def test_pipelines_are_scripts_in_which_much_is_lost_for_one_reason_or_nothing(seed: int) -> None:
    pipelines = drawn(seed, names())
    assert {pipeline.cause for pipeline in pipelines} == {*typing.get_args(Cause)}
    for pipeline in pipelines:
        compile(pipeline.script(), pipeline.name, "exec")
        assert math.isnan(pipeline.step_ms) == (pipeline.needs == "gpu"), "it is not known beforehand"
        if pipeline.name == "read-sleep":
            sleep, batch, workers, loop = (pipeline.constants[one] for one in ("SAMPLE", "BATCH", "WORKERS", "LOOP"))
            assert sleep * batch / workers == pytest.approx(pipeline.step_ms / 1e3, rel=1e-3)
            assert 1 - loop * 1e3 / pipeline.step_ms == pytest.approx(pipeline.stall, rel=1e-3)
            assert [one.script() for one in drawn(seed, [pipeline.name])] == [pipeline.script()]
            assert [one.script() for one in drawn(seed + 1, [pipeline.name])] != [pipeline.script()]
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


def test_the_sums_count_what_is_right() -> None:
    rows = [*(row() for _ in range(4)), row(verdict="cpu", other=0.04)]
    assert zoo.summary(rows) == [
        "verdicts: 4 of 5 right",
        "states: 5 of 5 right",
        "blamed on other: at most 4.0% of a stall",
    ]
    (found,) = zoo.sums(rows, {})
    assert (found.metric, found.value, found.n) == ("verdicts right, %", 80, 5)
