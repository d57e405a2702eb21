"""The hyperparameters of a training, each also an option of train.py, and the recipes for digits and folders.

The recipes for known datasets, with their sources, are in cifar10.py and imagenet.py.
"""

from __future__ import annotations

import argparse
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any

from .errors import UsageError


def _option(default: Any, help_text: str, *choices: str) -> Any:
    return field(default=default, metadata={"help": help_text, "choices": choices or None})


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that changes what is learned. What only changes the speed is not part of it.

    Raises:
        UsageError: a value is out of its range.
    """

    source: str
    """Where the numbers come from."""

    model: str = _option("small", "network: one of those in examples/training/models.py")
    norm: str = _option("batch", "normalisation; none: convolutions with biases", "batch", "none")
    epochs: int = _option(20, "passes over the training images")
    batch_size: int = _option(64, "images in a step, over all processes")
    lr: float = _option(0.1, "peak learning rate")
    schedule: str = _option("cosine", "how the learning rate falls after the warm-up", "cosine", "linear", "constant")
    warmup: float = _option(0.05, "fraction of the steps in which the learning rate rises")
    first_lr: float = _option(0.0, "initial learning rate, as a fraction of --lr")
    final_lr: float = _option(0.0, "final learning rate, as a fraction of --lr")
    momentum: float = _option(0.9, "momentum of SGD")
    nesterov: bool = _option(True, "Nesterov momentum")
    weight_decay: float = _option(5e-4, "for parameters of two dimensions or more")
    norm_weight_decay: float = _option(5e-4, "for biases and normalisation")
    bias_lr_factor: float = _option(1.0, "learning rate of biases and normalisation, as a multiple of --lr")
    whitening_bias_epochs: int = _option(0, "epochs in which the bias of a whitening layer is trained; 0: all")
    clip_norm: float = _option(0.0, "maximum norm of the gradient; 0: no clipping")
    label_smoothing: float = _option(0.1, "label smoothing")
    mixup: float = _option(0.0, "alpha of MixUp; 0: off")
    cutmix: float = _option(0.0, "alpha of CutMix; 0: off; with --mixup each pair of images gets one of the two")
    ema_decay: float = _option(0.0, "decay of the moving average of the weights, which is tested; 0: off")
    lookahead: int = _option(0, "steps between two updates of Lookahead; 0: off")
    lookahead_decay: float = _option(0.95, "decay of Lookahead's slow weights, for each step, at the end")
    blur: bool = _option(False, "blur before each convolution with a stride")
    augment: str = _option(
        "pad-crop", "random crops of the padded image, or resized crops", "none", "pad-crop", "resized-crop"
    )
    padding: int = _option(4, "pixels that pad-crop adds on each side")
    padding_mode: str = _option("constant", "how pad-crop pads", "constant", "reflect")
    min_scale: float = _option(0.08, "smallest fraction of the image's area that resized-crop takes")
    flip: str = _option("random", "mirroring; alternating: every other epoch", "none", "random", "alternating")
    trivial_augment: bool = _option(False, "TrivialAugmentWide")
    cutout: int = _option(0, "side of the square that is erased; 0: off")
    erasing: float = _option(0.0, "probability of erasing a rectangle of the image")
    image_size: int = _option(32, "side of the training images, in pixels")
    first_image_size: int = _option(0, "side in the first third of the epochs, then growing to --image-size; 0: same")
    test_image_size: int = _option(0, "side of the test images; 0: --image-size")
    test_resize: int = _option(0, "shorter side before the centre crop of test images; 0: no crop")
    test_views: str = _option(
        "plain", "test-time augmentation, also tested in the last epoch", "plain", "flips", "flips-and-shifts"
    )

    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.25,)
    """Of pixels from 0 to 1."""

    def __post_init__(self) -> None:
        for option in option_fields():
            if (choices := option.metadata["choices"]) and getattr(self, option.name) not in choices:
                self._refuse(option.name, f"one of {', '.join(choices)}")
        for name in ("epochs", "batch_size", "image_size"):
            if getattr(self, name) < 1:
                self._refuse(name, "at least 1")
        fractions = ("warmup", "first_lr", "final_lr", "momentum", "label_smoothing", "ema_decay", "lookahead_decay")
        for name in fractions:
            if not 0 <= getattr(self, name) < 1:
                self._refuse(name, "at least 0 and below 1")
        if not 0 < self.min_scale <= 1:
            self._refuse("min_scale", "above 0 and at most 1")
        if not 0 <= self.erasing <= 1:
            self._refuse("erasing", "at least 0 and at most 1")
        for name in ("lr", "bias_lr_factor"):
            if not 0 < getattr(self, name) < float("inf"):
                self._refuse(name, "above 0 and finite")
        sizes = ("padding", "cutout", "first_image_size", "test_image_size", "test_resize")
        counts = ("lookahead", "whitening_bias_epochs")
        for name in (*sizes, *counts, "weight_decay", "norm_weight_decay", "clip_norm", "mixup", "cutmix"):
            if not 0 <= getattr(self, name) < float("inf"):
                self._refuse(name, "at least 0 and finite")
        if self.nesterov and self.momentum == 0:
            raise UsageError("--nesterov needs --momentum above 0, got 0; add --no-nesterov")

    def _refuse(self, name: str, rule: str) -> None:
        raise UsageError(f"--{name.replace('_', '-')} must be {rule}, got {getattr(self, name)}")


def option_fields() -> list[Field[Any]]:
    """Return the fields that are options of the command line."""
    return [one for one in fields(Recipe) if "help" in one.metadata]


def add_options(group: Any) -> None:
    """Add an option for each field to an argparse group; the default is None."""
    for option in option_fields():
        name = "--" + option.name.replace("_", "-")
        text, kind = option.metadata["help"], type(option.default)
        if kind is bool:
            group.add_argument(name, action=argparse.BooleanOptionalAction, default=None, help=text)
        else:
            group.add_argument(name, type=kind, choices=option.metadata["choices"], help=text)


def with_options(recipe: Recipe, args: argparse.Namespace) -> Recipe:
    """Return the recipe with the values that were given on the command line."""
    values = {option.name: getattr(args, option.name) for option in option_fields()}
    return replace(recipe, **{name: value for name, value in values.items() if value is not None})


RECIPES = {
    "digits": Recipe(
        source="this project: above 98 % in 20 epochs, ten seconds on two cores",
        schedule="linear",
        warmup=0.2,
        padding=1,
        flip="none",
        image_size=8,
        mean=(8 / 255,),  # 0 to 16 in the file, -1 to 1 for the network
        std=(8 / 255,),
    ),
    "folder": Recipe(
        source="this project: a starting point for your own images",
        schedule="linear",
        warmup=0.2,
        augment="resized-crop",
        min_scale=0.4,
    ),
}
