"""The data sets, what is done with their images, and the loaders.

In: names, folders and a recipe. Out: loaders whose batches are on the device, augmented and normalised.

::

    file ─> decode, crop, resize (workers; --fuse: in one call) ─> uint8 ─> device ─> crop, flip, normalise, mix

The workers make bytes, a quarter of float32, and the device does the rest for the whole batch. Every sample draws from
a key of (seed, epoch, index), so ranks and workers never share random numbers, whatever their seeds.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
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

from .errors import UsageError
from .processes import Place, ignore_signals
from .recipe import Recipe

DIGITS = Path(__file__).parents[1] / "digits.npz"
DATASETS = ("digits", "cifar10", "folder", "packed")
DECODERS = ("auto", "native", "torchvision", "pillow", "dali")

_DAMAGED = (OSError, SyntaxError, ValueError, EOFError, RuntimeError)  # what Pillow and torchvision say of files


@dataclass(frozen=True)
class Data:
    """Images for training and for testing; their transforms are set for each size."""

    train: Dataset[Any]
    test: Dataset[Any]
    classes: list[str]
    chosen: str
    """How the images for testing were chosen."""
    channels: int = 3


def load_data(name: str, root: Path | None, *, decoder: str, fuse: bool, download: bool) -> Data:
    """Return a data set by its name.

    Raises:
        UsageError: it is not there, or not as it should be.
    """
    if name == "digits":
        return load_digits()
    if root is None:
        raise UsageError(f"--dataset {name} needs --data-dir, the folder where it is, got none; give it")
    try:
        if name == "cifar10":
            return load_cifar10(root, download)
        return load_folders(root, name, decoder, fuse)
    except fastload.FastloadError as error:
        raise UsageError(f"--data-dir must hold packed images, got {str(root)!r}: {error}") from None
    except OSError as error:
        reason = (error.strerror or str(error)).splitlines()[0].rstrip(".")
        if name == "cifar10":
            how = "downloaded to" if download else "read from"
            raise UsageError(
                f"CIFAR-10 could not be {how} --data-dir {str(root)!r}: {reason}; correct that, or take --dataset "
                "folder for a folder of images"
            ) from None
        raise UsageError(
            f"--data-dir must hold images in train/<class>/ and test/<class>/, got {str(root)!r}: {reason}; "
            "correct it, or leave it out to train on the digits"
        ) from None


def load_digits() -> Data:
    """Return the digits, uint8 [1, 8, 8] from 0 to 16; source and licence: examples/README.md."""
    with np.load(DIGITS) as arrays:
        images = torch.from_numpy(arrays["images"]).unsqueeze(1)
        labels = torch.from_numpy(arrays["labels"]).long()
    digits = TensorDataset(images, labels)
    return held_out(digits, digits, list("0123456789"), channels=1)


def load_cifar10(root: Path, download: bool) -> Data:
    """Return CIFAR-10 as torchvision keeps it: in memory."""
    try:
        train, test = CIFAR10(root, train=True, download=download), CIFAR10(root, train=False)
    except RuntimeError:  # torchvision's: not found, or damaged
        raise UsageError(
            f"--data-dir must hold CIFAR-10 as torchvision stores it, cifar-10-batches-py/, got {str(root)!r}, where "
            "it is not, or not whole; add --download, or take --dataset folder for a folder of images"
        ) from None
    return Data(train, test, train.classes, "its own")


def load_folders(root: Path, kind: str, decoder: str, fuse: bool) -> Data:
    """Return images in folders, or packed by ``fastload pack``; without test/ or val/ every fifth is for testing."""
    if not root.is_dir():
        raise FileNotFoundError(2, "No such file or directory")
    train_dir = root / "train" if (root / "train").is_dir() else root
    test_dir = next((root / name for name in ("test", "val") if (root / name).is_dir()), None)
    options: dict[str, Any] = {}
    if kind == "folder" and not fuse and decoder not in ("auto", "dali"):  # fusion chooses by the loader's argument
        options["loader"] = fastload.images.Loader(decoder)
    open_one: Any = ImageFolder if kind == "folder" else fastload.images.PackedImages
    train, test = open_one(train_dir, **options), open_one(test_dir or train_dir, **options)
    if len(train.classes) < 2 or train.classes != test.classes:
        raise UsageError(
            f"training and testing need the same class folders, two or more, got {train.classes} in "
            f"{str(train_dir)!r} and {test.classes} in {str(test_dir or train_dir)!r}; correct the folders"
        )
    if test_dir is None:
        return held_out(train, test, train.classes)
    return Data(train, test, train.classes, f"from {test_dir.name}/")


def held_out(train: Dataset[Any], test: Dataset[Any], classes: list[str], channels: int = 3) -> Data:
    """Return one set for both purposes: images 0, 5, 10, ... are for testing."""
    order = range(len(train))  # type: ignore[arg-type]
    kept = [index for index in order if index % 5]
    return Data(Subset(train, kept), Subset(test, order[::5]), classes, "every fifth", channels)


def with_transform(dataset: Dataset[Any], transform: Callable[[Any], Any]) -> Dataset[Any]:
    """Return the data set with another transform; it shares the files' names, or the images in memory."""
    twin = copy.copy(dataset)
    if isinstance(twin, Subset):
        twin.dataset = with_transform(twin.dataset, transform)
    elif isinstance(twin, ImageFolder | CIFAR10 | fastload.images.PackedImages):
        twin.transform = transform
    return twin


def sample_transform(recipe: Recipe, size: int, *, train: bool, dali: bool, resized: bool) -> v2.Compose:
    """Return what the workers do with each image; with DALI all that is done with it.

    Args:
        recipe: the crops.
        size: side of the result, in pixels.
        train: or test.
        dali: whether DALI does it, which reads all steps here.
        resized: whether the images have this size already.
    """
    if train and recipe.augment == "resized-crop":
        steps: list[Any] = [v2.RandomResizedCrop(size, scale=(recipe.min_scale, 1.0))]
        if dali and recipe.flip != "none":
            steps.append(v2.RandomHorizontalFlip())
    elif train or recipe.augment != "resized-crop":
        steps = [] if resized else [v2.Resize((size, size))]
    else:
        steps = [v2.Resize(recipe.test_resize or size), v2.CenterCrop(size)]
    if dali:
        values = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(list(recipe.mean), list(recipe.std))]
        return v2.Compose([*steps, v2.ToImage(), *values])
    return v2.Compose([*steps, v2.PILToTensor()])


def batch_transform(recipe: Recipe, size: int, num_classes: int, *, train: bool) -> T.Compose:
    """Return what is done with each batch on the device, each image by parameters of its own."""
    values = T.ToNormalized(recipe.mean, recipe.std)
    if not train:
        return T.Compose([values])
    steps: list[Any] = []
    if recipe.augment == "pad-crop" and recipe.padding:
        steps.append(T.RandomCrop(size, padding=recipe.padding, padding_mode=recipe.padding_mode))  # type: ignore[arg-type]
    if recipe.flip != "none":
        steps.append(T.RandomHorizontalFlip() if recipe.flip == "random" else T.AlternatingFlip())
    if recipe.trivial_augment:
        steps.append(T.TrivialAugmentWide(interpolation="bilinear"))
    steps.append(values)
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


def plain_images(data: Data, recipe: Recipe, count: int) -> Tensor:
    """Return some training images, evenly spread and not augmented, as the network gets them: [N, C, H, W], float32."""
    transform = sample_transform(recipe, recipe.image_size, train=False, dali=False, resized=False)
    dataset = with_transform(data.train, transform)
    total = len(dataset)  # type: ignore[arg-type]
    images = []
    for index in range(0, total, max(1, total // count)):
        with contextlib.suppress(*_DAMAGED):  # the loader will come to it, name it or replace it
            images.append(dataset[index][0])
    if not images:
        raise UsageError(f"not one of {total} training images can be loaded; correct the files")
    plain: Tensor = batch_transform(recipe, recipe.image_size, len(data.classes), train=False)(torch.stack(images))
    return plain


@dataclass(frozen=True, kw_only=True)
class Loading:
    """How batches are loaded: what makes it faster or slower, and changes no batch (but for --fuse and DALI)."""

    workers: int
    worker_method: str
    fuse: bool
    decoder: str
    resident: str | None
    channels_last: bool
    seed: int
    on_error: str = "raise"
    """What is done with an image that cannot be loaded; replace: in training; it is left out of the test then."""
    max_errors: int = 100

    def check(self, name: str, recipe: Recipe) -> None:
        """Raise :class:`UsageError` for what does not go together."""
        if name == "digits" and (self.fuse or self.decoder != "auto"):
            raise UsageError(
                "the digits are tensors: nothing of them is decoded or fused, got --fuse or --decoder; leave it out"
            )
        sizes = (recipe.image_size, recipe.first_image_size or 8, recipe.test_image_size or 8)
        if name == "digits" and (sizes != (8, 8, 8) or recipe.augment == "resized-crop"):
            raise UsageError(
                "the digits have 8 x 8 pixels and stay so; leave out the options of sizes, --augment resized-crop and "
                "recipes for larger images"
            )
        if self.resident is not None and recipe.augment == "resized-crop":
            raise UsageError(
                "--resident reads each image once, and --augment resized-crop takes another part of it each time; add "
                "--augment pad-crop"
            )
        if self.resident is not None and self.on_error != "raise":
            raise UsageError(
                f"--on-error {self.on_error} decides in each epoch, and --resident reads each image once; leave one out"
            )
        if self.decoder not in ("auto", "dali") and (name == "cifar10" or (name == "packed" and not self.fuse)):
            raise UsageError(
                f"--decoder {self.decoder} decodes files, and with --fuse packed images, got --dataset {name}; leave "
                "it out"
            )
        if self.decoder != "dali":
            return
        impossible = {
            "--dataset folder": name != "folder",
            "no --fuse": self.fuse,
            "no --resident": self.resident is not None,
            "no --on-error replace": self.on_error != "raise",
            "--augment none or resized-crop": recipe.augment == "pad-crop",
            "no --cutout, --erasing or --trivial-augment": bool(
                recipe.cutout or recipe.erasing or recipe.trivial_augment
            ),
            "no --mixup or --cutmix": recipe.mixup > 0 or recipe.cutmix > 0,
            "no --flip alternating": recipe.flip == "alternating",
        }
        if needs := [rule for rule, broken in impossible.items() if broken]:
            raise UsageError(f"--decoder dali reads, crops and normalises by itself; it needs {', '.join(needs)}")


def train_loader(data: Data, recipe: Recipe, size: int, loading: Loading, place: Place) -> Any:
    """Return this rank's share of the steps of an epoch, at one image size.

    The sampler cuts *global* batches into one piece for each rank: the batches, their order and the augmentation are
    the same for any number of ranks, and all ranks have equally many steps of full batches (others would wait for a
    rank that has one more, and a short batch is compiled anew). No list of indices is kept.

    Another size is another loader, with workers of its own: workers that live on have copies of the dataset, and would
    not hear of a transform that is changed here.
    """
    dataset = _sized(data.train, recipe, size, loading, train=True)
    batches = fastload.DistributedBatchSampler(
        dataset,  # type: ignore[arg-type]  # it has a length
        recipe.batch_size,
        seed=loading.seed,
        tail="drop",
        rank=place.rank,
        world_size=place.world_size,
    )
    transform = batch_transform(recipe, size, len(data.classes), train=True)
    return _loader(dataset, transform, loading, place, loading.on_error, batch_sampler=batches)


def test_loader(data: Data, recipe: Recipe, loading: Loading, place: Place, batch_size: int) -> Any:
    """Return this rank's share of the images for testing: of all ranks together each image exactly once.

    torch's sampler repeats some where they cannot be shared out evenly, and 10,000 images on 3 ranks count as 10,002.
    """
    size = recipe.test_image_size or recipe.image_size
    dataset = _sized(data.test, recipe, size, loading, train=False)
    share = fastload.DistributedSampler(dataset, place.world_size, place.rank, shuffle=False, tail="short")
    transform = batch_transform(recipe, size, len(data.classes), train=False)
    # None stands in for another: it would count twice. Ranks may have unequal numbers of batches here.
    on_error = "skip" if loading.on_error == "replace" else loading.on_error
    return _loader(dataset, transform, loading, place, on_error, batch_size=batch_size, sampler=share)


def _sized(dataset: Dataset[Any], recipe: Recipe, size: int, loading: Loading, *, train: bool) -> Dataset[Any]:
    resized = isinstance(dataset, CIFAR10) and size == 32
    dali = loading.decoder == "dali"
    return with_transform(dataset, sample_transform(recipe, size, train=train, dali=dali, resized=resized))


def damaged_images(*loaders: Any) -> dict[str, str]:
    """Return what these loaders could not load, by file, and why."""
    failed = [one for loader in loaders for one in loader.failed_samples()]
    return {one.file or f"index {one.index}": f"{one.error}: {one.message}" for one in failed}


def _loader(
    dataset: Dataset[Any], transform: T.Compose, loading: Loading, place: Place, on_error: str, **sharing: Any
) -> Any:
    workers: dict[str, Any] = {"num_workers": loading.workers, "worker_method": loading.worker_method}
    workers["persistent_workers"] = loading.workers > 0
    try:
        if loading.decoder == "dali":
            from fastload.images.dali import DALILoader

            return DALILoader(dataset, **sharing, **workers, device=place.device)
        if loading.workers and loading.worker_method == "multiprocessing":
            workers["worker_init_fn"] = ignore_signals
            if place.backend == "nccl" and place.world_size > 1:
                workers["multiprocessing_context"] = "forkserver"  # NCCL is not safe to fork after it was started
        return fastload.DataLoader(
            dataset,
            **sharing,
            **workers,
            device=place.device,
            batch_transform=transform,
            channels_last=loading.channels_last,
            resident=loading.resident,  # type: ignore[arg-type]
            fuse=loading.fuse,
            on_error=on_error,  # type: ignore[arg-type]
            max_errors=loading.max_errors,
            decoder="auto" if loading.decoder == "auto" or not loading.fuse else loading.decoder,  # type: ignore[arg-type]
        )
    except fastload.ConfigError as error:
        raise UsageError(str(error)) from None


def hashes_of(images: Tensor) -> list[str]:
    """Return a hash of each image of a batch as the network gets it: which sample it is, and how it was augmented."""
    rows = images.detach().float().cpu().contiguous()
    return [hashlib.blake2b(row.numpy().tobytes(), digest_size=8).hexdigest() for row in rows]
