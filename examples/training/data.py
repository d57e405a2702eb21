"""The datasets, their transforms, and the loaders.

::

    file ─> decode, crop, resize (workers; --fuse: in one call) ─> uint8 ─> device ─> crop, flip, normalise, mix

The workers make bytes, a quarter of the size of float32, and the device does the rest for the whole batch. The random
numbers of a sample depend on (seed, epoch, index) alone, so ranks and workers never draw the same ones.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset
from torchvision.datasets import CIFAR10, ImageFolder
from torchvision.transforms import v2

import fastload
from fastload import transforms as T  # noqa: N812
from fastload.images import PackedImages

from .distributed import Signals, World, fail_together, ignore_signals
from .errors import UsageError
from .recipe import Recipe

DIGITS = Path(__file__).parents[1] / "digits.npz"

_DAMAGED = (OSError, SyntaxError, ValueError, EOFError, RuntimeError)  # what Pillow and torchvision raise


@dataclass(frozen=True)
class Data:
    """Images for training and for testing, without transforms."""

    train: Dataset[Any]
    test: Dataset[Any]
    classes: list[str]
    split: str
    """How the test images were chosen."""
    channels: int = 3

    @property
    def num_train(self) -> int:
        """Number of training images."""
        return len(self.train)  # type: ignore[arg-type]

    @property
    def num_test(self) -> int:
        """Number of test images."""
        return len(self.test)  # type: ignore[arg-type]


def load_data_on_all_ranks(args: Namespace, world: World, signals: Signals) -> Data:
    """Return the dataset; with --download rank 0 downloads it first.

    Then the first rank of each other machine looks, which finds the files if the machines share a disk, and then all
    others. An error exits all ranks.
    """
    turns = [world.rank == 0, world.rank > 0 == world.local_rank, world.local_rank > 0] if args.download else [True]
    for turn in turns:
        with fail_together(world, signals):
            if turn:
                data = load_data(args, download=args.download and world.local_rank == 0)
    return data


def load_data(args: Namespace, *, download: bool) -> Data:
    """Return the dataset of ``args.dataset``."""
    name, root = args.dataset, args.data_dir
    if name == "digits":
        return load_digits()
    if root is None:
        raise UsageError(f"--dataset {name} needs --data-dir, the folder with the images")
    try:
        return load_cifar10(root, download) if name == "cifar10" else load_folders(root, args)
    except fastload.FastloadError as error:
        raise UsageError(f"--data-dir must contain packed images, got {str(root)!r}: {error}") from None
    except OSError as error:
        reason = (error.strerror or str(error)).splitlines()[0].rstrip(".")
        if name == "cifar10":
            action = "downloaded to" if download else "read from"
            raise UsageError(f"CIFAR-10 could not be {action} --data-dir {str(root)!r}: {reason}") from None
        raise UsageError(
            f"--data-dir must contain images in train/<class>/ and test/<class>/, got {str(root)!r}: {reason}; correct "
            "it, or leave it out to train on the digits"
        ) from None


def load_digits() -> Data:
    """Return the digits, uint8 [1, 8, 8] from 0 to 16; source and licence: examples/README.md."""
    with np.load(DIGITS) as arrays:
        images = torch.from_numpy(arrays["images"]).unsqueeze(1)
        labels = torch.from_numpy(arrays["labels"]).long()
    digits = TensorDataset(images, labels)
    return _hold_out(digits, digits, list("0123456789"), channels=1)


def load_cifar10(root: Path, download: bool) -> Data:
    """Return CIFAR-10 as torchvision stores it, in memory."""
    try:
        train, test = CIFAR10(root, train=True, download=download), CIFAR10(root, train=False)
    except RuntimeError:  # torchvision's error for missing and damaged files
        raise UsageError(
            f"--data-dir must contain CIFAR-10 as torchvision stores it, cifar-10-batches-py/, got {str(root)!r}, "
            "where it is missing or incomplete; add --download, or use --dataset folder for a folder of images"
        ) from None
    return Data(train, test, train.classes, "its own split")


def load_folders(root: Path, args: Namespace) -> Data:
    """Return images in folders, or packed by ``fastload pack``; without test/ or val/ every fifth is for testing."""
    if not root.is_dir():
        raise FileNotFoundError(2, "No such file or directory")
    train_dir = root / "train" if (root / "train").is_dir() else root
    test_dir = next((root / name for name in ("test", "val") if (root / name).is_dir()), None)
    open_folder: Any = ImageFolder if args.dataset == "folder" else PackedImages
    train, test = open_folder(train_dir), open_folder(test_dir or train_dir)
    if len(train.classes) < 2 or train.classes != test.classes:
        raise UsageError(
            f"training and testing need the same class folders, two or more, got {train.classes} in "
            f"{str(train_dir)!r} and {test.classes} in {str(test_dir or train_dir)!r}; correct the folders"
        )
    if test_dir is None:
        return _hold_out(train, test, train.classes)
    return Data(train, test, train.classes, f"from {test_dir.name}/")


def _hold_out(train: Dataset[Any], test: Dataset[Any], classes: list[str], channels: int = 3) -> Data:
    """Split one dataset: images 0, 5, 10, ... are for testing."""
    indices = range(len(train))  # type: ignore[arg-type]
    kept = [index for index in indices if index % 5]
    return Data(Subset(train, kept), Subset(test, indices[::5]), classes, "every fifth", channels)


def with_transform(dataset: Dataset[Any], transform: Callable[[Any], Any]) -> Dataset[Any]:
    """Return a shallow copy of the dataset that has another transform."""
    twin = copy.copy(dataset)
    if isinstance(twin, Subset):
        twin.dataset = with_transform(twin.dataset, transform)
    elif isinstance(twin, ImageFolder | CIFAR10 | PackedImages):
        twin.transform = transform
    return twin


def sample_transform(recipe: Recipe, size: int, *, train: bool, resized: bool = True) -> v2.Compose:
    """Return what the workers do with each image, to images of ``size`` pixels; ``resized``: or that have this size."""
    steps: list[Any] = []
    if resized:
        steps = _resizing(recipe, size, train=train)
    if train and recipe.trivial_augment:
        steps.append(v2.TrivialAugmentWide(interpolation=v2.InterpolationMode.BILINEAR))
    return v2.Compose([*steps, v2.PILToTensor()])


def _resizing(recipe: Recipe, size: int, *, train: bool) -> list[Any]:
    if train and recipe.augment == "resized-crop":
        return [v2.RandomResizedCrop(size, scale=(recipe.min_scale, 1.0))]
    if train or recipe.augment != "resized-crop":
        return [v2.Resize((size, size))]
    return [v2.Resize(recipe.test_resize or size), v2.CenterCrop(size)]


def batch_transform(recipe: Recipe, size: int, num_classes: int, *, train: bool) -> T.Compose:
    """Return what is done with each batch on the device, with random parameters for each image."""
    normalise = T.ToNormalized(recipe.mean, recipe.std)
    if not train:
        return T.Compose([normalise])
    steps: list[Any] = []
    if recipe.augment == "pad-crop" and recipe.padding:
        steps.append(T.RandomCrop(size, padding=recipe.padding, padding_mode=recipe.padding_mode))  # type: ignore[arg-type]
    if recipe.flip != "none":
        steps.append(T.RandomHorizontalFlip() if recipe.flip == "random" else T.AlternatingFlip())
    steps.append(normalise)
    if recipe.cutout:
        steps.append(T.Cutout(recipe.cutout))
    if recipe.erasing:
        steps.append(T.RandomErasing(recipe.erasing))
    if recipe.mixup and recipe.cutmix:
        steps.append(T.MixUpOrCutMix(mixup_alpha=recipe.mixup, cutmix_alpha=recipe.cutmix, num_classes=num_classes))
    elif recipe.mixup:
        steps.append(T.MixUp(alpha=recipe.mixup, num_classes=num_classes))
    elif recipe.cutmix:
        steps.append(T.CutMix(alpha=recipe.cutmix, num_classes=num_classes))
    return T.Compose(steps)


def sample_images(data: Data, recipe: Recipe, count: int) -> Tensor:
    """Return some training images, evenly spread, without augmentation, normalised: [N, C, H, W], float32."""
    dataset = with_transform(data.train, sample_transform(recipe, recipe.image_size, train=False))
    images = []
    for index in range(0, data.num_train, max(1, data.num_train // count)):
        with contextlib.suppress(*_DAMAGED):  # the loader will report or replace it
            images.append(dataset[index][0])
    if not images:
        raise UsageError(f"none of the {data.num_train} training images can be loaded; correct the files")
    normalised: Tensor = batch_transform(recipe, recipe.image_size, len(data.classes), train=False)(torch.stack(images))
    return normalised


def train_loader(args: Namespace, recipe: Recipe, data: Data, world: World, size: int) -> Any:
    """Return the loader of this rank's images for training, at one image size.

    The sampler cuts *global* batches into one part for each rank: the batches, their order and the augmentation are
    the same for any number of ranks, and all ranks have the same number of steps of full batches (a rank with one step
    more would wait forever, and a short batch is compiled anew).

    Each image size needs a new loader: persistent workers have copies of the dataset, and its transform.
    """
    dataset = _at_size(args, recipe, data.train, size, train=True)
    batches = fastload.DistributedBatchSampler(
        dataset,  # type: ignore[arg-type]  # it has a length
        recipe.batch_size,
        seed=args.seed,
        tail="drop",
        rank=world.rank,
        world_size=world.size,
    )
    transform = batch_transform(recipe, size, len(data.classes), train=True)
    return _loader(args, dataset, transform, world, args.on_error, batch_sampler=batches)


def test_loader(args: Namespace, recipe: Recipe, data: Data, world: World) -> Any:
    """Return the loader of this rank's images for testing; all ranks together test each image exactly once.

    (torch's DistributedSampler repeats some images if they cannot be divided evenly.)
    """
    size = recipe.test_image_size or recipe.image_size
    dataset = _at_size(args, recipe, data.test, size, train=False)
    sampler = fastload.DistributedSampler(dataset, world.size, world.rank, shuffle=False, tail="short")
    transform = batch_transform(recipe, size, len(data.classes), train=False)
    # Damaged images are skipped, since a replacement would count twice. Ranks may have different numbers of batches.
    on_error = "skip" if args.on_error == "replace" else args.on_error
    batch_size = 4 * recipe.batch_size // world.size
    return _loader(args, dataset, transform, world, on_error, batch_size=batch_size, sampler=sampler)


def _at_size(args: Namespace, recipe: Recipe, dataset: Dataset[Any], size: int, *, train: bool) -> Dataset[Any]:
    resized = not (isinstance(dataset, CIFAR10) and size == 32 and recipe.augment != "resized-crop")
    return with_transform(dataset, sample_transform(recipe, size, train=train, resized=resized))


def _loader(
    args: Namespace, dataset: Dataset[Any], transform: T.Compose, world: World, on_error: str, **sampling: Any
) -> Any:
    workers: dict[str, Any] = {"num_workers": args.workers, "worker_method": args.worker_method}
    workers["persistent_workers"] = args.workers > 0
    if args.worker_method == "ray":
        # Half a core each: those of the training loader and of the test loader, which live as long, work by turns.
        workers["ray_options"] = {"num_cpus": 0.5, "scheduling_strategy": "SPREAD"}
    try:
        if args.workers and args.worker_method == "multiprocessing":
            workers["worker_init_fn"] = ignore_signals
            if world.device.type == "cuda" and world.size > 1:
                workers["multiprocessing_context"] = "forkserver"  # a fork after NCCL has started is not safe
        return fastload.DataLoader(
            dataset,
            **sampling,
            **workers,
            device=world.device,
            batch_transform=transform,
            channels_last=args.channels_last,
            resident=args.resident,
            fuse=args.fuse,
            on_error=on_error,  # type: ignore[arg-type]
            max_errors=args.max_errors,
        )
    except fastload.ConfigError as error:
        raise UsageError(str(error)) from None


def damaged_images(*loaders: Any) -> dict[str, str]:
    """Return the images that these loaders could not load, by file, and why."""
    failed = [one for loader in loaders for one in loader.failed_samples()]
    return {one.file or f"index {one.index}": f"{one.error}: {one.message}" for one in failed}


def hashes_of(images: Tensor) -> list[str]:
    """Return a hash of each image of a batch: it tells which sample it is, and how it was augmented."""
    rows = images.detach().float().cpu().contiguous()
    return [hashlib.blake2b(row.numpy().tobytes(), digest_size=8).hexdigest() for row in rows]
