"""What DistributedDataParallel guarantees, checked: equal weights at the start, averaged gradients, equal weights.

    torchrun --nproc-per-node=2 examples/parallelism/ddp_invariants.py
    torchrun --nproc-per-node=2 examples/parallelism/ddp_invariants.py --device cuda:0    # two ranks on one GPU

Missing in the notes: the average is over ranks, not samples; buffers (BatchNorm's statistics) are not averaged, rank
0's are copied to all before each forward pass; and only what goes through DDP's ``forward`` is kept equal: if a rank
alone changes weights, or restores an optimizer, the copies differ silently.

Measured (2 ranks, gloo): all of this, and the number of buckets, in tests/examples/test_parallelism_claims.py.
"""

import torch
import torch.distributed as dist
from common import Rank, descend, joined, options, run_rank, wrapped
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class ReplicasDiffer(RuntimeError):
    """The ranks' copies of a network are not equal; the message names the first tensor that differs, on all ranks."""


def assert_replicas_equal(network: nn.Module) -> None:
    """Compare the bits of parameters and buffers over all ranks, and raise on all. All ranks must call this.

    It costs a sum over each tensor and one number to send, so it can be called every few hundred steps.

    Raises:
        ReplicasDiffer: on every rank.
    """
    named = [*network.named_parameters(), *network.named_buffers()]
    sums = torch.stack([_checksum(value) for _, value in named])
    extremes = torch.stack([sums, -sums])
    dist.all_reduce(extremes, dist.ReduceOp.MAX)  # the largest, and the negative of the smallest
    differ = (extremes[0] != -extremes[1]).nonzero().flatten().tolist()
    if differ:
        raise ReplicasDiffer(
            f"{len(differ)} of {len(named)} tensors differ between the ranks, the first is {named[differ[0]][0]!r}; "
            "check that no rank writes it outside of DDP's forward and the optimizer's step, or restores it alone"
        )


def _checksum(value: Tensor) -> Tensor:
    """Return an int64 that depends on a tensor's bits and their positions."""
    data = value.detach().contiguous().flatten().view(torch.uint8).to(torch.int64)
    places = torch.arange(1, len(data) + 1, device=data.device)
    return ((data + 1) * (places * 2654435761 % 4294967291)).sum()


def wrap(network: nn.Module, rank: Rank, bucket_mb: float = 25.0) -> DistributedDataParallel:
    """Return the network in DDP, with rank 0's weights."""
    return wrapped(network.to(rank.device), rank.device, bucket_cap_mb=bucket_mb)


def make_network(seed: int) -> nn.Module:
    """Return a network with BatchNorm for [n, 10]."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1)
    )


def main() -> None:
    """Check the guarantees."""
    args = options(__doc__, device="auto")
    with joined(args.device) as rank:

        def say(text: str) -> None:
            if rank.number == 0:
                print(text, flush=True)

        network = make_network(seed=rank.number).to(rank.device)
        try:
            assert_replicas_equal(network)
        except ReplicasDiffer as error:
            say(f"before: {error}")
        model = wrap(network, rank)
        assert_replicas_equal(network)
        say("wrapped: all equal")

        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(10):
            descend(optimizer, model(torch.randn(8, 10, device=rank.device)).square().mean())
        try:
            assert_replicas_equal(network)
        except ReplicasDiffer as error:
            say(f"ten steps later: {error}")
        for buffer in network.buffers():
            dist.broadcast(buffer, src=0)
        assert_replicas_equal(network)
        say(f"rank 0's statistics for all: all {len(network.state_dict())} tensors equal")


if __name__ == "__main__":
    run_rank(main)
