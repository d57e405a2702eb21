"""A whole training in one file to copy from: on one process or several, and it can be killed and resumed at any step.

    python examples/minimal.py
    torchrun --nproc-per-node=2 examples/minimal.py --out runs/1   # killed? the same command resumes it

Step 1,000 trains on the same images, augmented in the same way, however many processes and workers there are, and
whether the run was killed before or not. With the same number of processes the weights are the same too, bit for bit.
``train.py`` has more: recipes, mixed precision, tests on all processes, signals that stop a run.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import fastload


class Digits(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Handwritten digits of 8 x 8 pixels; every fifth is for the test. Put your own dataset in its place."""

    def __init__(self, *, train: bool) -> None:
        with np.load(Path(__file__).with_name("digits.npz")) as file:
            chosen = (np.arange(len(file["labels"])) % 5 != 0) == train
            self.images, self.labels = file["images"][chosen], file["labels"][chosen]
        self.train = train

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = torch.from_numpy(self.images[index]).float()[None] / 16
        if self.train:  # move it by a pixel. fastload seeds torch, NumPy and random for each sample
            image = torch.roll(image, tuple(torch.randint(-1, 2, (2,)).tolist()), dims=(1, 2))
        return image, int(self.labels[index])


def build_network() -> nn.Module:
    """Return a small convolutional network."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def save(path: Path, checkpoint: dict[str, Any]) -> None:
    """Write a checkpoint. If the process is killed meanwhile, the file is still the one before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(checkpoint, path.with_suffix(".tmp"))
    os.replace(path.with_suffix(".tmp"), path)


def accuracy(network: nn.Module, device: torch.device) -> float:
    """Return the share of test images that a network classifies correctly."""
    dataset = Digits(train=False)
    loader = fastload.DataLoader(dataset, batch_size=128, device=device)
    network.eval()
    with torch.no_grad():
        correct = sum(int((network(images).argmax(1) == labels).sum()) for images, labels in loader)
    network.train()
    return correct / len(dataset)


def train(options: argparse.Namespace, device: torch.device) -> None:
    """Train, from the last checkpoint if there is one."""
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    torch.manual_seed(options.seed)  # the same weights on all ranks
    network = build_network().to(device)
    model = DistributedDataParallel(network) if world_size > 1 else network
    optimizer = torch.optim.SGD(network.parameters(), lr=options.lr, momentum=0.9, nesterov=True, weight_decay=5e-4)

    dataset = Digits(train=True)
    # A batch is drawn for all ranks together, and each gets its part: so the steps are the same on any number of ranks.
    # Each pass over the loader is the next epoch, with another order: there is no set_epoch to call.
    sampler = fastload.DistributedBatchSampler(dataset, options.batch_size, seed=options.seed)
    start = "forkserver" if device.type == "cuda" and options.workers else None  # NCCL's threads do not survive a fork
    loader = fastload.DataLoader(
        dataset, batch_sampler=sampler, num_workers=options.workers, device=device, multiprocessing_context=start
    )
    steps_per_epoch = len(loader)
    num_steps = options.epochs * steps_per_epoch

    step, path = 0, options.out / "checkpoint.pt" if options.out else None
    if path and path.exists():  # on all ranks
        checkpoint = torch.load(path, map_location=device)
        network.load_state_dict(checkpoint["network"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        loader.load_state_dict(checkpoint["loader"])  # the epoch, and how many of its images were given out
        step = checkpoint["step"]
        if rank == 0:
            print(f"resumed after step {step}", flush=True)

    while step < num_steps:
        for images, labels in loader:  # on the device; after a resume the rest of that epoch, which may be nothing
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            for group in optimizer.param_groups:
                group["lr"] = options.lr * (1 - step / num_steps)  # falls to 0
            optimizer.step()
            step += 1
            if rank == 0 and path and (step % options.save_every == 0 or step == num_steps):
                state = {"network": network.state_dict(), "optimizer": optimizer.state_dict()}
                save(path, {**state, "loader": loader.state_dict(), "step": step})
            if rank == 0 and step % steps_per_epoch == 0:
                epoch, test = step // steps_per_epoch, accuracy(network, device)
                print(f"epoch {epoch:2d}   loss {loss:.3f}   test {test:.2%}", flush=True)


def main() -> None:
    """Read the options, join the other processes, train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64, help="over all processes")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2, help="of each process")
    parser.add_argument("--out", type=Path, help="a folder for the checkpoint")
    parser.add_argument("--save-every", type=int, default=10, help="steps")
    options = parser.parse_args()
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    on_gpu = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    if "RANK" in os.environ:  # under torchrun
        dist.init_process_group("nccl" if on_gpu else "gloo", device_id=device if on_gpu else None)
    train(options, device)
    if dist.is_initialized():
        dist.barrier()  # rank 0 may still be testing
        sys.stdout.flush()
        os._exit(0)  # destroying the group while Python ends can hang or abort: leaving.py says why


if __name__ == "__main__":
    main()
