"""The training's options for speed, memory and data, each in a run of a few steps."""

from __future__ import annotations

import functools
import math
from pathlib import Path

import pytest
import torch
from training import checkpoint
from training.metrics import flops_per_image
from training.models import build_network
from trainings import Training, make_images, samples, train_module

FEW = ("--epochs", "1", "--limit-batches", "4", "--workers", "0")


def trained(folder: Path, *words: str, ranks: int = 1) -> Training:
    """Train to the end."""
    with Training(folder, *words, ranks=ranks) as training:
        training.finish()
    return training


@pytest.mark.slow
def test_fp16_skips_steps_that_overflow_and_is_saved_and_resumed_in_fp32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scale = 2.0**20  # so large that gradients are infinite: those steps are skipped, and each halves it
    monkeypatch.setattr(torch.amp, "GradScaler", functools.partial(torch.amp.GradScaler, init_scale=scale))
    words = [*FEW, "--precision", "fp16", "--channels-last", "--clip-norm", "1", "--save-every", "3", "--epochs", "2"]
    with Training(tmp_path, *words, "--out", str(tmp_path)) as training:
        training.until(5)
        training.kill()
    training = trained(tmp_path, *words, "--out", str(tmp_path))
    assert training.logged("start")[0]["step"] >= 3
    path = tmp_path / "checkpoint.pt"
    state = checkpoint.parse(path.read_bytes(), path)
    assert state["step"] == 8
    skipped = math.log2(scale / state["scaler"]["scale"])
    assert 1 <= skipped <= 6
    assert state["scaler"]["_growth_tracker"] == 8 - skipped  # steps before and after resuming
    assert all(value.dtype != torch.float16 for value in state["model"].values())
    assert 0 < training.logged("epoch")[-1]["loss"] < 3


def test_a_compiled_run_on_two_ranks_is_saved_with_the_names_of_the_plain_network(tmp_path: Path) -> None:
    words = [*FEW, "--precision", "bf16", "--compile", "eager", "--micro-batch-size", "20", "--ema-decay", "0.5"]
    training = trained(tmp_path, *words, "--out", str(tmp_path), ranks=2)
    assert 0 < training.logged("epoch")[0]["loss"] < 3
    path = tmp_path / "checkpoint.pt"
    state = checkpoint.parse(path.read_bytes(), path)
    assert state["scaler"] == {}  # bfloat16 needs none
    assert next(iter(state["model"])) == "0.weight"


@pytest.mark.slow
def test_options_for_speed_give_the_same_samples(tmp_path: Path) -> None:
    make_images(tmp_path / "images" / "train", 16)
    make_images(tmp_path / "images" / "test", 4)
    common = ("--data-dir", str(tmp_path / "images"), "--batch-size", "12", "--image-size", "16", "--epochs", "1")
    ways = {
        "plain": ("--workers", "0"),
        "workers": ("--workers", "2"),
        "threads": ("--workers", "1", "--worker-method", "thread"),
        "resident": ("--workers", "1", "--resident", "host"),
        "ranks": ("--workers", "0"),
    }
    found = {}
    for name, words in ways.items():
        more = ("--augment", "pad-crop", "--flip", "alternating", "--debug-samples", str(tmp_path / name))
        ranks = 2 if name == "ranks" else 1
        training = trained(tmp_path, *common, *more, *words, ranks=ranks)
        assert training.logged("epoch")[0]["test_images"] == 12
        found[name] = samples(tmp_path, ranks, name)
    assert len(found["plain"]) == 4
    for name, steps in found.items():
        assert steps == found["plain"], name


@pytest.mark.slow
def test_a_run_with_growing_images_resumes_at_its_size(tmp_path: Path) -> None:
    make_images(tmp_path / "images", 20, side=40)
    words = ["--data-dir", str(tmp_path / "images"), "--batch-size", "12", "--epochs", "3", "--workers", "1"]
    words += ["--first-image-size", "16", "--image-size", "32", "--save-every", "1", "--model", "small"]
    trained(tmp_path, *words, "--out", str(tmp_path / "other"), "--debug-samples", str(tmp_path / "whole"))
    with Training(tmp_path, *words, "--out", str(tmp_path / "run")) as training:
        training.until(6)  # of 12
        training.kill()
    training = trained(tmp_path, *words, "--out", str(tmp_path / "run"), "--debug-samples", str(tmp_path / "rest"))
    rest, whole = samples(tmp_path, 1, "rest"), samples(tmp_path, 1, "whole")
    assert len(whole) == 12
    assert 5 <= min(rest) <= 7
    assert rest == {step: times for step, times in whole.items() if step >= min(rest)}


def test_packed_images_can_be_trained_on_and_a_batch_can_be_repeated(tmp_path: Path) -> None:
    from fastload.cli import main as fastload_command

    make_images(tmp_path / "images", 10)
    assert fastload_command(["pack", str(tmp_path / "images"), str(tmp_path / "packed")]) in (0, None)
    words = ("--dataset", "packed", "--data-dir", str(tmp_path / "packed"), "--batch-size", "8", "--epochs", "1")
    training = trained(tmp_path, *words, "--workers", "1", "--fuse", "--peak-tflops", "0.1")
    assert training.lines[0] == "24 images to train on, 6 to test (every fifth), 3 classes"
    epoch = training.logged("epoch")[0]
    flops = flops_per_image(build_network("small", 3, 3), 3, 32)
    assert epoch["flop_utilisation"] == pytest.approx(epoch["images_per_s"] * flops / 0.1e12)
    assert 0 < epoch["flop_utilisation"] < 1
    assert any(line.startswith("epoch ") and " MFU " in line for line in training.lines)
    repeated = trained(tmp_path, *words, "--workers", "0", "--repeat-batch", "--debug-samples", str(tmp_path / "same"))
    assert repeated.logged("epoch")[0]["step"] == 3
    first, *others = samples(tmp_path, 1, "same").values()
    assert others == [first, first]


def test_a_diverging_network_is_an_error_and_is_not_saved(tmp_path: Path) -> None:
    words = ("--norm", "none", "--lr", "1e18", "--warmup", "0", "--epochs", "1", "--workers", "0")
    with Training(tmp_path, *words, "--out", str(tmp_path / "run"), ranks=2) as training:
        assert training.end() == [1, 1]
    assert "lower --lr, or add --clip-norm 1; this step was not saved" in training.errors()
    assert training.errors().count("error:") == 1
    assert not (tmp_path / "run" / "checkpoint.pt").exists()


def test_ranks_with_different_weights_are_an_error_and_nothing_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if DistributedDataParallel were missing.
    monkeypatch.setattr(train_module(), "DistributedDataParallel", lambda network, **_: network)
    with Training(tmp_path, *FEW, "--out", str(tmp_path / "run"), ranks=2) as training:
        assert training.end() == [1, 1]
    assert training.errors().count("train.py: error: the weights differ between the ranks") == 1
    assert not (tmp_path / "run" / "checkpoint.pt").exists()
