"""Of pipelines of the zoo the profiler says what they were made to show; runs of the whole are the benchmark."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from profiled import record_in_fork

from fastload.profiling.analyze import analysis_of

sys.path.insert(0, str(Path(__file__).parents[2]))  # from where the benchmarks can be imported

from benchmarks.profiling.pipelines import Pipeline, drawn


def shortened(pipeline: Pipeline) -> str:
    """Return the script of a pipeline, with no more steps than it takes to judge it."""
    constants, steps = {**pipeline.constants}, pipeline.steps + pipeline.warmup
    in_epoch = constants["LENGTH"] // constants["BATCH"]
    constants["LENGTH"] = min(in_epoch, steps) * constants["BATCH"]
    constants["EPOCHS"] = -(-steps // min(in_epoch, steps))
    return replace(pipeline, constants=constants).script()


# Those without a device, of one rank, whose workers are forked or threads.
RUN = (
    *("read-sleep", "read-inline", "cpu-busy", "cpu-inline", "slow-collate", "slow-sampler", "slow-worker"),
    *("rare-slow", "big-pickles", "startup", "oversubscribed", "compute-bound", "gil-threads"),
)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_the_verdict_on_a_pipeline_is_the_answer_that_is_known(name: str, tmp_path: Path) -> None:
    (pipeline,) = drawn(0, [name])
    record_in_fork(tmp_path, shortened(pipeline), warmup=pipeline.warmup)
    (rank,) = analysis_of(str(tmp_path)).ranks
    told = "\n".join([rank.verdict.sentence, *rank.verdict.evidence, str(rank.blame_ms), str(rank.workers)])
    assert rank.verdict.cause == pipeline.cause, told
    lost = sum(rank.blame_ms.values())
    assert rank.blame_ms.get("other", 0.0) <= 0.05 * lost
    assert lost == pytest.approx(rank.stall.value * rank.step_ms.value, rel=1e-6)
    assert rank.workers.number == pipeline.constants["WORKERS"]
