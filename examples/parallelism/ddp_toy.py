"""The smallest use of DistributedDataParallel: set up, wrap, train, clean up; started by torchrun or mp.spawn.

    torchrun --nproc-per-node=2 examples/parallelism/ddp_toy.py
    python examples/parallelism/ddp_toy.py --spawn 2

Each rank starts with its own weights and gets rank 0's; after five steps all are bit-identical, as the notes claim, and
those of one process that trains on whole batches, up to rounding. On the CPU ``device_ids`` must be None.

Measured (two ranks, CPU): no difference between the ranks, 3.0e-08 from one process.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from common import end_process, leave
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 5
SAMPLES = 40  # of a step, over all ranks


def set_up(rank: int, world_size: int, where: str) -> torch.device:
    """Create the process group; return this rank's device: a GPU if there is one for each rank."""
    gpus = torch.cuda.device_count() >= world_size
    dist.init_process_group("nccl" if gpus else "gloo", init_method=where, rank=rank, world_size=world_size)
    return torch.device("cuda", rank) if gpus else torch.device("cpu")


def make_network(seed: int) -> nn.Module:
    """Return a small network with weights by the seed."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 5))


def train(model: nn.Module, rank: int, world_size: int, device: torch.device) -> None:
    """Train on this rank's samples, every ``world_size``-th."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)  # created after the network is on its device
    data = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        inputs, targets = torch.randn(SAMPLES, 10, generator=data), torch.randn(SAMPLES, 5, generator=data)
        mine = slice(rank, None, world_size)
        loss = nn.functional.mse_loss(model(inputs[mine].to(device)), targets[mine].to(device))
        optimizer.zero_grad()
        loss.backward()  # here the gradients are averaged over the ranks
        optimizer.step()


def trained_by(rank: int, world_size: int, device: torch.device) -> Tensor:
    """Return all of a rank's parameters after the training, as one vector; the group must be there."""
    network = make_network(seed=rank).to(device)
    model = DistributedDataParallel(network, device_ids=[device.index] if device.type == "cuda" else None)
    train(model, rank, world_size, device)
    return nn.utils.parameters_to_vector(network.parameters()).detach()


def trained_alone(device: torch.device) -> Tensor:
    """Return the same of one process that sees whole batches, without any group."""
    network = make_network(seed=0).to(device)
    train(network, 0, 1, device)
    return nn.utils.parameters_to_vector(network.parameters()).detach()


def run(rank: int, world_size: int, where: str) -> None:
    """Be one rank, from the beginning to the end."""
    device = set_up(rank, world_size, where)
    mine = trained_by(rank, world_size, device)
    everybodys = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(everybodys, mine)
    if rank == 0:
        between = max((other - mine).abs().max().item() for other in everybodys)
        from_one = (trained_alone(device) - mine).abs().max().item()
        print(f"{world_size} ranks: {between:.1e} between ranks, {from_one:.1e} from one process", flush=True)
    leave()
    end_process()


def main() -> None:
    """Be a rank of torchrun's, or start ranks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spawn", type=int, help="start so many ranks here, instead of by torchrun")
    args = parser.parse_args()
    if args.spawn is None:
        run(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "env://")
        return
    with tempfile.TemporaryDirectory() as folder:
        where = (Path(folder) / "meeting").as_uri()  # file://...: no port that somebody else may have
        # Raises what a rank raised, and ends the others.
        mp.spawn(run, (args.spawn, where), nprocs=args.spawn)  # type: ignore[attr-defined, no-untyped-call]


if __name__ == "__main__":
    main()
