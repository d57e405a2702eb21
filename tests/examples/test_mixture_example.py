"""examples/mixture.py: killed, and resumed on one process and on four, it has the same tokens and the same losses."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from scripts import REPOSITORY, run

STEPS = 12


def train(out: Path, ranks: int, *options: str) -> list[dict[str, Any]]:
    """Run it to its end; return what it says of each step."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    run(*launcher, "examples/mixture.py", "--out", out, "--steps", str(STEPS), *options)
    return [json.loads(line) for line in torch.load(out / "checkpoint.pt")["steps"]]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kill a run of two processes after some steps; return its folder."""
    out = tmp_path_factory.mktemp("killed")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["examples/mixture.py", "--out", str(out), "--steps", "1000"]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        deadline = time.monotonic() + 150
        while time.monotonic() < deadline and not process.stdout.readline().startswith("step 4,"):
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)  # torchrun kills its processes
    assert 4 <= len(torch.load(out / "checkpoint.pt")["steps"]) < STEPS
    return out


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return the steps of a run of two processes that nobody killed."""
    return train(tmp_path_factory.mktemp("whole"), 2)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_killed_run_goes_on_with_the_same_tokens_on_any_number_of_processes(killed, whole, tmp_path, ranks):
    shutil.copytree(killed, tmp_path / "resumed")
    resumed = train(tmp_path / "resumed", ranks)
    assert [step["packs"] for step in resumed] == [step["packs"] for step in whole]
    assert all(len(step["packs"]) == 4 for step in whole)
    losses = [[step["loss"] for step in steps] for steps in (whole, resumed)]
    assert losses[1] == (losses[0] if ranks == 2 else pytest.approx(losses[0], abs=1e-5))
    assert losses[0][-1] < losses[0][0]


@pytest.mark.slow
def test_other_weights_hold_from_the_step_that_it_goes_on_from(killed, tmp_path):
    shutil.copytree(killed, tmp_path / "resumed")
    before = [json.loads(line) for line in torch.load(killed / "checkpoint.pt")["steps"]]
    resumed = train(tmp_path / "resumed", 1, "--weights", json.dumps({"prose": 1}))
    assert resumed[: len(before)] == before
    stages = torch.load(tmp_path / "resumed" / "checkpoint.pt")["loader"]["mixture"][4:]
    assert stages[0][1:4] == ["code", "dialogue", "prose"]
    assert stages[1][1:] == [0.0, 0.0, 1.0]
