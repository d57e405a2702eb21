"""MNIST-style training with DistributedDataParallel: the notes' script, corrected, on the digits.

    torchrun --nproc-per-node=2 examples/parallelism/digits_ddp.py --save digits.pt

| the notes, a ResNet-101 in raw ``Process`` objects | here |
| --- | --- |
| backend ``"ncll"`` | chosen by device, in common.py |
| ``Conv1d`` as first layer, for images | ``Conv2d`` |
| no ``set_epoch``: the same order in each epoch | ``fastload.DataLoader`` advances its sampler's epoch itself |
| every rank downloads | no download; otherwise rank 0 downloads, and the others wait at a barrier |
| ``torch.save(ddp_module)``: loading needs the code and a group | rank 0 saves the plain ``state_dict()``, atomically |
| test accuracy over padded samples | each image counts once: integers are summed, without padding |
| processes that are not joined | torchrun ends all ranks when one fails |

Measured (two ranks on two cores, 5 epochs): see README.md.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from common import Rank, digits, joined, run_rank
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import fastload


def make_network() -> nn.Module:
    """Return a small convolutional network for [n, 1, 8, 8]."""
    layers: list[nn.Module] = []
    for inputs, outputs in [(1, 32), (32, 64)]:
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        layers += [nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 2 * 2, 10))


@torch.inference_mode()
def tested(network: nn.Module, images: Tensor, labels: Tensor, rank: Rank) -> tuple[int, int]:
    """Return how many images are classified correctly, and of how many; over all ranks, each image once."""
    network.eval()  # the unwrapped network: no rank waits for another in its forward pass, however many images it has
    mine = slice(rank.number, None, rank.count)
    guesses = network(images[mine].to(rank.device)).argmax(dim=1)
    counts = torch.stack([(guesses == labels[mine].to(rank.device)).sum(), torch.tensor(len(guesses)).to(guesses)])
    dist.all_reduce(counts)
    right, total = counts.tolist()
    network.train()
    return right, total


def save(network: nn.Module, path: Path) -> None:
    """Write the weights, so that the file holds all of them or is not there."""
    half = path.with_name(path.name + ".part")
    torch.save({name: value.cpu() for name, value in network.state_dict().items()}, half)
    os.replace(half, path)


def train(rank: Rank, epochs: int, batch_size: int, lr: float) -> tuple[nn.Module, float]:
    """Train over all ranks; rank 0 prints. Return the network, and the share of test images that it knows."""
    images, labels, test_images, test_labels = digits()
    dataset = TensorDataset(images, labels)
    sampler = fastload.DistributedSampler(dataset, seed=0, drop_last=True)
    loader = fastload.DataLoader(dataset, batch_size, sampler=sampler, drop_last=True, device=rank.device)

    torch.manual_seed(0)
    network = make_network().to(rank.device)
    gpu = [rank.device.index] if rank.device.type == "cuda" else None
    model = DistributedDataParallel(network, device_ids=gpu)
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=epochs * len(loader))
    for epoch in range(1, epochs + 1):
        started = time.perf_counter()
        losses = torch.zeros((), device=rank.device)
        for batch, targets in loader:
            loss = cross_entropy(model(batch), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses += loss.detach()
        taken = time.perf_counter() - started
        # Each rank's last step left statistics of its own in BatchNorm: rank 0's are tested, and saved.
        for buffer in network.buffers():
            dist.broadcast(buffer, src=0)
        right, total = tested(network, test_images, test_labels, rank)
        if rank.number == 0:
            rate = len(loader) * batch_size * rank.count / taken
            mean = losses.item() / len(loader)
            print(f"epoch {epoch:2}  loss {mean:.3f}  test {right}/{total} = {right / total:.1%}  {rate:,.0f} images/s")
    return network, right / total


def main() -> None:
    """Train, save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32, help="of each rank")
    parser.add_argument("--lr", type=float, default=0.1, help="highest learning rate")
    parser.add_argument("--device", default="auto", help="auto, cpu, or one GPU for all ranks: cuda:0")
    parser.add_argument("--save", type=Path)
    args = parser.parse_args()
    with joined(args.device) as rank:
        network, _ = train(rank, args.epochs, args.batch_size, args.lr)
        if args.save is not None and rank.number == 0:
            save(network, args.save)


if __name__ == "__main__":
    run_rank(main)
