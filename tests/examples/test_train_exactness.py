"""The loop against a plain one; its options for speed; what is tested and counted on any number of ranks; the log."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import cifar10
import imagenet
import pytest
import torch
from torch import nn
from training.data import batch_transform, load_digits, train_loader
from training.distributed import World
from training.metrics import flops_per_image
from training.models import build_network
from training.options import parse_arguments
from training.recipe import RECIPES
from trainings import EXAMPLES, Training, state_in

RUN = ("--epochs", "1", "--limit-batches", "6", "--batch-size", "42", "--workers", "0", "--ema-decay", "0.8")
ROW = re.compile(r"^\| `(\w+)` \|([^|]+)\|([^|]*)\|$", re.MULTILINE)


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


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """The folder of a run on two ranks, and its JSON lines."""
    folder = tmp_path_factory.mktemp("trained")
    with Training(folder, *RUN, "--peak-tflops", "1", "--out", str(folder), ranks=2) as training:
        training.finish()
        return folder, training.logged()


@pytest.mark.parametrize("ranks", [1, 7])
def test_each_image_counts_once_also_if_the_ranks_do_not_divide_their_number(
    trained: tuple[Path, list[dict[str, Any]]], tmp_path: Path, ranks: int
) -> None:
    folder, logged = trained
    (of_two,) = (one for one in logged if one["kind"] == "epoch")
    (tmp_path / "checkpoint.pt").write_bytes((folder / "checkpoint.pt").read_bytes())
    with Training(tmp_path, *RUN, "--out", str(tmp_path), ranks=ranks) as training:  # 360 = 7 * 51 + 3
        training.finish()
        assert training.logged("step") == []  # it was saved after its last step: only the test is left
        (epoch,) = training.logged("epoch")
    for name in ("test_correct", "test_images", "test_accuracy"):
        assert epoch[name] == of_two[name]
    assert epoch["test_loss"] == pytest.approx(of_two["test_loss"], rel=1e-5)


def test_json_lines_have_what_the_readme_says(trained: tuple[Path, list[dict[str, Any]]]) -> None:
    _, logged = trained
    table = {kind: names for kind, _, names in ROW.findall((EXAMPLES / "README.md").read_text())}
    assert [one["kind"] for one in logged] == ["start", *["step"] * 6, "save", "epoch", "end"]
    for one in logged:
        documented = set(re.findall(r"`(\w+)`", table[one["kind"]])) | {"kind", "step"}
        if one["kind"] == "start":
            assert documented < one.keys()
            assert one["--ema-decay"] == 0.8
        else:
            assert one.keys() == documented, one["kind"]
    assert re.findall(r"`(\w+)`", table["stop"]) == ["signal"]
    epoch = logged[-2]
    assert len(epoch["data_wait_of_ranks"]) == 2
    assert all(0 < wait < 1 for wait in epoch["data_wait_of_ranks"])
    assert epoch["images_per_s"] * epoch["seconds"] == pytest.approx(6 * 42)
    assert [one["step"] for one in logged] == [0, 1, 2, 3, 4, 5, 6, 6, 6, 6]


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
