"""Batch size against accuracy: the same epochs, the learning rate in proportion, several seeds.

    python examples/parallelism/batch_size_sweep.py                                       # digits, minutes on a CPU
    python examples/parallelism/batch_size_sweep.py --norm none --decay linear            # without batch norm
    python examples/parallelism/batch_size_sweep.py --dataset cifar10 --data-dir DIR --network mobilenetv2 --epochs 200

The notes' claim that larger batches fit the training images better and generalise worse is partly an effect of the
number of steps: eight times the batch size makes an eighth of the steps. Their 94.1 to 95.3 % of MobileNetV2 are above
all published figures found, 94.0 to 94.6 %. Accuracy is that of the last epoch: the best is a choice on the test set.

Measured (the proxy network on digits, CPU): see README.md.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from common import digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import fastload
from fastload import transforms as T  # noqa: N812 (the usual name)

NOTES = {128: "95.3", 256: "95.1", 512: "94.9", 1024: "94.1"}


@dataclass(frozen=True)
class Run:
    """One training and its result; accuracies of the last epoch, in percent."""

    network: str
    norm: str
    batch_size: int
    seed: int
    epochs: int
    lr: float
    train: float
    test: float
    seconds: float


@dataclass(frozen=True)
class Images:
    """uint8 images [n, c, h, w] and labels [n] for training and testing, and the transforms of their batches."""

    train: TensorDataset
    test: TensorDataset
    augment: Callable[..., Any]
    plain: Callable[..., Any]


def load_digits() -> Images:
    """Return the digits, shifted by up to one pixel in training."""
    images, labels, test_images, test_labels = digits()
    values = [T.ToDtype(torch.float32, scale=True), T.Normalize([0.5], [0.25])]
    as_bytes = [((part + 1) * 127.5).round().to(torch.uint8) for part in (images, test_images)]
    return Images(
        TensorDataset(as_bytes[0], labels),
        TensorDataset(as_bytes[1], test_labels),
        T.Compose([T.RandomCrop(8, padding=1), *values]),
        T.Compose(values),
    )


def load_cifar10(root: Path) -> Images:
    """Return CIFAR-10; it is downloaded to ``root`` if it is missing."""
    from torchvision.datasets import CIFAR10

    parts = []
    for train in (True, False):
        read = CIFAR10(root, train=train, download=True)
        parts.append(TensorDataset(torch.from_numpy(read.data).permute(0, 3, 1, 2), torch.tensor(read.targets)))
    values = [T.ToDtype(torch.float32, scale=True), T.Normalize([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616])]
    crop = [T.RandomCrop(32, padding=4), T.RandomHorizontalFlip()]
    return Images(parts[0], parts[1], T.Compose([*crop, *values]), T.Compose(values))


def proxy(channels: int, norm: str) -> nn.Module:
    """Return a small network of three stages; ``norm``: ``"batch"`` or ``"none"``."""
    layers: list[nn.Module] = []
    for inputs, outputs in [(channels, 32), (32, 64), (64, 64)]:
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=norm == "none")]
        layers += [nn.BatchNorm2d(outputs)] if norm == "batch" else []
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def make_network(name: str, channels: int, norm: str) -> nn.Module:
    """Return the proxy, or the MobileNetV2 that examples/train.py trains."""
    if name == "proxy":
        return proxy(channels, norm)
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from training.models import build_network

    network: nn.Module = build_network("mobilenetv2-cifar", channels, 10, norm)
    return network


def learning_rate(step: int, steps: int, peak: float, decay: str) -> float:
    """Return the learning rate of a step: it rises in the first twentieth, then falls by a cosine or linearly to 0."""
    rising = max(1, steps // 20)
    if step < rising:
        return peak * (step + 1) / rising
    left = (steps - step) / (steps - rising)
    return peak * (left if decay == "linear" else (1 - math.cos(math.pi * left)) / 2)


@torch.inference_mode()
def accuracy(network: nn.Module, dataset: TensorDataset, transform: Callable[..., Any], device: torch.device) -> float:
    """Return the accuracy in percent."""
    network.eval()
    loader = fastload.DataLoader(dataset, 1024, device=device, batch_transform=transform)
    right = sum((network(images).argmax(dim=1) == labels).sum() for images, labels in loader)
    network.train()
    return 100 * int(right) / len(dataset)


def train(images: Images, args: argparse.Namespace, batch_size: int, seed: int) -> Run:
    """Train once."""
    device = torch.device(args.device)
    torch.manual_seed(seed)
    network = make_network(args.network, images.train.tensors[0].shape[1], args.norm).to(device)
    peak = args.lr_256 * batch_size / 256
    optimizer = torch.optim.SGD(network.parameters(), peak, momentum=0.9, weight_decay=1e-4, nesterov=True)
    loader = fastload.DataLoader(
        images.train,
        batch_size,
        shuffle=True,
        drop_last=True,
        seed=seed,
        device=device,
        resident="device",
        batch_transform=images.augment,
    )
    steps, step = args.epochs * len(loader), 0
    started = time.perf_counter()
    for _ in range(args.epochs):
        for batch, labels in loader:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, steps, peak, args.decay)
            optimizer.zero_grad()
            cross_entropy(network(batch), labels).backward()
            if args.clip:
                nn.utils.clip_grad_norm_(network.parameters(), args.clip)
            optimizer.step()
            step += 1
    loader.close()
    found = [accuracy(network, part, images.plain, device) for part in (images.train, images.test)]
    taken = time.perf_counter() - started
    return Run(args.network, args.norm, batch_size, seed, args.epochs, peak, found[0], found[1], round(taken, 1))


def table(runs: list[Run]) -> str:
    """Return a Markdown table of these runs, one line for each batch size."""
    lines = ["| batch size | learning rate | train | test, mean ± sd | seeds | the notes' (MobileNetV2, CIFAR-10) |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for size in sorted({run.batch_size for run in runs}):
        mine = [run for run in runs if run.batch_size == size]
        test = [run.test for run in mine]
        spread = statistics.stdev(test) if len(test) > 1 else 0.0
        lines.append(
            f"| {size} | {mine[0].lr:.3g} | {statistics.mean(run.train for run in mine):.1f} "
            f"| {statistics.mean(test):.1f} ± {spread:.1f} | {len(mine)} | {NOTES.get(size, '-')} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Train for each batch size and seed; print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", choices=["digits", "cifar10"], default="digits")
    parser.add_argument("--data-dir", type=Path, default=Path(".data"), help="folder of CIFAR-10")
    parser.add_argument("--network", choices=["proxy", "mobilenetv2"], default="proxy")
    parser.add_argument("--norm", choices=["batch", "none"], default="batch")
    parser.add_argument("--batch-sizes", default="16,32,64,128,256,512")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--lr-256", type=float, default=0.1, help="peak learning rate for a batch of 256")
    parser.add_argument("--decay", choices=["cosine", "linear"], default="cosine")
    parser.add_argument("--clip", type=float, default=0.0, help="maximum norm of the gradient; 0: no clipping")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--log", type=Path, help="append a line of JSON for each run")
    args = parser.parse_args()
    images = load_digits() if args.dataset == "digits" else load_cifar10(args.data_dir)
    runs = []
    for batch_size in map(int, args.batch_sizes.split(",")):
        for seed in range(args.seeds):
            runs.append(train(images, args, batch_size, seed))
            if args.log is not None:
                with args.log.open("a") as log:
                    log.write(json.dumps(asdict(runs[-1])) + "\n")
    print(table(runs))


if __name__ == "__main__":
    main()
