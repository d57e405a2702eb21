"""Training on a real GPU: steps that never wait for it, and steps in graphs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import graphed_step
import pytest
import torch

SCRIPT = Path(__file__).parents[1] / "guarded_training.py"
STEPS = ("--epochs", "1", "--limit-batches", "8", "--batch-size", "64", "--workers", "0", "--channels-last")
PARTS = ("--ema-decay", "0.9", "--lookahead", "2", "--clip-norm", "1", "--mixup", "0.2", "--micro-batch-size", "32")


# Not fp16: torch's GradScaler reads on the host, in each step, whether a gradient was infinite.
@pytest.mark.interpreter
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_no_step_waits_for_the_device(precision, tmp_path):
    command = [sys.executable, str(SCRIPT), *STEPS, *PARTS, "--precision", precision, "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "6 guarded steps"


def test_steps_in_graphs_give_the_weights_of_plain_steps(monkeypatch):
    settings = {"epochs": 1, "batch_size": 128, "lr": 0.05, "workers": 0}
    captured: list[object] = []

    class Counted(graphed_step.Capturing):
        def capture(self, work):
            captured.append(work)
            return super().capture(work)

    found = graphed_step.train(torch.device("cuda"), Counted(), **settings)
    assert len(captured) == graphed_step.PREFETCH + 2
    monkeypatch.setattr(graphed_step.GraphedStep, "__call__", lambda self, *batch: self._step(*batch))
    plain = graphed_step.train(torch.device("cuda"), Counted(), **settings)
    for one, other in zip(found.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0.01, atol=1e-3)  # sums in another order
