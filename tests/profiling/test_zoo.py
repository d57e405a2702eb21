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
from benchmarks.profiling.pipelines import CORES, MAKERS, drawn, names


@pytest.mark.parametrize("seed", [0, 1, 99])
def test_pipelines_are_scripts_in_which_much_is_lost_for_one_reason_or_nothing(seed: int) -> None:
    for pipeline in drawn(seed, names()):
        compile(pipeline.script(), pipeline.name, "exec")
        compile(pipeline.script(pipeline.change), pipeline.name, "exec")
        assert set(pipeline.change) <= set(pipeline.constants)
        if pipeline.cause in ("compute", "launch-starved"):
            assert pipeline.stall == 0
        elif not pipeline.needs:
            assert 0.35 <= pipeline.stall <= 0.8, pipeline.name


@pytest.mark.parametrize("seed", [0, 1, 99])
def test_changes_that_are_known_to_help_help_by_a_fifth_at_least(seed: int) -> None:
    known = [pipeline for pipeline in drawn(seed, names()) if pipeline.changed_ms is not None]
    assert len(known) >= (10 if CORES > 1 else 8)
    for pipeline in known:
        assert pipeline.changed_ms is not None
        assert pipeline.changed_ms < (1 - zoo.WORTH) * pipeline.step_ms, pipeline.name


def test_every_cause_has_a_pipeline() -> None:
    assert {pipeline.cause for pipeline in drawn(0, names())} == set(typing.get_args(Cause))
    assert len(MAKERS) == len(set(names()))


def test_a_seed_draws_the_same_parameters_again_and_another_one_others() -> None:
    measured = {"big-pickles"}  # that one measures pickling first
    chosen = [name for name in names() if name not in measured]
    assert drawn(3, chosen)[0].script() == drawn(3, chosen)[0].script()
    assert [one.script() for one in drawn(3, chosen)] != [one.script() for one in drawn(4, chosen)]


def test_a_loop_and_its_loader_are_as_long_as_was_drawn() -> None:
    (pipeline,) = drawn(5, ["read-sleep"])
    constants = pipeline.constants
    work_ms = constants["SAMPLE"] * constants["BATCH"] / constants["WORKERS"] * 1e3
    assert work_ms == pytest.approx(pipeline.step_ms, rel=1e-3)
    assert 1 - constants["LOOP"] * 1e3 / work_ms == pytest.approx(pipeline.stall, rel=1e-3)


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
        change=None,
    )
    return replace(made, **others)


def change(observed: float, predicted: float | None) -> zoo.Change:
    return zoo.Change("read-sleep", {"num_workers": 4}, 40.0, 20.0, observed, predicted, "not reproduced")


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
    rows = [*(row() for _ in range(4)), row(verdict="cpu", other=0.04)]
    changes = [change(20.0, 21.0), change(60.0, 54.0), change(39.0, 10.0), change(20.0, None)]
    assert zoo.summary(rows, changes) == [
        "verdicts: 4 of 5 right",
        "states: 5 of 5 right",
        "blamed on other: at most 4.0% of a stall",
        "errors of predictions: median 7.5%, nine of ten below 10.0%, largest 10.0%; 1 of 3 abstained",
    ]
    table = shown(zoo.predictions(changes))
    assert "not reproduced" in table
    assert "39.0" not in table
    found = {row.metric: (row.value, row.n) for row in zoo.sums("zoo", rows, changes, {})}
    assert found["verdicts right, %"] == (80, 5)
    assert found["error of predictions, %: largest"] == (pytest.approx(10), 2)
    assert found["without a prediction, %"] == (pytest.approx(100 / 3), 3)


def test_what_cannot_be_known_beforehand_is_not_a_number() -> None:
    on_device = [pipeline for pipeline in drawn(0, names()) if pipeline.needs == "gpu"]
    assert {pipeline.cause for pipeline in on_device} == {"pin", "copy", "launch-starved"}
    assert all(math.isnan(pipeline.step_ms) for pipeline in on_device)


def test_an_unknown_pipeline_is_refused_with_the_names_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        zoo.main(["no-such-pipeline"])
    assert "no such pipeline: no-such-pipeline; there are read-sleep" in capsys.readouterr().err
