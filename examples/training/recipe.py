"""The numbers of a training, each an option of train.py, and the two recipes that need no data set of their own.

In: numbers. Out: a frozen :class:`Recipe`, or :class:`UsageError`. Those of known data sets stand in cifar10.py and
imagenet.py, with their sources.
"""

from __future__ import annotations

import argparse
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any

from .errors import UsageError


def _number(default: Any, text: str, *choices: str) -> Any:
    return field(default=default, metadata={"help": text, "choices": choices or None})


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides what is learnt. What only decides how fast is no part of it."""

    source: str
    """Where the numbers come from."""

    model: str = _number("small", "network; examples/training/models.py has them")
    norm: str = _number("batch", "normalisation; none: the convolutions have biases", "batch", "none")
    epochs: int = _number(20, "passes over the training images")
    batch_size: int = _number(64, "images of a step over all processes")
    lr: float = _number(0.1, "highest learning rate")
    schedule: str = _number("cosine", "how the learning rate falls after the warm-up", "cosine", "linear", "constant")
    warmup: float = _number(0.05, "share of the steps in which the learning rate rises")
    first_lr: float = _number(0.0, "learning rate from which it rises, as a share of --lr")
    final_lr: float = _number(0.0, "learning rate at the end, as a share of --lr")
    momentum: float = _number(0.9, "of SGD")
    nesterov: bool = _number(True, "Nesterov's momentum")
    weight_decay: float = _number(5e-4, "of weights of two dimensions and more")
    norm_weight_decay: float = _number(5e-4, "of biases and normalisation")
    bias_lr_factor: float = _number(1.0, "learning rate of biases and normalisation, as a multiple of --lr")
    whitening_bias_epochs: int = _number(0, "epochs in which the bias of a whitening layer learns; 0: all")
    clip_norm: float = _number(0.0, "longest gradient; 0: any")
    label_smoothing: float = _number(0.1, "share of the label that is spread over all classes")
    mixup: float = _number(0.0, "alpha of MixUp; 0: none")
    cutmix: float = _number(0.0, "alpha of CutMix; 0: none; with --mixup each pair gets one of the two")
    ema_decay: float = _number(0.0, "decay of the average of the weights that is tested; 0: the weights are tested")
    lookahead: int = _number(0, "steps after which the weights return to slow weights; 0: never")
    lookahead_decay: float = _number(0.95, "of the slow weights, for each step, at the end of the training")
    blur: bool = _number(False, "blur what a convolution with a stride gets")
    augment: str = _number(
        "pad-crop", "crops: of the padded image, or of any part of it", "none", "pad-crop", "resized-crop"
    )
    padding: int = _number(4, "pixels that pad-crop adds on each side")
    padding_mode: str = _number("constant", "what they are", "constant", "reflect")
    min_scale: float = _number(0.08, "smallest share of the image that resized-crop takes")
    flip: str = _number("random", "mirrored images; alternating: every second epoch", "none", "random", "alternating")
    trivial_augment: bool = _number(False, "one operation of TrivialAugmentWide for each image")
    cutout: int = _number(0, "side of the square that is erased; 0: none")
    erasing: float = _number(0.0, "share of the images of which a rectangle is erased")
    image_size: int = _number(32, "side of the images in training, in pixels")
    first_image_size: int = _number(0, "side in the first third of the epochs, growing to --image-size; 0: the same")
    test_image_size: int = _number(0, "side of the images in testing; 0: --image-size")
    test_resize: int = _number(0, "shorter side before testing's centre crop; 0: the same")
    test_views: str = _number(
        "plain", "what the last test also takes the mean score of", "plain", "flips", "flips-and-shifts"
    )

    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.25,)
    """Of pixels from 0 to 1."""

    def __post_init__(self) -> None:
        for number in options():
            if (choices := number.metadata["choices"]) and getattr(self, number.name) not in choices:
                self._refuse(number.name, f"one of {', '.join(choices)}")
        for name in ("epochs", "batch_size", "image_size"):
            if getattr(self, name) < 1:
                self._refuse(name, "at least 1")
        shares = ("warmup", "first_lr", "final_lr", "momentum", "label_smoothing", "ema_decay", "lookahead_decay")
        for name in shares:
            if not 0 <= getattr(self, name) < 1:
                self._refuse(name, "at least 0 and below 1")
        if not 0 < self.min_scale <= 1:
            self._refuse("min_scale", "above 0 and at most 1")
        if not 0 <= self.erasing <= 1:
            self._refuse("erasing", "at least 0 and at most 1")
        for name in ("lr", "bias_lr_factor"):
            if not 0 < getattr(self, name) < float("inf"):
                self._refuse(name, "above 0 and finite")
        whole = ("padding", "cutout", "first_image_size", "test_image_size", "test_resize")
        counts = ("lookahead", "whitening_bias_epochs")
        for name in (*whole, *counts, "weight_decay", "norm_weight_decay", "clip_norm", "mixup", "cutmix"):
            if not 0 <= getattr(self, name) < float("inf"):
                self._refuse(name, "at least 0 and finite")
        if self.nesterov and self.momentum == 0:
            raise UsageError("Nesterov's momentum needs a momentum above 0, got --momentum 0; add --no-nesterov")

    def _refuse(self, name: str, rule: str) -> None:
        raise UsageError(f"--{name.replace('_', '-')} must be {rule}, got {getattr(self, name)}; correct it")


def options() -> list[Field[Any]]:
    """Return the fields that are options of the command line."""
    return [number for number in fields(Recipe) if "help" in number.metadata]


def add_options(group: Any) -> None:
    """Give an argparse group one option for each number; those that are not given are None."""
    for number in options():
        name = "--" + number.name.replace("_", "-")
        text, kind = number.metadata["help"], type(number.default)
        if kind is bool:
            group.add_argument(name, action=argparse.BooleanOptionalAction, default=None, help=text)
        else:
            group.add_argument(name, type=kind, choices=number.metadata["choices"], help=text)


def with_options(recipe: Recipe, given: argparse.Namespace) -> Recipe:
    """Return the recipe with the numbers that were given on the command line."""
    values = {number.name: getattr(given, number.name) for number in options()}
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
        source="this project: a beginning for images of one's own",
        schedule="linear",
        warmup=0.2,
        augment="resized-crop",
        min_scale=0.4,
    ),
}
