"""torch's pipeline schedules over gloo: the whole batch's gradients, and fewer activations held by 1F1B."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pipeline_schedules
import pytest
import torch
from common import Rank
from ranks import run_ranks
from scripts import PARALLELISM, run_as_torchrun
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

CPU = torch.device("cpu")
BATCH = 8


def stepped(rank: int, count: int) -> dict[str, Any]:
    images, labels = pipeline_schedules.batch_of(BATCH)
    found: dict[str, Any] = {}
    for name in pipeline_schedules.SCHEDULES:
        pipeline = pipeline_schedules.Pipeline(Rank(rank, count, CPU), name, 4, BATCH)
        loss = pipeline.step(images, labels)
        gradients = [value.grad for value in pipeline.held.parameters()]
        found[name] = loss, gradients, pipeline.held.most, pipeline.held.now
    return found


@pytest.mark.parametrize("count", [2, 4])
def test_gradients_equal_one_processs_and_1f1b_holds_fewer_micro_batches(tmp_path: Path, count: int) -> None:
    ranks = run_ranks(functools.partial(stepped, count=count), tmp_path, count, start="forkserver")
    expected_loss, alone = pipeline_schedules.step_alone(*pipeline_schedules.batch_of(BATCH), count, CPU)
    for number, schedules in enumerate(ranks):
        for loss, gradients, _, now in schedules.values():
            assert (loss is None) == (number < count - 1)
            if loss is not None:
                assert loss == pytest.approx(expected_loss, rel=1e-5)
            assert len(gradients) == len(alone[number]) > 0
            for left, right in zip(gradients, alone[number], strict=True):
                torch.testing.assert_close(left, right, atol=1e-6, rtol=1e-4)
            assert now == 0  # all have come back
        assert schedules["GPipe"][2] == 4
        assert schedules["1F1B"][2] == count - number


def batches_that_batch_norm_saw(rank: int) -> list[int]:
    found = []
    shape = torch.zeros(2, 3)
    for given in (
        {},
        {"input_args": (shape.clone().requires_grad_(rank > 0),), "output_args": (shape.clone().requires_grad_(),)},
    ):
        norm = nn.BatchNorm1d(3)
        schedule = ScheduleGPipe(PipelineStage(norm, rank, 2, CPU, **given), 2, loss_fn=nn.functional.mse_loss)
        schedule.step(torch.randn(4, 3)) if rank == 0 else schedule.step(target=torch.randn(4, 3))
        found.append(int(norm.num_batches_tracked))
    return found


def test_before_torch_2_15_a_stage_without_given_shapes_runs_once_more_which_changes_batch_norm(tmp_path: Path) -> None:
    without = 2 if torch.__version__ >= "2.15" else 3
    assert run_ranks(batches_that_batch_norm_saw, tmp_path, start="forkserver") == [[without, 2]] * 2


def test_micro_batches_that_do_not_divide_the_batch_are_an_error() -> None:
    with pytest.raises(ValueError, match="multiple of micro_batches, got batch_size=8, micro_batches=3"):
        pipeline_schedules.Pipeline(Rank(0, 2, CPU), "GPipe", 3, 8)


@pytest.mark.slow
def test_the_script_compares_schedules(tmp_path: Path) -> None:
    arguments = ("--micro-batches", "1,2", "--batch-size", "4", "--repeats", "1", "--device", "cpu")
    printed, _ = run_as_torchrun(PARALLELISM / "pipeline_schedules.py", *arguments, folder=tmp_path)
    rows = [line.strip("| ").split(" | ") for line in printed.splitlines() if line.startswith(("| GPipe", "| 1F1B"))]
    assert [row[:2] for row in rows] == [["GPipe", "1"], ["GPipe", "2"], ["1F1B", "2"]]
    assert all(float(row[-1]) < 1e-5 for row in rows)
