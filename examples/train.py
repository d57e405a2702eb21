"""Train a small convolutional network with DistributedDataParallel: one loop, read from top to bottom.

    torchrun --nproc-per-node=2 examples/train.py                 # 1,797 handwritten digits, beside this file
    torchrun --nproc-per-node=2 examples/train.py --data-dir DIR  # images in DIR/train/<class>/, DIR/test/<class>/
    python examples/train.py                                      # one process, no process group

``--seed`` (default 0) fixes the first weights, the order of the images and their augmentation.

*data wait* is the share of the training time that a rank is blocked in the loader's ``next()``, workers' start-up
included. Of several ranks the slowest counts, since the others wait for it in ``backward()``.
"""

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from rich.console import Console
from rich.progress import BarColumn, Progress, TimeRemainingColumn
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset, DistributedSampler, Subset
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from fastload import DataLoader


class UsageError(Exception):
    """The arguments do not fit the data; the message says what to change."""


class Digits(Dataset[tuple[Tensor, int]]):
    """Images of shape (1, 8, 8), float32 from -1 to 1, and their labels; source and licence: examples/README.md."""

    def __init__(self, *, augment: bool) -> None:
        with np.load(Path(__file__).with_name("digits.npz")) as arrays:
            self.images = torch.from_numpy(arrays["images"]).unsqueeze(1) / 8 - 1
            self.labels = arrays["labels"].tolist()
        self.classes = list("0123456789")
        self.augment = augment

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.images[index]
        if self.augment:  # shift by up to one pixel in each direction
            top, left = torch.randint(0, 3, (2,)).tolist()
            image = nn.functional.pad(image, (1, 1, 1, 1), value=-1.0)[:, top : top + 8, left : left + 8]
        return image, self.labels[index]


Images: TypeAlias = Digits | ImageFolder | Subset[Any]


def load_data(root: Path | None, size: int) -> tuple[Images, Images, list[str], str]:
    """Return the training set, the test set, the classes, and how the test set was chosen."""
    train_set: Digits | ImageFolder
    test_set: Digits | ImageFolder
    test_dir: Path | None = None
    if root is None:
        train_set, test_set = Digits(augment=True), Digits(augment=False)
    else:
        crop = [v2.RandomResizedCrop(size, scale=(0.4, 1.0)), v2.RandomHorizontalFlip()]
        to_tensor = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.25] * 3)]
        train_dir = root / "train" if (root / "train").is_dir() else root
        test_dir = next((root / name for name in ("test", "val") if (root / name).is_dir()), None)
        try:
            train_set = ImageFolder(train_dir, v2.Compose(crop + to_tensor))
            test_set = ImageFolder(
                test_dir or train_dir, v2.Compose([v2.Resize(size), v2.CenterCrop(size), *to_tensor])
            )
        except OSError as error:
            reason = (error.strerror or str(error)).splitlines()[0].rstrip(".")
            raise UsageError(
                f"--data-dir must hold images in train/<class>/ and test/<class>/, got {str(root)!r}: {reason}; "
                "correct it, or leave it out to train on the digits"
            ) from None
        if len(train_set.classes) < 2 or train_set.classes != test_set.classes:
            raise UsageError(
                f"training and testing need the same class folders, two or more, got {train_set.classes} in "
                f"{str(train_dir)!r} and {test_set.classes} in {str(test_dir or train_dir)!r}; correct the folders"
            )
    if test_dir is not None:
        return train_set, test_set, train_set.classes, f"from {test_dir.name}/"
    order = range(len(train_set))  # one set for both purposes: images 0, 5, 10, ... are for testing
    kept = [index for index in order if index % 5]
    return Subset(train_set, kept), Subset(test_set, order[::5]), train_set.classes, "every fifth"


def build_network(channels: int, num_classes: int) -> nn.Module:
    """Three stages of two convolutions; each stage halves the image, which must have 8x8 pixels at least."""
    layers: list[nn.Module] = []
    for inputs, outputs in [(channels, 16), (16, 32), (32, 64)]:
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        layers += [nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        layers += [nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, num_classes))


@torch.inference_mode()
def evaluate(network: nn.Module, loader: DataLoader[Any], device: torch.device, world_size: int) -> float:
    """Return the share of all ranks' test images that are classified correctly."""
    network.eval()
    if world_size > 1:  # each rank's last step updated its own BatchNorm statistics: test rank 0's
        for buffer in network.buffers():
            dist.broadcast(buffer, src=0)
    counts = torch.zeros(2, dtype=torch.int64, device=device)  # sums, since the ranks' shares may differ in size
    for images, labels in loader:
        guesses = network(images.to(device, non_blocking=True)).argmax(dim=1)
        counts[0] += (guesses == labels.to(device, non_blocking=True)).sum()
        counts[1] += len(labels)
    if world_size > 1:
        dist.all_reduce(counts)
    correct, total = counts.tolist()  # sync point
    return float(correct / total)


def stop_together(problem: str | None, rank: int, world_size: int) -> None:
    """End every rank with exit code 2 if any has a problem; rank 0 prints it. All ranks must call this."""
    if world_size > 1:
        problems: list[str | None] = [None] * world_size
        dist.all_gather_object(problems, problem)
        problem = next(filter(None, problems), None)
    if problem is not None:
        if rank == 0:
            print(f"train.py: error: {problem}", file=sys.stderr, flush=True)
        if world_size > 1:
            dist.barrier()  # torchrun ends the other ranks as soon as one has left: let rank 0 print first
            dist.destroy_process_group()
        sys.exit(2)


def rates(images: int, seconds: float, waited: float) -> str:
    """Return what the lines and the bar say of the loader; times in seconds."""
    return f"{images / seconds:7,.0f} images/s   data wait {waited / seconds:6.1%}"


def main() -> None:
    """Train, test after every epoch, report."""
    args = parse_arguments()

    # Who and where: torchrun sets these variables. Each rank has a GPU of its own, or all share the CPU's cores.
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    local_rank, local_ranks = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    on_gpu = torch.cuda.device_count() >= local_ranks
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    else:
        cores = (os.cpu_count() or 1) // local_ranks  # leave some to the workers: threads short of cores are very slow
        torch.set_num_threads(max(1, cores - args.workers))
    if world_size > 1:
        dist.init_process_group("nccl" if on_gpu else "gloo", device_id=device if on_gpu else None)
    torch.manual_seed(args.seed)

    # Data. Training: DistributedSampler gives every rank equally many images, repeating a few where it must, since the
    # ranks step together. Testing: rank r takes images r, r + n, r + 2n, ..., so that each of them counts once.
    problem = None
    try:
        train_set, test_set, classes, chosen = load_data(args.data_dir, args.image_size)
        if len(train_set) < args.batch_size * world_size:
            raise UsageError(
                f"an epoch must have a full batch for each rank, got {len(train_set)} training images for "
                f"{world_size} x --batch-size {args.batch_size}; choose a smaller --batch-size"
            )
    except UsageError as error:
        problem = str(error)
    stop_together(problem, rank, world_size)
    sampler: DistributedSampler[Any] = DistributedSampler(train_set, world_size, rank, seed=args.seed)
    options: dict[str, Any] = {
        "num_workers": args.workers,
        "persistent_workers": args.workers > 0,
        "pin_memory": on_gpu,
        "worker_method": args.worker_method,
        "seed": args.seed,
    }
    train_loader = DataLoader(train_set, args.batch_size, sampler=sampler, drop_last=True, **options)
    test_share: Subset[Any] = Subset(test_set, range(rank, len(test_set), world_size))
    test_loader = DataLoader(test_share, 4 * args.batch_size, **options)

    # Network. The learning rate rises to --lr in the first fifth of the steps, then falls to zero.
    network = build_network(train_set[0][0].shape[0], len(classes)).to(device)
    model = DistributedDataParallel(network, device_ids=[local_rank] if on_gpu else None) if world_size > 1 else network
    steps = min(len(train_loader), args.limit_batches or len(train_loader))
    end = args.epochs * steps
    peak = end // 5
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / (peak + 1), (end - step) / (end - peak))
    )

    # Training. Only rank 0 prints. The bar is for terminals; this thread draws it, ten times a second at most.
    console = Console(quiet=rank != 0, highlight=False)
    console.print(
        f"{len(train_set):,} images to train on, {len(test_set):,} to test ({chosen}), {len(classes)} classes"
    )
    console.print(f"{world_size} x {device.type}, {args.workers} workers each")
    columns = "{task.description}", BarColumn(None), "{task.fields[rates]}", TimeRemainingColumn()
    progress = Progress(
        *columns, console=console, disable=not console.is_terminal, auto_refresh=False, transient=True, expand=True
    )
    bar = progress.add_task("", total=end, rates="")
    global_batch = args.batch_size * world_size
    begun, all_seconds, all_waited = time.perf_counter(), 0.0, 0.0
    with progress:
        for epoch in range(1, args.epochs + 1):
            sampler.set_epoch(epoch)  # without this every epoch would have the same order
            model.train()
            loss_sum = torch.zeros((), device=device)
            waited = drawn = 0.0
            started = asked = time.perf_counter()
            for step, (images, labels) in enumerate(train_loader, start=1):
                got = time.perf_counter()
                waited += got - asked
                images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
                loss = nn.functional.cross_entropy(model(images), labels, label_smoothing=0.1)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                loss_sum += loss.detach()  # stays on the device: reading it here would be a sync point in each step
                if got - drawn > 0.1:
                    drawn = got
                    speed = rates(step * global_batch, time.perf_counter() - started, waited)
                    done = (epoch - 1) * steps + step
                    progress.update(bar, description=f"epoch {epoch:3}", completed=done, rates=speed, refresh=True)
                if step == args.limit_batches:
                    break
                asked = time.perf_counter()
            if world_size > 1:
                dist.all_reduce(loss_sum)
            mean_loss = loss_sum.item() / (steps * world_size)  # sync point: the epoch's work is done
            times = torch.tensor([time.perf_counter() - started, waited], device=device)
            if world_size > 1:
                dist.all_reduce(times, dist.ReduceOp.MAX)
            seconds, waited = times.tolist()  # sync point
            all_seconds, all_waited = all_seconds + seconds, all_waited + waited
            accuracy = evaluate(network, test_loader, device, world_size)
            speed = rates(steps * global_batch, seconds, waited)
            console.print(f"epoch {epoch:3}   loss {mean_loss:6.3f}   test {accuracy:7.2%} {speed}")
    speed = rates(end * global_batch, all_seconds, all_waited)
    console.print(f"done in {time.perf_counter() - begun:.1f} s   test accuracy {accuracy:.2%} {speed}")
    if world_size > 1:
        dist.destroy_process_group()


def parse_arguments() -> argparse.Namespace:
    """Return the command line's options."""

    def positive(text: str) -> int:
        if (number := int(text)) < 1:
            raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
        return number

    parser = argparse.ArgumentParser(description="Train a small network on the digits, or on a folder of images.")
    parser.add_argument("--data-dir", type=Path, help="images in train/<class>/ and test/<class>/")
    parser.add_argument("--image-size", type=positive, default=32, help="side of the images of --data-dir, in pixels")
    parser.add_argument("--epochs", type=positive, default=20)
    parser.add_argument("--batch-size", type=positive, default=32, help="images in a step of one rank")
    parser.add_argument("--lr", type=float, default=0.1, help="highest learning rate")
    parser.add_argument("--workers", type=int, default=2, help="workers of each rank; 0: load in the training process")
    parser.add_argument("--worker-method", choices=["multiprocessing", "thread"], default="multiprocessing")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit-batches", type=positive, help="steps of an epoch, for a quick try")
    return parser.parse_args()


if __name__ == "__main__":
    main()
