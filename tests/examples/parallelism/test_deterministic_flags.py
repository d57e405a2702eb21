"""Two runs with one seed end with the same weights, whatever the number of workers."""

from __future__ import annotations

import os
import random
import warnings
from pathlib import Path

import deterministic_flags as example
import numpy as np
import pytest
import torch
from scripts import PARALLELISM, run, run_as_torchrun

SCRIPT = PARALLELISM / "deterministic_flags.py"


@pytest.mark.slow
def test_two_runs_with_other_workers_end_with_the_same_weights(tmp_path: Path) -> None:
    first = run(SCRIPT, "--seed", "1", "--workers", "2").splitlines()
    # The other one in a process that has imported torch already.
    words = ("--seed", "1", "--workers", "0")
    again = run_as_torchrun(SCRIPT, *words, folder=tmp_path, num_ranks=1)[0].splitlines()
    assert first == again
    assert first[0].startswith("weights ")
    assert first[1] == "new memory holds [nan, nan]"
    assert "put_" in first[2]
    assert "does not have a deterministic implementation" in first[2]


def test_weights_depend_on_the_seed_and_all_generators_and_settings_are_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    kept = random.getstate(), np.random.get_state()
    put = torch.zeros(3), torch.tensor([0, 0]), torch.ones(2)
    try:
        with torch.random.fork_rng(devices=[]):
            drawn = []
            for _ in range(2):
                example.make_deterministic(3, warn_only=True)
                drawn.append((random.random(), float(np.random.rand()), torch.rand(()).item()))
            assert drawn[0] == drawn[1]
            assert example.train(1, 0, "cpu") != example.train(2, 0, "cpu")
            example.make_deterministic(3, warn_only=True)
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert not torch.backends.cudnn.benchmark
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            put[0].put_(*put[1:])
        assert any("does not have a deterministic implementation" in str(one.message) for one in caught)
    finally:
        torch.use_deterministic_algorithms(False)
        random.setstate(kept[0])
        np.random.set_state(kept[1])
