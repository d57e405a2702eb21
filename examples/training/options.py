"""The command line, and the checks of what does not fit together."""

from __future__ import annotations

import argparse
import copy
import math
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .data import Data
from .distributed import World
from .errors import Parser, UsageError
from .models import MODELS
from .recipe import Recipe, add_options, option_fields, with_options
from .schedule import micro_batches
from .startup import JOIN_TIMEOUT_S

DTYPES = {"fp32": None, "tf32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def parse_arguments(recipes: dict[str, Recipe], words: Sequence[str] | None = None) -> tuple[Namespace, Recipe]:
    """Return the options of the command line, and the recipe with the numbers that they change."""
    parser = _parser(recipes)
    args = parser.parse_args(words)
    args.dataset = args.dataset or ("digits" if args.data_dir is None else "folder")
    if args.model is not None and args.model not in MODELS:
        parser.error(f"argument --model: must be one of {', '.join(MODELS)}, got {args.model}")
    for name in ("timeout", "join_timeout"):
        if not 0 < (seconds := getattr(args, name)) <= 1e8:
            option = name.replace("_", "-")
            parser.error(f"argument --{option}: must be above 0 and at most 1e8 seconds, got {seconds}")
    if args.peak_tflops is not None and not 0 < args.peak_tflops < math.inf:
        parser.error(f"argument --peak-tflops: must be above 0 and finite, got {args.peak_tflops}")
    if args.debug_samples is not None and not Path(args.debug_samples).absolute().parent.is_dir():
        parser.error(f"argument --debug-samples: must be in an existing folder, got {args.debug_samples}")
    if args.seed >= 1 << 63:
        parser.error(f"argument --seed: must be below 2^63, got {args.seed}")
    if args.compile and args.compile not in (known := torch.compiler.list_backends(exclude_tags=())):
        parser.error(f"argument --compile: must be one of {', '.join(known)}, got {args.compile}")
    # Options that would otherwise be ignored.
    if args.repeat_batch and args.out is not None:
        parser.error("argument --repeat-batch: is for measuring and is not saved; leave out --out")
    if args.save_every and args.out is None:
        parser.error("argument --save-every: needs --out, the folder to save to")
    if args.dataset == "digits" and args.data_dir is not None:
        parser.error("argument --data-dir: is not used by --dataset digits; leave out one of them")
    if args.download and args.dataset != "cifar10":
        parser.error(f"argument --download: is for --dataset cifar10 only, got --dataset {args.dataset}")
    default = {"digits": "digits", "cifar10": "cifar10-fast"}.get(args.dataset, "folder")
    recipe = with_options(recipes[args.recipe or default], args)
    if args.dataset == "digits" and recipe.trivial_augment:
        parser.error("argument --trivial-augment: is for images of colours, and --dataset digits has none")
    return args, recipe


def _parser(recipes: dict[str, Recipe]) -> Parser:
    def positive(text: str) -> int:
        if (number := int(text)) < 1:
            raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
        return number

    def count(text: str) -> int:
        if (number := int(text)) < 0:
            raise argparse.ArgumentTypeError(f"must be at least 0, got {number}")
        return number

    parser = Parser(prog="train.py", description="Train an image classifier: digits, CIFAR-10, ImageNet, your images.")
    add = parser.add_argument_group("data").add_argument
    add("--dataset", choices=["digits", "cifar10", "folder", "packed"], help="default: folder with --data-dir")
    add("--data-dir", type=Path, help="images, or packed images, in train/<class>/ and test/<class>/")
    add("--download", action="store_true", help="download CIFAR-10 if it is missing")
    add("--fuse", action="store_true", help="decode, crop and resize in one call")
    add("--resident", choices=["device", "host", "auto"], help="keep all images in memory")
    add("--workers", type=count, default=2, help="of each process; 0: load in the training process")
    add("--worker-method", choices=["multiprocessing", "thread", "ray"], default="multiprocessing")
    add("--on-error", choices=["raise", "replace"], default="raise", help="what to do with damaged images")
    add("--max-errors", type=count, default=100, help="damaged images of a process in an epoch, with replace")
    add = parser.add_argument_group("speed and memory").add_argument
    add("--micro-batch-size", type=positive, help="images of a process in one forward pass; gradients are accumulated")
    add("--precision", choices=list(DTYPES), default="fp32", help="default: %(default)s")
    add("--channels-last", action="store_true", help="memory format that is faster for convolutions on GPUs")
    add("--compile", nargs="?", const="inductor", metavar="BACKEND", help="torch.compile")
    add("--sync-bn", action="store_true", help="batch statistics over all GPUs, for small batches on each")
    add("--threads", type=positive, help="of each process on the CPU; default: its cores less --workers")
    add = parser.add_argument_group("run").add_argument
    add("--seed", type=count, default=0)
    add("--deterministic", action="store_true", help="bit-identical results on the same number of processes")
    add("--out", type=Path, metavar="DIR", help="save the run to this folder, or resume it")
    add("--save-every", type=count, default=0, metavar="STEPS", help="also save within epochs; 0: off")
    add("--limit-batches", type=positive, help="steps in an epoch, for a quick try")
    add("--repeat-batch", action="store_true", help="train on one batch again and again: steps without data loading")
    add("--init-method", metavar="URL", help="file:// or tcp://, for init_process_group; default: env://")
    add("--timeout", type=float, default=600.0, help="of collectives, in seconds")
    add("--join-timeout", type=float, default=JOIN_TIMEOUT_S, help="for all processes to start, in seconds")
    add = parser.add_argument_group("output").add_argument
    add("--json", type=Path, metavar="FILE", help="write JSON lines; default: log.jsonl in --out")
    add("--log-every", type=positive, default=50, metavar="STEPS")
    add("--tensorboard", type=Path, metavar="DIR")
    add("--peak-tflops", type=float, help="of the device in this precision, for MFU; default: if known")
    add("--debug-samples", metavar="FILE", help="write hashes of each step's images to FILE.rank<n>")
    group = parser.add_argument_group("recipe, and its hyperparameters")
    group.add_argument("--recipe", choices=list(recipes), help="default: digits, folder or cifar10-fast, by --dataset")
    add_options(group)
    return parser


def settings_of(args: Namespace, recipe: Recipe, data: Data) -> dict[str, Any]:
    """Return everything that changes what is learned; a resumed run must have the same settings."""
    values = asdict(recipe)
    settings: dict[str, Any] = {f"--{one.name.replace('_', '-')}": values[one.name] for one in option_fields()}
    for name in ("dataset", "seed", "precision", "fuse", "limit_batches"):
        settings[f"--{name.replace('_', '-')}"] = getattr(args, name)
    mean, std = list(recipe.mean), list(recipe.std)
    return settings | {"mean": mean, "std": std, "images": data.num_train, "classes": data.classes}


def check_options(args: Namespace, recipe: Recipe, data: Data, world: World) -> None:
    """Raise :class:`UsageError` if the options do not fit together, the data, or the machine."""
    if args.precision == "tf32" and world.device.type != "cuda":
        raise UsageError("--precision tf32 needs a GPU, and this run is on the CPU; use fp32")
    if args.sync_bn and world.device.type != "cuda":
        raise UsageError("--sync-bn needs a GPU, and this run is on the CPU; leave it out")
    check_loading(args, recipe)
    batch_size, share = recipe.batch_size, recipe.batch_size // world.size
    if batch_size % world.size:
        raise UsageError(
            f"--batch-size counts the images of all processes and must be a multiple of their number, got {batch_size} "
            f"for {world.size} processes; use {-(-batch_size // world.size) * world.size}"
        )
    if data.num_train < batch_size:
        raise UsageError(
            f"an epoch must have at least one full step, got {data.num_train} training images for --batch-size "
            f"{batch_size}; use a smaller --batch-size"
        )
    if (recipe.mixup or recipe.cutmix) and share % 2:
        raise UsageError(
            f"--mixup and --cutmix mix pairs of images, so each process needs an even number, got {share} for each of "
            f"{world.size}; use another --batch-size"
        )
    train_size = min(recipe.image_size, recipe.first_image_size or recipe.image_size)
    test_size = recipe.test_image_size or recipe.image_size
    minimum = 9 if recipe.model in ("proxy", "airbench") else 8
    if min(train_size, test_size) < minimum:
        raise UsageError(
            f"--model {recipe.model} needs images of at least {minimum} x {minimum} pixels, got "
            f"{min(train_size, test_size)}"
        )
    if recipe.augment == "resized-crop" and 0 < recipe.test_resize < test_size:
        raise UsageError(
            f"--test-resize must be at least the size of the test images, {test_size}, or they would have a black "
            f"border, got {recipe.test_resize}"
        )
    if recipe.augment == "pad-crop" and recipe.padding_mode == "reflect" and recipe.padding >= train_size:
        raise UsageError(
            f"--padding-mode reflect needs --padding below the image size {train_size}, got {recipe.padding}"
        )


def check_loading(args: Namespace, recipe: Recipe) -> None:
    """Raise :class:`UsageError` if the options of loading do not fit together."""
    name = args.dataset
    sizes = (recipe.image_size, recipe.first_image_size or 8, recipe.test_image_size or 8)
    if name == "digits" and args.fuse:
        raise UsageError("the digits are tensors that need no decoding; leave out --fuse")
    if name == "digits" and (sizes != (8, 8, 8) or recipe.augment == "resized-crop"):
        raise UsageError(
            "the digits have 8 x 8 pixels and are not resized; leave out the options for image sizes, --augment "
            "resized-crop and recipes for larger images"
        )
    if args.resident is not None and recipe.augment == "resized-crop":
        raise UsageError(
            "--resident loads each image once, and --augment resized-crop needs another part of it in each epoch; add "
            "--augment pad-crop"
        )
    if args.resident is not None and args.on_error != "raise":
        raise UsageError(f"--resident loads each image once and cannot use --on-error {args.on_error}; leave out one")


def check_batch_norm(args: Namespace, recipe: Recipe, network: nn.Module, channels: int, world: World) -> None:
    """Raise :class:`UsageError` if a micro-batch has one value for each channel, which batch normalisation refuses."""
    slices = micro_batches(recipe.batch_size // world.size, args.micro_batch_size)
    images = min(one.stop - one.start for one in slices)
    if images > 1 or (args.sync_bn and world.size > 1):
        return
    side = min(recipe.image_size, recipe.first_image_size or recipe.image_size)
    try:
        copy.deepcopy(network).to("meta").train()(torch.empty(images, channels, side, side, device="meta"))
    except ValueError:
        raise UsageError(
            f"batch normalisation needs more than one value for each channel, and --model {recipe.model} leaves one of "
            f"a single image of {side} x {side} pixels; use larger images, a larger --batch-size and "
            "--micro-batch-size, or --norm none"
        ) from None
