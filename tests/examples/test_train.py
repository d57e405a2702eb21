"""The training as a user starts it, its steps against those of a plain loop, its log, and how it fails."""

from __future__ import annotations

import copy
import re
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import cifar10
import imagenet
import pytest
import torch
from scripts import run
from torch import nn
from training.data import batch_transform, load_digits, train_loader
from training.distributed import World
from training.metrics import flops_per_image
from training.models import build_network
from training.options import parse_arguments
from training.recipe import RECIPES
from trainings import EXAMPLES, Training, make_images, state_in

SCRIPT = "examples/train.py"
ROW = re.compile(r"^\| `(\w+)` \|([^|]+)\|([^|]*)\|$", re.MULTILINE)
EPOCH = re.compile(r"^epoch +(\d+)   loss +[\d.]+   test +[\d.]+% +[\d,]+ images/s   data wait +[\d.]+%$", re.MULTILINE)


def accuracy_in(output: str) -> float:
    done = re.search(r"^done in [\d.]+ s   test accuracy ([\d.]+)% +[\d,]+ images/s   data wait", output, re.MULTILINE)
    assert done, output
    return float(done[1])


@pytest.mark.thorough
def test_two_processes_learn_the_digits() -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    output = run(*torchrun, SCRIPT, "--epochs", "10", "--seed", "0")
    assert accuracy_in(output) >= 97.0
    lines = output.splitlines()
    assert lines[0] == "1,437 images to train on, 360 to test (every fifth), 10 classes"
    assert lines[1].startswith("2 processes on ")
    assert [int(number) for number in EPOCH.findall(output)] == list(range(1, 11))  # only rank 0 prints
    assert all(line.isprintable() and len(line) <= 80 for line in lines)


@pytest.mark.parametrize(("precision", "ranks"), [("fp32", 1), ("fp32", 2), ("fp16", 1)])
def test_the_loop_makes_the_steps_of_a_plain_one(tmp_path: Path, precision: str, ranks: int) -> None:
    numbers: dict[str, Any] = {"epochs": 1, "batch_size": 48, "label_smoothing": 0.2}
    if ranks == 1:  # images are mixed with those of their own rank
        numbers |= {"mixup": 0.4, "cutmix": 1.0}
    numbers |= {"ema_decay": 0.7, "clip_norm": 0.05, "norm": "none"}
    words = [word for name, value in numbers.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    words += ["--limit-batches", "4", "--workers", "0", "--micro-batch-size", "20", "--precision", precision]
    with Training(tmp_path, *words, "--out", str(tmp_path), ranks=ranks) as training:
        training.finish()
    found, logged = state_in(tmp_path), training.logged("step")

    args, recipe = parse_arguments(RECIPES, words)
    batches = train_loader(args, recipe, load_digits(), World(), 8)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = build_network("small", 1, 10, "none")
    initial, average = copy.deepcopy(network.state_dict()), copy.deepcopy(network)
    optimizer = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    close = 1e-4 if precision == "fp32" else 0.02
    for step, (images, labels) in zip(range(4), batches, strict=False):
        mixed = labels if ranks == 1 else nn.functional.one_hot(labels, 10)
        optimizer.param_groups[0]["lr"] = logged[step]["lr"]
        targets = 0.8 * mixed + 0.2 / 10
        loss = -(targets * network(images).log_softmax(dim=1)).sum(dim=1).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 0.05)
        optimizer.step()
        for mean, value in zip(average.parameters(), network.parameters(), strict=True):
            mean.data = value.detach().clone() if step == 0 else 0.7 * mean.data + 0.3 * value.detach()
        if ranks == 1:  # else it is that of the first rank's images
            assert logged[step]["loss"] == pytest.approx(loss.item(), rel=close)
    assert [one["lr"] for one in logged] == pytest.approx([0.1, 0.075, 0.05, 0.025])  # linearly to 0
    assert [group["lr"] for group in found["optimizer"]["param_groups"]] == pytest.approx([0.025] * 2)
    for name, module in (("model", network), ("average", average)):
        initial_weights, ours, plain = (
            torch.cat([value.flatten() for value in values.values()])
            for values in (initial, found[name], module.state_dict())
        )
        assert (ours - plain).norm() < close * (plain - initial_weights).norm(), name


def test_data_dir_trains_on_image_folders(tmp_path: Path) -> None:
    make_images(tmp_path / "images" / "train", 12)
    make_images(tmp_path / "images" / "val", 5)
    words = ("--data-dir", str(tmp_path / "images"), "--image-size", "16", "--epochs", "1", "--batch-size", "12")
    with Training(tmp_path, *words, ranks=2) as training:
        training.finish()
    assert training.lines[0] == "36 images to train on, 15 to test (from val/), 3 classes"
    # Fifteen images on two ranks: if one counted twice, this would be a multiple of a sixteenth.
    accuracy = accuracy_in("\n".join(training.lines))
    assert accuracy == pytest.approx(100 * round(accuracy * 15 / 100) / 15, abs=0.006)


def test_json_lines_have_what_the_readme_says_and_each_image_counts_once_on_any_number_of_ranks(tmp_path: Path) -> None:
    words = ("--epochs", "1", "--limit-batches", "3", "--batch-size", "42", "--workers", "0", "--peak-tflops", "1")
    with Training(tmp_path, *words, "--out", str(tmp_path), ranks=2) as training:
        training.finish()
    logged = training.logged()
    table = {kind: names for kind, _, names in ROW.findall((EXAMPLES / "README.md").read_text())}
    assert [one["kind"] for one in logged] == ["start", *["step"] * 3, "save", "epoch", "end"]
    for one in logged:
        documented = set(re.findall(r"`(\w+)`", table[one["kind"]])) | {"kind", "step"}
        assert documented < one.keys() if one["kind"] == "start" else one.keys() == documented, one["kind"]
    assert re.findall(r"`(\w+)`", table["stop"]) == ["signal"]
    (epoch,) = training.logged("epoch")
    assert all(0 < wait < 1 for wait in epoch["data_wait_of_ranks"])
    assert epoch["images_per_s"] * epoch["seconds"] == pytest.approx(3 * 42)
    with Training(tmp_path, *words, "--out", str(tmp_path), ranks=7) as training:  # 360 = 7 * 51 + 3
        training.finish()
    assert training.logged("step") == []  # it was saved after its last step: only the test is left
    (of_seven,) = training.logged("epoch")
    for name in ("test_correct", "test_images", "test_accuracy"):
        assert of_seven[name] == epoch[name]
    assert of_seven["test_loss"] == pytest.approx(epoch["test_loss"], rel=1e-5)


def test_every_recipe_has_a_source_a_network_and_transforms() -> None:
    for recipe in [*RECIPES.values(), *cifar10.RECIPES.values(), *imagenet.RECIPES.values()]:
        assert len(recipe.source) > 30
        channels = 1 if recipe.image_size == 8 else 3
        with torch.device("meta"):
            network = build_network(recipe.model, channels, 10, recipe.norm)
        assert flops_per_image(network, channels, recipe.image_size) > 1e6
        side = min(recipe.image_size, 32)
        images = torch.zeros(4, channels, side, side, dtype=torch.uint8)
        generator = torch.Generator().manual_seed(0)
        recipe = replace(recipe, flip="random")  # alternating flips need a loader's epoch
        transform = batch_transform(recipe, side, 10, train=True)
        out = transform(images, torch.arange(4), generator=generator)
        assert out[0].shape == images.shape
        assert out[0].dtype == torch.float32


# Faults.


def test_an_empty_data_dir_is_reported_by_rank_0_only(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with Training(tmp_path, "--data-dir", str(tmp_path / "empty"), ranks=2) as training:
        assert training.end() == [2, 2]
    assert training.errors().count("train.py: error: --data-dir must contain images") == 1
    assert f'{SCRIPT}", line' not in training.errors()  # no traceback of the example


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "options", "codes", "said"),
    [
        (["--lr", "0"], {"ranks": 2}, [2, 2], "--lr must be above 0 and finite, got 0.0"),
        (["--join-timeout", "0.3"], {"ranks": 3, "started": 1}, [1], "rank 1, 2 of 3 did not start within 0.3 s"),
        (["--norm", "none", "--lr", "1e18", "--warmup", "0"], {"ranks": 2}, [1, 1], "this step was not saved"),
    ],
)
def test_what_cannot_go_on_exits_all_ranks_with_one_line(words, options, codes, said, tmp_path: Path) -> None:
    with Training(tmp_path, *words, "--workers", "0", "--out", str(tmp_path / "run"), **options) as training:
        assert training.end() == codes
    assert training.errors().count("error:") == 1
    assert said in training.errors()
    assert not (tmp_path / "run" / "checkpoint.pt").exists()


@pytest.mark.slow
def test_a_folder_is_locked_while_a_run_uses_it(tmp_path: Path) -> None:
    words = ("--epochs", "1000", "--workers", "1", "--save-every", "1", "--out", str(tmp_path / "run"))
    with Training(tmp_path, *words) as first:
        first.until(2)
        with Training(tmp_path, *words) as second:
            assert second.end() == [2]
            pid = first.processes[0].pid
            assert f"is in use by another run, process {pid} on {socket.gethostname()}; wait" in second.errors()
        first.kill()
