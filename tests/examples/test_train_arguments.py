"""Wrong arguments and data are one line with the remedy, and exit code 2."""

from __future__ import annotations

import argparse
import sys
import urllib.error
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cifar10
import imagenet
import pytest
import torch
import trainings
from training.data import batch_transform
from training.metrics import flops_per_image
from training.models import build_network
from training.options import parse_arguments
from training.recipe import RECIPES


def test_every_recipe_has_a_source_a_network_and_transforms() -> None:
    for recipe in [*RECIPES.values(), *cifar10.RECIPES.values(), *imagenet.RECIPES.values()]:
        assert len(recipe.source) > 30
        channels = 1 if recipe.image_size == 8 else 3
        with torch.device("meta"):
            network = build_network(recipe.model, channels, 10, recipe.norm)
        assert flops_per_image(network, channels, recipe.image_size) > 1e6
        images = torch.zeros(4, channels, recipe.image_size, recipe.image_size, dtype=torch.uint8)
        generator = torch.Generator().manual_seed(0)
        recipe = replace(recipe, flip="random")  # alternating flips need a loader's epoch
        transform = batch_transform(recipe, recipe.image_size, 10, train=True)
        out = transform(images, torch.arange(4), generator=generator)
        assert out[0].shape == images.shape
        assert out[0].dtype == torch.float32


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Call train.py's ``main`` with wrong arguments, and return the error that it prints."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    threads = torch.get_num_threads()

    def call(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
        with torch.random.fork_rng(devices=[]), pytest.raises(SystemExit) as exited:
            trainings.train_module().main()
        torch.set_num_threads(threads)
        assert exited.value.code == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        return printed.err.splitlines()[-1]

    return call


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--trivial-augment", "--trivial-augment: is for images of colours, and --dataset digits has none"),
        ("--epochs 0", "--epochs must be at least 1, got 0"),
        ("--lr 0", "--lr must be above 0 and finite, got 0.0"),
        ("--lr nan", "--lr must be above 0 and finite, got nan"),
        ("--warmup 1", "--warmup must be at least 0 and below 1, got 1.0"),
        ("--min-scale 0", "--min-scale must be above 0 and at most 1"),
        ("--erasing 1.5", "--erasing must be at least 0 and at most 1, got 1.5"),
        ("--cutout -1", "--cutout must be at least 0"),
        ("--momentum 0", "--nesterov needs --momentum above 0"),
        ("--schedule steps", "argument --schedule: invalid choice: 'steps'"),
        ("--fuse", "the digits are tensors that need no decoding; leave out --fuse"),
        ("--image-size 32", "the digits have 8 x 8 pixels and are not resized"),
        ("--model proxy", "--model proxy needs images of at least 9 x 9 pixels, got 8"),
        ("--model resnet50", "resnet50 is torchvision's"),
        ("--model mobilenetv2-cifar --micro-batch-size 1", "leaves one of a single image of 8 x 8 pixels"),
        ("--model resnet19", "argument --model: must be one of small, "),
        ("--dataset cifar10", "--dataset cifar10 needs --data-dir"),
        ("--dataset cifar10 --data-dir /nowhere", "--data-dir must contain CIFAR-10 as torchvision stores it"),
        ("--dataset packed --data-dir /nowhere", "--data-dir must contain images in train/<class>/"),
        ("--batch-size 15 --mixup 0.2", "--mixup and --cutmix mix pairs of images"),
        ("--micro-batch-size 0", "argument --micro-batch-size: must be at least 1, got 0"),
        ("--repeat-batch --out x", "argument --repeat-batch: is for measuring and is not saved"),
        ("--sync-bn", "--sync-bn needs a GPU"),
        ("--out /proc/nowhere", "--out must be a writable folder, got '/proc/nowhere'"),
        ("--dataset digits --data-dir x", "argument --data-dir: is not used by --dataset digits"),
        ("--save-every 5", "argument --save-every: needs --out"),
        ("--debug-samples /nowhere/x", "argument --debug-samples: must be in an existing folder"),
        ("--timeout nan", "argument --timeout: must be above 0 and at most 1e8 seconds, got nan"),
        ("--seed 99999999999999999999", "argument --seed: must be below 2^63"),
        ("--padding 8 --padding-mode reflect", "--padding-mode reflect needs --padding below the image size 8, got 8"),
    ],
)
def test_arguments_that_do_not_fit_are_one_line_with_the_remedy(
    refused: Callable[..., str], words: str, message: str
) -> None:
    if "needs a GPU" in message and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert message in refused(*words.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--resident host", "--resident loads each image once, and --augment resized-crop needs another part"),
        ("--test-image-size 4", "--model small needs images of at least 8 x 8 pixels, got 4"),
        ("--test-resize 31", "--test-resize must be at least the size of the test images, 32, or they would have"),
        ("--batch-size 64", "an epoch must have at least one full step, got 24 training images for --batch-size 64"),
    ],
)
def test_options_that_images_do_not_allow_are_errors(
    refused: Callable[..., str], tmp_path: Path, words: str, message: str
) -> None:
    trainings.make_images(tmp_path, 10)
    assert message in refused("--data-dir", str(tmp_path), "--batch-size", "4", *words.split())


def test_a_missing_folder_a_failed_download_and_other_classes_for_testing_are_errors(
    refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = tmp_path / "nowhere"
    assert refused("--data-dir", str(missing)) == (
        f"train.py: error: --data-dir must contain images in train/<class>/ and test/<class>/, got {str(missing)!r}: "
        "No such file or directory; correct it, or leave it out to train on the digits"
    )

    def no_network(*arguments: Any, **named: Any) -> None:
        raise urllib.error.URLError("no route")

    monkeypatch.setattr("training.data.CIFAR10", no_network)
    message = refused("--dataset", "cifar10", "--data-dir", str(tmp_path), "--download")
    assert f"CIFAR-10 could not be downloaded to --data-dir {str(tmp_path)!r}: <urlopen error no route>" in message
    for part in ("train", "test"):
        trainings.make_images(tmp_path / part, 1)
    (tmp_path / "test" / "red").rename(tmp_path / "test" / "pink")
    message = refused("--data-dir", str(tmp_path))
    assert "need the same class folders, two or more, got ['blue', 'green', 'red'] in " in message


def test_no_option_is_an_abbreviation_of_one_of_torchruns(monkeypatch: pytest.MonkeyPatch) -> None:
    # torchrun would take it for its own, also after the script's name.
    from torch.distributed.run import get_args_parser

    parsers: list[argparse.ArgumentParser] = []
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", lambda parser, words: parsers.append(parser) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        parse_arguments(RECIPES)
    ours = {name for action in parsers[0]._actions for name in action.option_strings} - {"-h", "--help"}
    theirs = {name for action in get_args_parser()._actions for name in action.option_strings}
    assert len(ours) > 50
    assert not [(one, other) for one in ours for other in theirs if other.startswith(one)]
