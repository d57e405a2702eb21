"""DDP on two ranks: initial state and buffers from rank 0, gradients averaged over ranks, in buckets."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import ddp_invariants
import pytest
import torch
import torch.distributed as dist
from common import Rank
from ranks import Said, run_ranks
from scripts import PARALLELISM, run_as_torchrun
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

CPU = torch.device("cpu")


def vector(network: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(network.parameters()).detach()


def inputs_of(rank: int, size: int) -> Tensor:
    return torch.randn(size, 10, generator=torch.Generator().manual_seed(10 + rank))


def promises(rank: int) -> dict[str, Any]:
    here = Rank(rank, 2, CPU)
    found: dict[str, Any] = {}

    # Broadcast when it is made.
    network = ddp_invariants.make_network(seed=rank)
    found["before"] = vector(network)
    network[1].running_mean.fill_(rank)
    model = ddp_invariants.wrap(network, here)
    found["after"] = vector(network)
    found["buffer after"] = network[1].running_mean.clone()

    # Averaged over the ranks on the way back; unequal shares: 3 samples here, 1 there.
    plain = nn.Linear(10, 1)
    averaged = ddp_invariants.wrap(plain, here)
    found["shared weights"] = {name: value.detach().clone() for name, value in plain.named_parameters()}
    averaged(inputs_of(rank, 3 - 2 * rank)).square().mean().backward()
    found["averaged"] = [value.grad.clone() for value in plain.parameters() if value.grad is not None]

    # Buffers come from rank 0 before each forward, and are not averaged.
    for step in range(2):
        model(inputs_of(rank, 8)).sum()
        if step == 0:
            found["own statistics"] = network[1].running_mean.clone()
    found["statistics"] = network[1].running_mean.clone()

    # Buckets: many small ones, or one.
    for name, megabytes in [("small buckets", 0.0005), ("one bucket", 25.0)]:
        bucketed = ddp_invariants.wrap(nn.Sequential(*(nn.Linear(16, 16) for _ in range(6))), here, megabytes)
        sent = ddp_invariants.count_buckets(bucketed)
        bucketed(torch.ones(1, 16)).sum().backward()
        sent.clear()  # after the first backward DDP arranges buckets anew, in the order the gradients came
        bucketed(torch.ones(1, 16)).sum().backward()
        found[name] = list(sent)
        found[f"{name}, gradients"] = [value.grad for value in bucketed.parameters()]
    return found


def test_ranks_are_made_equal_gradients_and_only_they_are_averaged(tmp_path: Path) -> None:
    zero, one = run_ranks(promises, tmp_path, start="forkserver")

    assert not torch.equal(zero["before"], one["before"])
    assert torch.equal(zero["before"], zero["after"])
    assert torch.equal(zero["after"], one["after"])
    assert torch.equal(one["buffer after"], torch.zeros(32))

    plain = nn.Linear(10, 1)
    plain.load_state_dict(zero["shared weights"])

    def gradients(inputs: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(plain(inputs).square().mean(), list(plain.parameters())))

    shares = [inputs_of(0, 3), inputs_of(1, 1)]
    of_ranks = [torch.stack(pair).mean(dim=0) for pair in zip(*map(gradients, shares), strict=True)]
    of_batch = gradients(torch.cat(shares))
    for left, right, expected in zip(zero["averaged"], one["averaged"], of_ranks, strict=True):
        assert torch.equal(left, right)
        torch.testing.assert_close(left, expected)
    assert (zero["averaged"][0] - of_batch[0]).abs().max() > 0.01  # the ranks' mean is not the samples'

    assert not torch.equal(zero["own statistics"], one["own statistics"])
    norm = nn.BatchNorm1d(32)
    norm.running_mean = zero["own statistics"].clone()
    network = ddp_invariants.make_network(seed=0)
    norm(network[0](inputs_of(1, 8)))
    torch.testing.assert_close(one["statistics"], norm.running_mean)  # rank 0's before, its own batch since

    parameters = 6 * (16 * 16 + 16)
    assert len(zero["one bucket"]) == 1
    assert len(zero["small buckets"]) > 2
    assert sum(zero["one bucket"]) == sum(zero["small buckets"]) == parameters
    assert len(zero["small buckets, gradients"]) == 12


def drifting(rank: int, where: str) -> str:
    network = ddp_invariants.make_network(seed=0)
    ddp_invariants.assert_replicas_equal(network)
    with torch.no_grad():
        if where == "a parameter" and rank == 1:
            network[3].bias[7] += 1e-7
        if where == "a swap" and rank == 1:
            network[3].weight[[0, 1]] = network[3].weight[[1, 0]]
        if where == "a buffer" and rank == 0:
            network[1].num_batches_tracked += 1
    with pytest.raises(ddp_invariants.ReplicasDiffer) as caught:
        ddp_invariants.assert_replicas_equal(network)
    return str(caught.value)


@pytest.mark.parametrize(
    ("where", "name"), [("a parameter", "3.bias"), ("a swap", "3.weight"), ("a buffer", "1.num_batches_tracked")]
)
def test_a_difference_of_one_bit_on_one_rank_is_an_error_on_all(tmp_path: Path, where: str, name: str) -> None:
    said = run_ranks(functools.partial(drifting, where=where), tmp_path, start="forkserver")
    assert said[0] == said[1]
    assert said[0].startswith(f"1 of 11 tensors differ between the ranks, the first is {name!r}")


def on_a_layout_that_is_not(rank: int, what: str) -> None:
    network: nn.Module = nn.Linear(2, 2)
    if what == "ids":
        DistributedDataParallel(network, device_ids=[rank])
    else:
        DistributedDataParallel(nn.Sequential(network, nn.Linear(2, 2, device="meta")))
    dist.barrier()


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("ids", "device_ids.*only work with single-device"),
        ("types", "input module must be on the same type of devices"),
    ],
)
def test_layouts_that_ddp_rejects(tmp_path: Path, what: str, says: str) -> None:
    with pytest.raises(Said, match=says):
        run_ranks(functools.partial(on_a_layout_that_is_not, what=what), tmp_path, start="forkserver")


@pytest.mark.slow
def test_the_script_shows_when_copies_differ(tmp_path: Path) -> None:
    printed, silent = run_as_torchrun(PARALLELISM / "ddp_invariants.py", "--device", "cpu", folder=tmp_path)
    before, wrapped, later, end = printed.splitlines()
    assert before.startswith("before: 6 of 11 tensors differ between the ranks, the first is '0.weight'")
    assert wrapped == "wrapped: all equal"
    assert later.startswith("ten steps later: 2 of 11 tensors differ between the ranks, the first is '1.running_mean'")
    assert end == "rank 0's statistics for all: all 11 tensors equal"
    assert silent == ""
