"""What the recipes ask for besides a step: slow weights, a bias that stops learning, views, a blur; and CIFAR-10."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import pickle
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cifar10
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchvision.datasets import CIFAR10
from training import checkpoint
from training.data import Loading, load_data, train_loader
from training.errors import UsageError
from training.evaluation import evaluate, views_of
from training.lookahead import Lookahead
from training.meters import Stopwatch, flops_of_an_image
from training.models import Blurred, Whitened, blur_strides, build_network, parameter_groups, set_learning_rates
from training.processes import Place
from training.recipe import RECIPES
from trainings import Training, make_images

ALONE = Place(rank=0, world_size=1, local_rank=0, local_ranks=1, device=torch.device("cpu"), backend="gloo")


def test_slow_weights_follow_the_network_which_returns_to_them_and_ends_with_them() -> None:
    network = nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1))
    weight, mean = network[0].weight, network[1].running_mean
    first = slow = quick = weight.item()
    lookahead = Lookahead(network, 5, 0.95)
    for step in range(1, 13):
        with torch.no_grad():
            weight += step
            mean += 2 * step
        quick += step
        lookahead.update(step, 12)
        if step in (5, 10):
            kept = 0.95**5 * (step / 12) ** 3
            slow = quick = kept * slow + (1 - kept) * quick
        assert weight.item() == pytest.approx(slow if step == 12 else quick)
    assert mean.item() == pytest.approx(2 * (weight.item() - first), rel=1e-5)  # the averages go the same way
    other = Lookahead(network, 5, 0.95)
    other.load_state_dict({name: value + 1 for name, value in lookahead.state_dict().items()})
    assert other.state_dict()["0.weight"].item() == pytest.approx(slow + 1)
    with pytest.raises(KeyError, match=r"0\.weight"):
        other.load_state_dict({})


def test_the_bias_of_a_whitening_layer_learns_in_the_first_epochs_at_the_rate_of_weights() -> None:
    torch.manual_seed(0)
    network = build_network("proxy", 3, 10)
    assert isinstance(network, Whitened)
    images, labels = torch.randn(8, 3, 9, 9), torch.arange(8)
    groups = parameter_groups(network, cifar10.FAST)
    optimizer = torch.optim.SGD(groups, 1.0, momentum=0.85, nesterov=True)
    told = []
    for epoch in range(5):
        set_learning_rates(optimizer.param_groups, 0.01, epoch)
        bias, weight = network.whitening.bias, network.head[0].weight
        before = bias.detach().clone(), weight.detach().clone()
        nn.functional.cross_entropy(network(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        told.append([torch.equal(bias, before[0]), torch.equal(weight, before[1])])
    assert told == [[False, False]] * 3 + [[True, False]] * 2
    assert [group["peak"] for group in groups] == [1.5, 96.0, 1.5]
    everywhere = parameter_groups(network, replace(cifar10.FAST, whitening_bias_epochs=0))
    set_learning_rates(everywhere, 0.5, 1000)
    assert [group["lr"] for group in everywhere] == [0.75, 48.0, 0.75]


def test_views_are_the_images_mirrored_and_shifted_with_shares_that_make_one() -> None:
    images = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    assert [(share, view is images) for share, view in views_of(images, "plain")] == [(1.0, True)]
    (_, one), (_, mirrored) = views_of(images, "flips")
    assert one is images
    assert torch.equal(mirrored, images.flip(-1))
    shares, views = zip(*views_of(images, "flips-and-shifts"), strict=True)
    assert shares == (0.25, 0.25, 0.125, 0.125, 0.125, 0.125)
    assert views[0] is images
    for plain, flipped in (views[:2], views[2:4], views[4:]):
        assert torch.equal(flipped, plain.flip(-1))
    down, up = views[2], views[4]
    assert torch.equal(down[..., 1:, 1:], images[..., :-1, :-1])
    assert torch.equal(up[..., :-1, :-1], images[..., 1:, 1:])
    assert torch.equal(down[..., 0, 1:], images[..., 1, :-1])  # reflected
    assert torch.equal(up[..., 1:, -1], views[4][..., 1:, -3])


class Leftish(nn.Module):
    """Scores 0 by the left pixel, 1 by 0.6 of the right one: it is wrong about images that are darker on the left."""

    def forward(self, images: Tensor) -> Tensor:
        return torch.stack([images[:, 0, 0, 0], 0.6 * images[:, 0, 0, 1]], dim=1)


def test_a_test_of_views_counts_whole_images_both_ways() -> None:
    left = torch.tensor([1.0] * 5 + [0.1] * 6)
    images = torch.stack([left, torch.ones(11)], dim=1).view(11, 1, 1, 2)
    batches = [(images[:4], torch.zeros(4).long()), (images[4:], torch.zeros(7).long())]
    common = (Leftish(), batches, ALONE, contextlib.nullcontext, lambda: 0)
    plain, mirrored = evaluate(*common), evaluate(*common, "flips")
    assert plain is not None
    assert mirrored is not None
    assert (plain.correct, plain.total, plain.correct_of_views, plain.accuracy_of_views) == (5, 11, None, None)
    assert (mirrored.correct, mirrored.total, mirrored.correct_of_views) == (5, 11, 11)
    assert mirrored.accuracy_of_views == 1.0
    assert mirrored.loss == plain.loss


def test_a_test_of_which_all_images_were_left_out_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        evaluate(Leftish(), [], ALONE, contextlib.nullcontext, lambda: 0)
    assert ended.value.code == 1
    assert capsys.readouterr().err == (
        "train.py: error: not one of the test images can be loaded; repair or remove them\n"
    )


def test_a_blur_comes_before_strides_and_changes_nothing_else() -> None:
    torch.manual_seed(0)
    plain, blurred = build_network("resnet18", 3, 5), build_network("resnet18", 3, 5, blur=True)
    found = [name for name, layer in blurred.named_modules() if isinstance(layer, Blurred)]
    assert found == [f"layer{n}.0.{part}" for n in (2, 3, 4) for part in ("conv1", "downsample.0")]
    names = [name.replace(".convolution.", ".") for name in blurred.state_dict()]
    assert names == list(plain.state_dict())
    assert flops_of_an_image(blurred, 3, 64) > flops_of_an_image(plain, 3, 64)
    dot = torch.zeros(1, 5, 9, 9)
    dot[..., 4, 4] = 16.0
    layer = nn.Sequential(nn.Conv2d(5, 1, 1, stride=2, bias=False))
    nn.init.ones_(layer[0].weight)
    blur_strides(layer)
    expected = torch.zeros(5, 5)
    expected[2, 2] = 4.0  # the kernel's middle; its corners and edges lie where the stride skips
    torch.testing.assert_close(layer(dot)[0, 0], 5 * expected)


@pytest.mark.parametrize(("eps", "survives"), [(None, True), (1e-12, False)])
def test_a_batch_of_white_images_ends_a_training_only_with_a_tiny_eps(eps: float | None, survives: bool) -> None:
    torch.manual_seed(0)
    network = build_network("proxy", 3, 10)
    assert isinstance(network, Whitened)
    network.whiten(torch.randn(50, 3, 32, 32))
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.eps = eps or layer.eps
    optimizer = torch.optim.SGD(parameter_groups(network, cifar10.FAST), 1.0, momentum=0.85, nesterov=True)
    set_learning_rates(optimizer.param_groups, 0.2, 0)
    for _ in range(4):
        loss = nn.functional.cross_entropy(network(torch.full((16, 3, 32, 32), 2.0)), torch.arange(16) % 10)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert bool(loss < 3) == survives, loss


def test_resnet18_costs_what_its_products_counted_by_hand_cost() -> None:
    # Kernel, channels in and out, pixels out; the three later stages cost the same.
    stem, early = 9 * 3 * 64 * 32**2, 4 * 9 * 64 * 64 * 32**2
    stage = 9 * 64 * 128 * 16**2 + 3 * 9 * 128 * 128 * 16**2 + 64 * 128 * 16**2
    forward = stem + early + 3 * stage + 512 * 10
    assert forward == 555_422_720  # 0.56 billion, as others give it
    assert flops_of_an_image(build_network("resnet18-cifar", 3, 10), 3, 32) == 2 * 3 * forward


def test_the_wait_is_the_time_between_asking_and_getting(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 11.0, 15.0, 15.5, 20.0])
    monkeypatch.setattr("training.meters.time.perf_counter", lambda: next(times))
    watch = Stopwatch()  # at 10, and asks
    assert watch.got() == 11.0
    watch.ask()  # at 15, after a step
    assert watch.got() == 15.5
    assert watch.waited == 1.5
    assert watch.seconds == 10.0


def test_dali_that_is_missing_is_an_error_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_images(tmp_path, 4)
    for name in ("nvidia.dali", "nvidia.dali.fn", "nvidia.dali.types"):
        monkeypatch.setitem(sys.modules, name, None)
    loading = Loading(
        workers=0,
        worker_method="thread",
        fuse=False,
        decoder="dali",
        resident=None,
        channels_last=False,
        seed=0,
    )
    data = load_data("folder", tmp_path, decoder="dali", fuse=False, download=False)
    recipe = replace(RECIPES["folder"], batch_size=4)
    loading.check("folder", recipe)
    with pytest.raises(UsageError, match=r"needs NVIDIA DALI, which cannot be imported: .+ install fastload\[dali\]"):
        train_loader(data, recipe, 32, loading, ALONE)


def _write_cifar10(root: Path, per_file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write images in torchvision's format, and have it expect their sums in place of the original's."""
    folder = root / CIFAR10.base_folder
    folder.mkdir()
    rng = np.random.default_rng(0)

    def written(name: str, content: Any) -> str:
        data = pickle.dumps(content)
        (folder / name).write_bytes(data)
        return hashlib.md5(data).hexdigest()

    def batch(name: str) -> list[str]:
        labels = [number % 10 for number in range(per_file)]
        pixels = rng.integers(0, 256, (per_file, 3072), dtype=np.uint8)
        return [name, written(name, {"data": pixels, "labels": labels})]

    train = [batch(name) for name, _ in CIFAR10.train_list]
    test = [batch(name) for name, _ in CIFAR10.test_list]
    meta = {**CIFAR10.meta, "md5": written("batches.meta", {"label_names": [f"class {n}" for n in range(10)]})}
    with pytest.raises(UsageError, match=r"cifar-10-batches-py/, got .+ where it is not, or not whole; add --download"):
        load_data("cifar10", root, decoder="auto", fuse=False, download=False)
    for name, value in {"train_list": train, "test_list": test, "meta": meta}.items():
        monkeypatch.setattr(CIFAR10, name, value)


@pytest.fixture(scope="module")
def cifar10_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Training, Path]]:
    """Two ranks that train the small fast recipe on made-up images, with all it has, and write for TensorBoard."""
    folder = tmp_path_factory.mktemp("cifar10")
    words = ["--dataset", "cifar10", "--data-dir", str(folder), "--recipe", "cifar10-proxy", "--epochs", "2"]
    words += ["--batch-size", "40", "--workers", "0", "--out", str(folder / "run"), "--precision", "bf16"]
    words += ["--whitening-bias-epochs", "1", "--lookahead", "3", "--channels-last", "--resident", "host"]
    if importlib.util.find_spec("tensorboard") is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its own imports; the ranks are forked and have them then
            import torch.utils.tensorboard  # noqa: F401
        words += ["--tensorboard", str(folder / "board")]
    with pytest.MonkeyPatch.context() as monkeypatch:
        _write_cifar10(folder, 21, monkeypatch)
        with Training(folder, *words, ranks=2) as training:
            training.finish()
            yield training, folder


def test_cifar10_as_torchvision_stores_it_is_trained_on_by_the_fast_recipe(
    cifar10_run: tuple[Training, Path],
) -> None:
    training, folder = cifar10_run
    assert training.lines[0] == "105 images to train on, 21 to test (its own), 10 classes"
    before, last = training.told("epoch")
    assert "test_correct_of_views" not in before
    for told in (last["test_correct"], last["test_correct_of_views"]):
        assert isinstance(told, int)
        assert 0 <= told <= last["test_images"] == 21
    assert last["test_accuracy_of_views"] == last["test_correct_of_views"] / 21
    done = next(line for line in training.lines if line.startswith("done in "))
    assert f" of flips-and-shifts {last['test_accuracy_of_views']:.2%} " in done
    path = folder / "run" / "checkpoint.pt"
    state = checkpoint.parse(path.read_bytes(), path)
    assert state["step"] == 4  # the last step ends with the slow weights, whether or not it is a third one
    slow = state["lookahead"]
    assert {name for name, value in state["model"].items() if value.is_floating_point()} == slow.keys()
    assert all(torch.equal(state["model"][name], value) for name, value in slow.items())
    assert slow["layers.0.bias"].abs().max() > 0  # it learnt, in the first epoch


def test_tensorboard_reads_what_the_training_told(cifar10_run: tuple[Training, Path]) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard, which reads event files, is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    training, folder = cifar10_run
    events = EventAccumulator(str(folder / "board"), size_guidance={"scalars": 0}).Reload()
    for name, kind in (("loss", "step"), ("test_accuracy", "epoch"), ("images_per_s", "epoch"), ("seconds", "end")):
        found = [(one.step, one.value) for one in events.Scalars(f"{kind}/{name}")]
        told = [(one["step"], pytest.approx(one[name], rel=1e-6)) for one in training.told(kind)]
        assert found == told, name
    assert len(events.Scalars("step/loss")) == 4
