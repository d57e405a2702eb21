"""Imports differ between a script that is started by its path and one by its name."""

from __future__ import annotations

import pytest
from scripts import PARALLELISM, run

pytestmark = pytest.mark.slow

NAME = "examples.parallelism.launch_by_name"
BY_PATH = "package None, sys.path[0] examples/parallelism, import common: found"
BY_NAME = "package examples.parallelism, sys.path[0] ., import common: not found"


def test_a_script_finds_its_neighbours_and_a_module_its_package() -> None:
    assert run(PARALLELISM / "launch_by_name.py") == f"rank 0: {BY_PATH}\n"
    assert run("-m", NAME) == f"rank 0: {BY_NAME}\n"


def test_torchrun_starts_modules_by_name() -> None:
    out = run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", NAME)
    for rank in range(2):  # not by lines: the ranks write at once
        assert out.count(f"rank {rank}: {BY_NAME}") == 1
