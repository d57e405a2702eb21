"""DDP's ranks end with the same bits, and with the weights of one process; started in both ways."""

from __future__ import annotations

import re
from pathlib import Path

import ddp_toy
import pytest
import torch
from ranks import run_ranks
from scripts import PARALLELISM, run

SCRIPT = PARALLELISM / "ddp_toy.py"
LINE = re.compile(r"^2 ranks: (\S+) between ranks, (\S+) from one process$", re.MULTILINE)


def trained(rank: int, world_size: int) -> torch.Tensor:
    return ddp_toy.trained_by(rank, world_size, torch.device("cpu"))


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_with_different_weights_end_with_one_processs_weights(tmp_path: Path, world_size: int) -> None:
    import functools

    first, *others = run_ranks(
        functools.partial(trained, world_size=world_size), tmp_path, world_size, start="forkserver"
    )
    assert all(torch.equal(first, other) for other in others)
    alone = ddp_toy.trained_alone(torch.device("cpu"))
    torch.testing.assert_close(first, alone, atol=1e-6, rtol=0)
    begun = torch.nn.utils.parameters_to_vector(ddp_toy.make_network(0).parameters()).detach()
    assert (alone - begun).abs().max() > 0.01  # it has trained


def test_each_batch_is_split_between_the_ranks() -> None:
    given: list[torch.Tensor] = []
    network = ddp_toy.make_network(0)
    network.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    for rank, world_size in ((0, 1), (0, 2), (1, 2)):
        ddp_toy.train(network, rank, world_size, torch.device("cpu"))
    whole, *parts = (given[first : first + ddp_toy.STEPS] for first in range(0, 3 * ddp_toy.STEPS, ddp_toy.STEPS))
    for batch, *shares in zip(whole, *parts, strict=True):
        assert [len(share) for share in shares] == [ddp_toy.SAMPLES // 2] * 2
        assert torch.equal(torch.cat(shares).sort(dim=0).values, batch.sort(dim=0).values)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "command",
    [
        (SCRIPT, "--spawn", "2"),
        ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", SCRIPT),
    ],
    ids=["spawn", "torchrun"],
)
def test_the_script_runs_with_spawn_and_with_torchrun(command: tuple[str | Path, ...]) -> None:
    found = LINE.search(run(*command))
    assert found
    assert float(found[1]) == 0.0
    assert float(found[2]) < 1e-6
