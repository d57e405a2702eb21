"""What the training is made of: pieces of a step, schedules, networks, checkpoints, recipes, meters."""

from __future__ import annotations

import argparse
import io
import json
import resource
import sys
import types
import urllib.error
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cifar10
import imagenet
import numpy as np
import pytest
import torch
import trainings  # puts examples/ where the imports below find it
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from training import checkpoint
from training.data import Loading, batch_transform, load_digits, with_transform
from training.endings import is_loss_of_a_rank
from training.errors import RunError, UsageError
from training.meters import Log, flops_of_an_image, peak_flops
from training.models import Largest, Whitened, build_network, parameter_groups
from training.processes import Signals, Stop, ignore_signals, join, seed_rank
from training.recipe import RECIPES, Recipe
from training.schedule import image_size, lr_factor, pieces


@given(st.integers(1, 3000), st.none() | st.integers(1, 400))
def test_pieces_are_all_images_once_in_order_few_and_of_nearly_one_size(num_images: int, most: int | None) -> None:
    found = pieces(num_images, most)
    assert [index for piece in found for index in range(num_images)[piece]] == list(range(num_images))
    sizes = [piece.stop - piece.start for piece in found]
    assert len(found) == (1 if most is None else -(-num_images // most))
    assert max(sizes) <= (most or num_images)
    assert max(sizes) - min(sizes) <= 1
    assert sum(size / num_images for size in sizes) == pytest.approx(1)


@given(st.integers(1, 60), st.integers(1, 70))
def test_gradients_of_pieces_add_up_to_that_of_the_whole(num_images: int, most: int) -> None:
    torch.manual_seed(num_images)
    network, images, labels = nn.Linear(4, 3), torch.randn(num_images, 4), torch.randint(3, (num_images,))
    (whole,) = torch.autograd.grad(nn.functional.cross_entropy(network(images), labels), [network.weight])
    total = torch.zeros_like(whole)
    for piece in pieces(num_images, most):
        loss = nn.functional.cross_entropy(network(images[piece]), labels[piece])
        total += torch.autograd.grad(loss, [network.weight])[0] * ((piece.stop - piece.start) / num_images)
    torch.testing.assert_close(total, whole, rtol=1e-4, atol=1e-6)


@given(
    st.integers(1, 5000),
    st.floats(0, 0.99),
    st.sampled_from(["cosine", "linear", "constant"]),
    st.floats(0, 0.9),
    st.floats(0, 0.9),
)
def test_the_learning_rate_rises_to_its_peak_and_falls_to_its_end(
    num_steps: int, warmup: float, shape: str, final: float, first: float
) -> None:
    factors = [
        lr_factor(step, num_steps, warmup=warmup, shape=shape, final=final, first=first)
        for step in range(0, num_steps, max(1, num_steps // 40))
    ]
    assert all(0 < factor <= 1 for factor in factors)
    assert factors[0] > first
    peak = factors.index(max(factors))
    assert factors[: peak + 1] == sorted(factors[: peak + 1])
    assert factors[peak:] == sorted(factors[peak:], reverse=True)
    at_peak = lr_factor(int(num_steps * warmup), num_steps, warmup=warmup, shape=shape, final=final)
    assert at_peak == pytest.approx(1)
    last = lr_factor(num_steps - 1, num_steps, warmup=warmup, shape=shape, final=final)
    assert last >= final if shape != "constant" else last == pytest.approx(1)


@pytest.mark.parametrize("final", [0.0, 0.1])
@pytest.mark.parametrize("shape", ["cosine", "linear", "constant"])
def test_the_learning_rate_is_that_of_torchs_schedulers(shape: str, final: float) -> None:
    def optimizer() -> torch.optim.SGD:
        return torch.optim.SGD([nn.Parameter(torch.zeros(()))], 1.0)

    steps, rising = 40, 8  # a warm-up of 0.2
    falling: Any = {
        "cosine": lambda one: torch.optim.lr_scheduler.CosineAnnealingLR(one, steps - rising, eta_min=final),
        "linear": lambda one: torch.optim.lr_scheduler.LinearLR(one, 1.0, final, steps - rising),
        "constant": lambda one: torch.optim.lr_scheduler.ConstantLR(one, 1.0),
    }
    parts: list[Any] = [torch.optim.lr_scheduler.LinearLR(optimizer(), 1 / (rising + 1), 1.0, rising)]
    parts += [falling[shape](optimizer())]
    expected = []
    for part, count in zip(parts, (rising, steps - rising), strict=True):
        for _ in range(count):
            expected.append(part.get_last_lr()[0])
            part.optimizer.step()
            part.step()
    found = [lr_factor(step, steps, warmup=0.2, shape=shape, final=final) for step in range(steps)]
    assert found == pytest.approx(expected)
    assert parts[1].get_last_lr()[0] == pytest.approx(1.0 if shape == "constant" else final)  # behind the last step


@given(st.integers(1, 100), st.integers(8, 300), st.integers(8, 300))
def test_images_grow_from_the_first_size_to_the_last(epochs: int, first: int, last: int) -> None:
    sizes = [image_size(epoch, epochs, first=first, last=last) for epoch in range(epochs)]
    assert sizes == sorted(sizes, reverse=first > last)
    assert sizes[-1] == last
    assert sizes[0] == first or epochs < 3
    assert all(size % 8 == 0 or size in (first, last) for size in sizes)
    assert [image_size(epoch, epochs, first=0, last=last) for epoch in range(epochs)] == [last] * epochs


@pytest.mark.parametrize(
    ("name", "parameters", "giga_flops"),
    [
        # Counts that others give for the same networks; the last column is of forward and backward for one image.
        ("resnet18-cifar", 11_173_962, 3.34),
        ("mobilenetv2-cifar", 2_296_922, 0.56),
        ("airbench", 1_972_792, 0.73),
        ("proxy", None, 0.1),
        ("small", None, None),
    ],
)
@pytest.mark.parametrize("norm", ["batch", "none"])
def test_networks_have_the_parameters_and_the_cost_that_are_known_of_them(
    name: str, parameters: int | None, giga_flops: float | None, norm: str
) -> None:
    network = build_network(name, 3, 10, norm)
    assert network.eval()(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    has_norm = any(isinstance(module, nn.BatchNorm2d) for module in network.modules())
    assert has_norm == (norm == "batch")
    if norm == "none":
        return
    if parameters is not None:
        learnt = sum(one.numel() for one in network.parameters())
        assert learnt == pytest.approx(parameters, rel=0.001)
    if giga_flops is not None:
        assert flops_of_an_image(network, 3, 32) / 1e9 == pytest.approx(giga_flops, rel=0.1)


def test_networks_that_are_not_there_are_an_error_with_the_rule() -> None:
    with pytest.raises(UsageError, match=r"--model must be one of small, .+, got resnet19"):
        build_network("resnet19", 3, 10)
    with pytest.raises(UsageError, match=r"resnet50 is torchvision's: .+ got --norm none and 1 channels"):
        build_network("resnet50", 1, 10, "none")


def test_whitening_gives_patches_of_unit_variance_without_correlation() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(300, 3, 9, 9, generator=generator).cumsum(dim=3) * torch.tensor([1.0, 2.0, 0.5])[:, None, None]
    network = build_network("proxy", 3, 10)
    assert isinstance(network, Whitened)
    network.whiten(images, eps=0.0)
    out = network.layers[0](images).detach().double().transpose(0, 1).flatten(1)
    axes, mirrored = out[:12], out[12:]
    torch.testing.assert_close(mirrored, -axes)
    torch.testing.assert_close(torch.cov(axes), torch.eye(12, dtype=torch.float64), atol=2e-3, rtol=0)
    assert not network.layers[0].weight.requires_grad


def test_biases_and_normalisation_are_told_from_weights_by_dimensions() -> None:
    network = build_network("proxy", 3, 10)
    recipe = Recipe(source="", lr=1.5, weight_decay=2e-3, norm_weight_decay=1e-3, bias_lr_factor=64.0)
    weights, rest, _ = parameter_groups(network, recipe)
    assert {one.ndim for one in weights["params"]} == {2, 4}
    assert {one.ndim for one in rest["params"]} == {1}
    assert (weights["peak"], rest["peak"]) == (1.5, 96.0)
    assert rest["peak"] * rest["weight_decay"] == pytest.approx(1.5 * 1e-3)
    assert all(one.requires_grad for group in (weights, rest) for one in group["params"])


class TestCheckpoints:
    STATE = {"step": 7, "model": {"weight": torch.arange(2000.0)}, "settings": {"--lr": 0.1}}

    def test_what_is_written_is_read_and_torch_reads_it_too(self, tmp_path: Path) -> None:
        path = tmp_path / "checkpoint.pt"
        assert checkpoint.read(path) is None
        checkpoint.write(path, {**self.STATE, "step": 6})
        checkpoint.write(path, self.STATE)
        data = checkpoint.read(path)
        assert data is not None
        state = checkpoint.parse(data, path)
        assert state["step"] == 7
        assert torch.equal(state["model"]["weight"], torch.arange(2000.0))
        assert torch.load(path, weights_only=True)["step"] == 7
        assert [one.name for one in tmp_path.iterdir()] == ["checkpoint.pt"]

    def test_every_cut_and_a_changed_byte_are_errors(self, tmp_path: Path) -> None:
        path = tmp_path / "checkpoint.pt"
        checkpoint.write(path, self.STATE)
        data = path.read_bytes()
        for length in range(0, len(data), 97):
            with pytest.raises(RunError, match=r"is no checkpoint, or cut off .+ move it away to begin anew"):
                checkpoint.parse(data[:length], path)
        place = data.index(torch.tensor([1000.0]).numpy().tobytes())  # within the weights
        changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        with pytest.raises(RunError, match=r"is damaged: '.+' in it is not what was written"):
            checkpoint.parse(changed, path)

    def test_bytes_changed_anywhere_give_an_error_or_the_same_state(self, tmp_path: Path) -> None:
        path = tmp_path / "checkpoint.pt"
        checkpoint.write(path, self.STATE)
        data, random = path.read_bytes(), np.random.default_rng(0)
        # Where the archive says how its entries are stored; the weights are behind the first of these places.
        places = [*range(60), *range(data.rindex(b"PK\1\2"), len(data)), *random.integers(0, len(data), 200)]
        refused = 0
        for place in places:
            for value in (data[place] ^ 16, *random.integers(0, 256, 4).tolist()):
                changed = data[:place] + bytes([value]) + data[place + 1 :]
                try:
                    state = checkpoint.parse(changed, path)
                except RunError:
                    refused += 1
                else:
                    assert state["step"] == 7
                    assert torch.equal(state["model"]["weight"], torch.arange(2000.0))
        assert refused > len(places)

    def test_files_of_others_are_errors_and_run_no_code(self, tmp_path: Path) -> None:
        path = tmp_path / "checkpoint.pt"

        def saved(state: Any) -> bytes:
            buffer = io.BytesIO()
            torch.save(state, buffer)
            return buffer.getvalue()

        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as other:
            other.writestr("hello", "there")
        emptied = io.BytesIO()  # what is said of it has no text
        with zipfile.ZipFile(io.BytesIO(saved({}))) as whole, zipfile.ZipFile(emptied, "w") as other:
            for entry in whole.namelist():
                other.writestr(entry, b"" if entry.endswith("data.pkl") else whole.read(entry))
        for data in (saved({"model": {}}), saved([1]), saved(Path), archive.getvalue(), emptied.getvalue()):
            with pytest.raises(RunError, match=r"is none of train\.py's"):
                checkpoint.parse(data, path)
        with pytest.raises(RunError, match=r"has version 99, and this train\.py reads version 1"):
            checkpoint.parse(saved({"format": checkpoint.FORMAT, "version": 99}), path)

    def test_a_folder_that_cannot_be_written_to_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(RunError, match=r"of step 7, .+ No such file or directory; there is none from before"):
            checkpoint.write(tmp_path / "gone" / "checkpoint.pt", self.STATE)
        (tmp_path / "folder").mkdir()
        with pytest.raises(RunError, match="cannot be read: Is a directory"):
            checkpoint.read(tmp_path / "folder")


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"epochs": 0}, "--epochs must be at least 1, got 0"),
        ({"lr": -1.0}, "--lr must be above 0 and finite, got -1.0"),
        ({"lr": float("nan")}, "--lr must be above 0 and finite, got nan"),
        ({"warmup": 1.0}, "--warmup must be at least 0 and below 1, got 1.0"),
        ({"ema_decay": -0.1}, "--ema-decay must be at least 0 and below 1"),
        ({"min_scale": 0.0}, "--min-scale must be above 0 and at most 1"),
        ({"cutout": -1}, "--cutout must be at least 0"),
        ({"schedule": "steps"}, "--schedule must be one of cosine, linear, constant, got steps"),
        ({"momentum": 0.0}, "Nesterov's momentum needs a momentum above 0"),
        ({"erasing": 1.5}, "--erasing must be at least 0 and at most 1, got 1.5"),
        ({"lookahead": -5}, "--lookahead must be at least 0"),
        ({"test_views": "all"}, "--test-views must be one of plain, flips, flips-and-shifts, got all"),
    ],
)
def test_numbers_out_of_range_are_named_with_the_rule(numbers: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as error:
        Recipe(source="", **numbers)
    assert message in str(error.value)


def test_every_recipe_says_where_its_numbers_come_from_and_has_a_network_and_transforms() -> None:
    for recipe in [*RECIPES.values(), *cifar10.RECIPES.values(), *imagenet.RECIPES.values()]:
        assert len(recipe.source) > 30
        channels = 1 if recipe.image_size == 8 else 3
        with torch.device("meta"):
            network = build_network(recipe.model, channels, 10, recipe.norm)
        assert flops_of_an_image(network, channels, recipe.image_size) > 1e6
        images = torch.zeros(4, channels, recipe.image_size, recipe.image_size, dtype=torch.uint8)
        generator = torch.Generator().manual_seed(0)
        recipe = replace(recipe, flip="random")  # others ask a loader for the epoch
        transform = batch_transform(recipe, recipe.image_size, 10, train=True)
        out = transform(images, torch.arange(4), generator=generator)
        assert out[0].shape == images.shape
        assert out[0].dtype == torch.float32


def test_digits_are_split_and_lie_from_minus_1_to_1_for_the_network() -> None:
    data = load_digits()
    assert (len(data.train), len(data.test)) == (1437, 360)  # type: ignore[arg-type]
    images = torch.stack([data.train[index][0] for index in range(1437)])
    plain = batch_transform(RECIPES["digits"], 8, 10, train=False)(images)
    torch.testing.assert_close(plain, images / 8.0 - 1)
    assert with_transform(data.train, str)[0][0].shape == (1, 8, 8)  # tensors have no transform


def test_ranks_and_steps_draw_different_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = set()
    with torch.random.fork_rng(devices=[]):
        for seed, step, rank in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1)]:
            seed_rank(seed, step, rank)
            drawn.add(float(torch.rand(())))
    assert len(drawn) == 5


def test_errors_of_a_lost_rank_are_told_from_others() -> None:
    lost = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:1"
    assert is_loss_of_a_rank(RuntimeError(lost))
    assert is_loss_of_a_rank(torch.distributed.DistNetworkError("the client socket has failed"))
    assert is_loss_of_a_rank(RuntimeError("Wait timeout"))  # of a rank that ended while the group was made
    assert not is_loss_of_a_rank(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_loss_of_a_rank(ValueError("gloo"))


def test_one_process_needs_no_group_and_its_signals_are_noted_until_the_run_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import signal

    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    with Signals(saves=False) as signals:
        place = join(None, 1.0, 1.0, signals)
        assert (place.rank, place.world_size, place.gather("word"), place.from_first(3)) == (0, 1, ["word"], 3)
        stop = Stop(place, signals)
        assert stop.agreed() == 0
        signal.raise_signal(signal.SIGUSR1)
        assert stop.agreed() == signal.SIGUSR1
        ignore_signals(0)
        signal.raise_signal(signal.SIGTERM)  # would end this process
        assert stop.agreed() == signal.SIGUSR1
        assert signals.code(signal.SIGTERM) == 128 + 15  # nothing is saved
    assert Signals(saves=True).code(signal.SIGTERM) == 0
    assert {number: signal.getsignal(number) for number in before} == before


def test_the_peak_is_given_or_known_or_left_out() -> None:
    assert peak_flops(torch.device("cpu"), "fp32", None) is None
    assert peak_flops(torch.device("cpu"), "bf16", 0.5) == 0.5e12


def test_the_log_goes_on_where_it_ended_and_tensorboard_gets_the_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[str, float, int]] = []

    class Writer:
        def __init__(self, folder: str) -> None:
            assert folder == str(tmp_path / "board")

        def add_scalar(self, name: str, value: float, step: int) -> None:
            written.append((name, value, step))

        def close(self) -> None:
            written.append(("closed", 0, 0))

    module: Any = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    for step in (1, 2):
        log = Log(tmp_path / "log.jsonl", tmp_path / "board")
        log.write("epoch", step=step, loss=0.5, waits=[0.1, 0.2], name="x")
        log.close()
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert lines[0] == {"kind": "epoch", "step": 1, "loss": 0.5, "waits": [0.1, 0.2], "name": "x"}
    assert written == [("epoch/loss", 0.5, 1), ("closed", 0, 0), ("epoch/loss", 0.5, 2), ("closed", 0, 0)]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_json_does_not_know_is_null_in_the_log(tmp_path: Path, value: float) -> None:
    log = Log(tmp_path / "log.jsonl", None)
    log.write("step", step=1, loss=value)
    log.close()
    assert (tmp_path / "log.jsonl").read_text() == '{"kind": "step", "step": 1, "loss": null}\n'


def test_tensorboard_that_is_missing_and_a_log_that_cannot_be_written_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UsageError, match="--tensorboard needs TensorBoard: pip install tensorboard"):
        Log(None, tmp_path)
    with pytest.raises(UsageError, match=r"--json must be a file that can be written to, .+ Is a directory"):
        Log(tmp_path, None)
    log = Log(Path("/dev/full"), None)
    with pytest.raises(RunError, match=r"the log '/dev/full' cannot be written: No space left on device"):
        log.write("step", step=1)
    log.close()


def test_a_line_that_a_full_disk_cuts_off_is_taken_back(tmp_path: Path) -> None:
    log, path = Log(tmp_path / "log.jsonl", None), tmp_path / "log.jsonl"
    log.write("step", step=1)
    before, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 5, limits[1]))
    try:
        with pytest.raises(RunError, match="cannot be written: File too large; make room"):
            log.write("step", step=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    log.close()


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Call train.py's ``main`` with arguments that are wrong, and return what it says."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    threads = torch.get_num_threads()

    def call(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
        with torch.random.fork_rng(devices=[]), pytest.raises(SystemExit) as ended:
            trainings.train_module().main()
        torch.set_num_threads(threads)
        assert ended.value.code == 2
        return capsys.readouterr().err.splitlines()[-1]

    return call


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--fuse", "the digits are tensors: nothing of them is decoded or fused"),
        ("--image-size 32", "the digits have 8 x 8 pixels and stay so"),
        ("--recipe cifar10-proxy", "the digits have 8 x 8 pixels and stay so"),
        ("--model proxy", "--model proxy needs images of 9 x 9 pixels at least, got 8"),
        ("--model resnet50", "resnet50 is torchvision's"),
        ("--model mobilenetv2-cifar --micro-batch-size 1", "an image of 8 x 8 pixels alone leaves --model mobilenetv2"),
        ("--model resnet19", "argument --model: must be one of small, "),
        ("--dataset cifar10", "--dataset cifar10 needs --data-dir"),
        ("--dataset cifar10 --data-dir /nowhere", "--data-dir must hold CIFAR-10 as torchvision stores it"),
        ("--dataset packed --data-dir /nowhere", "--data-dir must hold images in train/<class>/"),
        ("--batch-size 15 --mixup 0.2", "--mixup and --cutmix mix neighbours, so each process needs an even number"),
        ("--lr 0", "--lr must be above 0 and finite, got 0.0"),
        ("--epochs 0", "--epochs must be at least 1, got 0"),
        ("--micro-batch-size 0", "argument --micro-batch-size: must be at least 1, got 0"),
        ("--repeat-batch --out x", "argument --repeat-batch: learns nothing, and is not to be saved"),
        ("--sync-bn", "--sync-bn works on GPUs only"),
        ("--precision tf32", "--precision tf32 works on GPUs only"),
        ("--out /proc/nowhere", "--out must be a folder that can be written to, got '/proc/nowhere'"),
        ("--dataset digits --data-dir x", "--dataset digits is not read from there"),
        ("--download", "there is nothing to download for --dataset digits"),
        ("--save-every 5", "argument --save-every: saves to --out, which is not given"),
        ("--debug-samples /nowhere/x", "argument --debug-samples: must be in a folder that is there"),
        ("--timeout nan", "argument --timeout: must be above 0 and at most 1e8 seconds, got nan"),
        ("--seed 99999999999999999999", "argument --seed: must be below 2^63"),
        ("--compile nonsense", "argument --compile: must be one of "),
        ("--padding 8 --padding-mode reflect", "--padding-mode reflect needs --padding below the images' 8, got 8"),
        ("--resident device --worker-method fibre", "invalid choice: 'fibre'"),
    ],
)
def test_arguments_that_do_not_fit_are_a_line_with_the_remedy(
    refused: Callable[..., str], words: str, message: str
) -> None:
    if "GPUs only" in message and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert message in refused(*words.split())


def test_torchrun_takes_no_option_of_the_training_for_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    # It takes an abbreviation of its own options, and refuses an ambiguous one, also behind the script's name.
    from torch.distributed.run import get_args_parser

    module = trainings.train_module()
    parsers: list[argparse.ArgumentParser] = []
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", lambda parser: parsers.append(parser) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        module.parse_arguments()
    ours = {name for action in parsers[0]._actions for name in action.option_strings} - {"-h", "--help"}
    theirs = {name for action in get_args_parser()._actions for name in action.option_strings}
    assert len(ours) > 50
    assert not [(one, other) for one in ours for other in theirs if other.startswith(one)]


def test_dali_says_what_it_needs(refused: Callable[..., str], tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(5):
            (tmp_path / name / f"{number}.jpg").write_bytes(b"")
    said = refused("--data-dir", str(tmp_path), "--decoder", "dali", "--cutout", "2", "--fuse", "--batch-size", "4")
    assert "--decoder dali reads, crops and normalises by itself; it needs no --fuse, no --cutout, --erasing" in said


def test_what_the_data_do_not_allow_is_an_error_before_anything_is_read(
    refused: Callable[..., str], tmp_path: Path
) -> None:
    trainings.make_images(tmp_path, 10)
    said = refused("--data-dir", str(tmp_path), "--batch-size", "4", "--resident", "host")
    assert "--resident reads each image once, and --augment resized-crop takes another part" in said
    one: dict[str, Any] = {"workers": 0, "worker_method": "thread", "fuse": False, "resident": None}
    one |= {"channels_last": False, "seed": 0}
    for name in ("cifar10", "packed"):
        with pytest.raises(UsageError, match=f"--decoder pillow decodes files, .+ got --dataset {name}"):
            Loading(decoder="pillow", **one).check(name, cifar10.FAST)
        Loading(decoder="auto", **one).check(name, cifar10.FAST)


def test_an_image_size_for_testing_that_is_too_small_is_an_error(refused: Callable[..., str], tmp_path: Path) -> None:
    trainings.make_images(tmp_path, 10)
    said = refused("--data-dir", str(tmp_path), "--batch-size", "4", "--test-image-size", "4")
    assert "--model small needs images of 8 x 8 pixels at least, got 4" in said
    said = refused("--data-dir", str(tmp_path), "--batch-size", "4", "--test-resize", "31")
    assert "--test-resize must be at least the side of the images in testing, 32, or they would get a black" in said


def test_a_download_that_fails_is_told_from_a_folder_without_images(
    refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_network(*arguments: Any, **named: Any) -> None:
        raise urllib.error.URLError("no route")

    monkeypatch.setattr("training.data.CIFAR10", no_network)
    said = refused("--dataset", "cifar10", "--data-dir", str(tmp_path), "--download")
    assert f"CIFAR-10 could not be downloaded to --data-dir {str(tmp_path)!r}: <urlopen error no route>" in said


def test_weights_that_are_no_numbers_are_told_from_a_loss_that_is_none() -> None:
    not_finite = trainings.train_module().not_finite
    network = nn.Linear(2, 2)
    assert not_finite(1.0, network, 3) is None
    assert not_finite(float("nan"), network, 3).startswith("the loss is nan by step 3; lower --lr")
    with torch.no_grad():
        network.bias[1] = float("inf")
    assert not_finite(1.0, network, 3).startswith("the weights are infinite or NaN by step 3; lower --lr")


def test_the_largest_of_each_channel_is_what_torchs_pooling_gives() -> None:
    images = torch.randn(3, 4, 5, 6, generator=torch.Generator().manual_seed(0), requires_grad=True)
    pooled = nn.AdaptiveMaxPool2d(1)(images).flatten(1)
    assert torch.equal(Largest()(images), pooled)
    gradients = [torch.autograd.grad(out.square().sum(), images)[0] for out in (Largest()(images), pooled)]
    assert torch.equal(*gradients)
