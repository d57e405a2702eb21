"""The zoo's pipelines are what they say they are; runs of it are the benchmark."""

from __future__ import annotations

import math
import sys
import typing
from pathlib import Path

import pytest

from fastload.profiling.schema import Cause

sys.path.insert(0, str(Path(__file__).parents[2]))  # from where the benchmarks can be imported

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
