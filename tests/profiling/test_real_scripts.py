"""Scripts as users write them, unmodified, under ``fastload profile``: what they print and how they end is theirs.

The scripts are of this project, in the manner of PyTorch's own examples and of each library's documentation; the
libraries are the real ones. The data are made up, and small.
"""

from __future__ import annotations

import importlib.util
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fastload.profiling.reading import read_trace
from fastload.profiling.trace import Rank, Trace

pytestmark = pytest.mark.timeout(300)


class Run:
    """What came of a script.

    Args:
        folder: the script's; the recording is within.
        text: the script.
        words: its arguments.
        options: of ``fastload profile``.
        before: words in front of the script.
    """

    def __init__(
        self,
        folder: Path,
        text: str,
        *words: str,
        options: tuple[str, ...] = ("--full",),
        before: tuple[str, ...] = (),
    ) -> None:
        self._folder = folder
        (folder / "train.py").write_text(text, encoding="utf-8")
        done = subprocess.run(
            [
                *(sys.executable, "-m", "fastload.cli", "profile", "--out", "recorded", *options),
                *before,
                "train.py",
                *words,
            ],
            cwd=folder,
            env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            text=True,
        )
        self.status, self.output, self.complaints = done.returncode, done.stdout, done.stderr

    @property
    def trace(self) -> Trace:
        """The recording."""
        return read_trace(str(self._folder / "recorded"))

    @property
    def rank(self) -> Rank:
        """The only process that trained."""
        (rank,) = self.trace.ranks
        return rank


def needs(library: str) -> pytest.MarkDecorator:
    """Skip a test where a library is not installed, without importing it."""
    return pytest.mark.skipif(importlib.util.find_spec(library) is None, reason=f"{library} is not installed")


def batches_of(rank: Rank) -> dict[str, list[int]]:
    """Return the steps of each loader: by the name of its sampler, as many as each pass had."""
    found: dict[str, dict[int, int]] = {}
    for step in rank.steps:
        passes = found.setdefault(rank.loaders[step.loader]["sampler"], {})
        passes[step.iterator] = passes.get(step.iterator, 0) + 1
    return {sampler: list(passes.values()) for sampler, passes in found.items()}


def workers_of(rank: Rank) -> set[int]:
    """Return the workers that made what was delivered; -1 stands for the main process."""
    return {task.worker for step in rank.steps for task in step.batch.tasks}


def num_samples(rank: Rank) -> int:
    """Return how many samples were asked of datasets for what was delivered, not all of them measured."""
    return sum(sample.weight for step in rank.steps for task in step.batch.tasks for sample in task.samples)


# -- PyTorch's examples ------------------------------------------------------------------------------------------------

MNIST = '''
import argparse
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torchvision import datasets, transforms
from torch.optim.lr_scheduler import StepLR


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, 2)
        self.fc = nn.Linear(676, 10)

    def forward(self, x):
        return F.log_softmax(self.fc(torch.flatten(F.relu(self.conv(x)), 1)), dim=1)


def train(args, model, device, train_loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        if batch_idx % args.log_interval == 0:
            print(f"Train Epoch: {epoch} [{batch_idx * len(data)}/{len(train_loader.dataset)}]")


def test(model, device, test_loader):
    model.eval()
    seen = 0
    with torch.no_grad():
        for data, target in test_loader:
            seen += len(model(data.to(device)).argmax(dim=1))
    print(f"Test set: {seen}/{len(test_loader.dataset)}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--test-batch-size", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--log-interval", type=int, default=10)
    args = parser.parse_args()
    torch.manual_seed(1)
    device = torch.device("cpu")
    train_kwargs = {"batch_size": args.batch_size, "num_workers": args.workers, "shuffle": True}
    test_kwargs = {"batch_size": args.test_batch_size}
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
    dataset1 = datasets.MNIST("data", train=True, transform=transform)
    dataset2 = datasets.MNIST("data", train=False, transform=transform)
    train_loader = torch.utils.data.DataLoader(dataset1, **train_kwargs)
    test_loader = torch.utils.data.DataLoader(dataset2, **test_kwargs)
    model = Net().to(device)
    optimizer = optim.Adadelta(model.parameters())
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(1, args.epochs + 1):
        train(args, model, device, train_loader, optimizer, epoch)
        test(model, device, test_loader)
        scheduler.step()


if __name__ == "__main__":
    main()
'''


def write_digits(folder: Path) -> None:
    """Write files as MNIST has them: 80 digits to train with, 24 to test."""
    raw = folder / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for prefix, count in (("train", 80), ("t10k", 24)):
        images = np.random.default_rng(0).integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = np.arange(count, dtype=np.uint8) % 10
        (raw / f"{prefix}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 2051, count, 28, 28) + images.tobytes())
        (raw / f"{prefix}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 2049, count) + labels.tobytes())


@pytest.mark.parametrize("workers", [0, 1])
def test_the_mnist_example_prints_what_it_prints_and_its_two_loaders_are_told_apart(
    tmp_path: Path, workers: int
) -> None:
    write_digits(tmp_path)
    run = Run(
        tmp_path,
        MNIST,
        *("--batch-size", "16", "--test-batch-size", "8", "--epochs", "2", "--log-interval", "4"),
        *("--workers", str(workers)),
    )
    assert run.status == 0, run.complaints
    assert run.output == "".join(
        f"Train Epoch: {epoch} [0/80]\nTrain Epoch: {epoch} [64/80]\nTest set: 24/24\n" for epoch in (1, 2)
    )
    assert batches_of(run.rank) == {"RandomSampler": [5, 5], "SequentialSampler": [3, 3]}
    assert workers_of(run.rank) == ({-1, 0} if workers else {0})
