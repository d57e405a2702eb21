"""Each of the three ways creates a group of all ranks."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import init_methods
import pytest
from ranks import Said, run_ranks


def meet(rank: int, ports: tuple[int, ...], folder: str) -> dict[str, float]:
    return init_methods.meet(rank, init_methods.METHODS, 2, ports, folder)


def test_two_ranks_meet_by_environment_address_and_file_in_turn(tmp_path: Path) -> None:
    with init_methods.reserved_port() as first, init_methods.reserved_port() as second:
        assert first != second
        body = functools.partial(meet, ports=(first, second, 0), folder=str(tmp_path))
        assert run_ranks(body, tmp_path, store=None, start="forkserver") == [{"env": 3.0, "tcp": 3.0, "file": 3.0}] * 2


def without_an_address(rank: int) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method="env://", rank=rank, world_size=2)


def test_env_without_an_address_is_an_error_that_names_the_variable(tmp_path: Path) -> None:
    with pytest.raises(Said, match="MASTER_ADDR expected, but not set"):
        run_ranks(without_an_address, tmp_path, store=None, start="forkserver")


def test_an_unknown_way_is_an_error(tmp_path: Path) -> None:
    told: dict[str, Any] = {"rank": 0, "world_size": 1, "port": 0, "folder": str(tmp_path)}
    with pytest.raises(ValueError, match="method must be one of env, tcp, file, got 'udp'"):
        init_methods.join("udp", **told)
