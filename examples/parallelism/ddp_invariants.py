"""What DistributedDataParallel promises, checked: equal at the start, averaged on the way back, so equal for ever.

    torchrun --nproc-per-node=2 examples/parallelism/ddp_invariants.py
    torchrun --nproc-per-node=2 examples/parallelism/ddp_invariants.py --device cuda:0    # two ranks on one GPU

The notes claim that DDP broadcasts rank 0's state when it is made, then averages gradients in buckets while the
backward is still running, so that equal updates keep the copies equal. Right, with three things to add:

* the average is one of ranks, not of samples: where ranks have unequal numbers, it is not the mean over the batch;
* buffers (BatchNorm's statistics) are not averaged: rank 0's are copied to all before each forward in training;
* only what goes through DDP's ``forward`` is kept equal. Weights that somebody writes on one rank, or an optimizer that
  only one rank has restored, drift without a word: hence ``assert_replicas_equal``, to be called now and then.

They also claim that a GPU belongs to one process, and that a process may have several. With NCCL a GPU has one rank;
gloo lets ranks share one (not verified: no GPU). A process with several GPUs holds a model parallel network in DDP,
with ``device_ids=None`` (not verified: no GPU). All parameters of one network in DDP must be on devices of one type.

Measured (2 ranks, gloo): all of the above, and the number of buckets, in tests/examples/parallelism.
"""

import argparse

import torch
import torch.distributed as dist
from common import Rank, joined, run_rank
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel


class ReplicasDiffer(RuntimeError):
    """The ranks' copies of a network are not equal; the message names the first tensor that differs, on all ranks."""


def assert_replicas_equal(network: nn.Module) -> None:
    """Compare parameters and buffers over all ranks, by their bits. All ranks must call this; all of them are told.

    Each tensor costs a sum over its bytes and one number on the wire, so it may be called every some hundred steps.

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
            "was it written outside of DDP's forward and the optimizer's step, or restored on some ranks only?"
        )


def _checksum(value: Tensor) -> Tensor:
    """Return one int64 of a tensor's bits and their places."""
    data = value.detach().contiguous().flatten().view(torch.uint8).to(torch.int64)
    places = torch.arange(1, len(data) + 1, device=data.device)
    return ((data + 1) * (places * 2654435761 % 4294967291)).sum()


def wrap(network: nn.Module, rank: Rank, bucket_mb: float = 25.0) -> DistributedDataParallel:
    """Return the network in DDP; it has rank 0's weights from here on."""
    ids = [rank.device.index] if rank.device.type == "cuda" else None
    return DistributedDataParallel(network.to(rank.device), device_ids=ids, bucket_cap_mb=bucket_mb)


def count_buckets(model: DistributedDataParallel) -> list[int]:
    """Return a list to which each backward appends the elements of each bucket that it sends."""
    sent: list[int] = []

    def average(_: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
        sent.append(bucket.buffer().numel())
        return allreduce_hook(model.process_group, bucket)  # what DDP does without a hook

    model.register_comm_hook(None, average)
    return sent


def make_network(seed: int) -> nn.Module:
    """Return a network with BatchNorm for [n, 10]."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1)
    )


def main() -> None:
    """Go through the promises."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
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
            optimizer.zero_grad()
            model(torch.randn(8, 10, device=rank.device)).square().mean().backward()
            optimizer.step()
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
