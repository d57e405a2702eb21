"""The parts of train.py: averages, networks, what depends on the step, testing, reports, what ranks share."""

from __future__ import annotations

import contextlib
import json
import resource
import sys
from pathlib import Path
from typing import Any

import cifar10
import pytest
import torch
import trainings  # noqa: F401  # puts examples/ on the path
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from training.averages import EMA, Lookahead
from training.backends import set_backends
from training.distributed import World, seed_rank
from training.errors import RunError, UsageError, is_lost_rank
from training.evaluation import evaluate, views_of
from training.metrics import Throughput, Timer, flops_per_image
from training.models import Blurred, Whitened, build_network, parameter_groups, set_learning_rates
from training.options import parse_arguments
from training.recipe import RECIPES, Recipe
from training.reporting import Log
from training.schedule import image_size, lr_factor, micro_batches

# -- averages ----------------------------------------------------------------------------------------------------------


def test_the_average_is_bit_identical_to_torchs_and_goes_on_when_it_is_restored() -> None:
    torch.manual_seed(0)
    network: Any = build_network("small", 1, 10).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    ours = EMA(network, 0.9)
    torchs = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    for step in range(4):
        network.train()(torch.randn(4, 1, 8, 8))
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(torch.randn_like(parameter))
        if step == 2:
            saved = ours.module.state_dict()
            ours = EMA(network, 0.9)
            ours.load_state_dict(saved, started=True)
        ours.update()
        torchs.update_parameters(network)
    expected, current = torchs.module.state_dict(), network.state_dict()
    for name, value in ours.module.state_dict().items():
        # torch truncates the mean of integer counts; ours are the network's.
        assert torch.equal(value, expected[name] if value.is_floating_point() else current[name]), name
        assert value.stride() == current[name].stride()


def test_the_network_is_reset_to_the_slow_weights_every_few_steps_and_at_the_end() -> None:
    network: Any = nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1))
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
    assert mean.item() == pytest.approx(2 * (weight.item() - first), rel=1e-5)  # statistics are averaged the same way


# -- networks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["batch", "none"])
@pytest.mark.parametrize(
    ("name", "parameters", "giga_flops"),
    [
        # Published counts; the last column is forward and backward for one image.
        ("resnet18-cifar", 11_173_962, 3.34),
        ("mobilenetv2-cifar", 2_296_922, 0.56),
        ("airbench", 1_972_792, 0.73),
        ("small", None, None),
    ],
)
def test_networks_have_the_published_parameters_and_cost(
    name: str, parameters: int | None, giga_flops: float | None, norm: str
) -> None:
    network = build_network(name, 3, 10, norm)
    assert network.eval()(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert any(isinstance(module, nn.BatchNorm2d) for module in network.modules()) == (norm == "batch")
    if norm == "batch" and parameters is not None:
        assert sum(one.numel() for one in network.parameters()) == pytest.approx(parameters, rel=0.001)
        assert flops_per_image(network, 3, 32) / 1e9 == pytest.approx(giga_flops, rel=0.1)


def test_whitened_patches_have_unit_variance_and_no_correlation() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(300, 3, 9, 9, generator=generator).cumsum(dim=3) * torch.tensor([1.0, 2.0, 0.5])[:, None, None]
    network = build_network("proxy", 3, 10)
    assert isinstance(network, Whitened)
    network.whiten(images, eps=0.0)
    out = network.layers[0](images).detach().double().transpose(0, 1).flatten(1)
    torch.testing.assert_close(out[12:], -out[:12])
    torch.testing.assert_close(torch.cov(out[:12]), torch.eye(12, dtype=torch.float64), atol=2e-3, rtol=0)
    assert not network.layers[0].weight.requires_grad


def test_parameters_are_grouped_by_dimensions_and_the_bias_of_a_whitening_layer_is_trained_first_only() -> None:
    torch.manual_seed(0)
    network = build_network("proxy", 3, 10)
    assert isinstance(network, Whitened)
    images, labels = torch.randn(8, 3, 9, 9), torch.arange(8)
    groups = parameter_groups(network, cifar10.FAST)
    assert [group["peak"] for group in groups] == [1.5, 96.0, 1.5]
    assert [{one.ndim for one in group["params"]} for group in groups] == [{2, 4}, {1}, {1}]
    optimizer = torch.optim.SGD(groups, 1.0, momentum=0.85, nesterov=True)
    unchanged = []
    for epoch in range(5):
        set_learning_rates(optimizer.param_groups, 0.01, epoch)
        bias, weight = network.whitening.bias, network.head[0].weight
        before = bias.detach().clone(), weight.detach().clone()
        nn.functional.cross_entropy(network(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        unchanged.append([torch.equal(bias, before[0]), torch.equal(weight, before[1])])
    assert unchanged == [[False, False]] * 3 + [[True, False]] * 2


def test_a_blur_is_added_before_strides_and_changes_nothing_else() -> None:
    plain, blurred = build_network("resnet18", 3, 5), build_network("resnet18", 3, 5, blur=True)
    found = [name for name, layer in blurred.named_modules() if isinstance(layer, Blurred)]
    assert found == [f"layer{n}.0.{part}" for n in (2, 3, 4) for part in ("conv1", "downsample.0")]
    assert [name.replace(".convolution.", ".") for name in blurred.state_dict()] == list(plain.state_dict())
    dot = torch.zeros(1, 5, 9, 9)
    dot[..., 4, 4] = 16.0
    convolution = nn.Conv2d(5, 1, 1, stride=2, bias=False)
    nn.init.ones_(convolution.weight)
    expected = torch.zeros(5, 5)
    expected[2, 2] = 4.0  # the centre of the kernel; the stride skips the rest
    torch.testing.assert_close(Blurred(convolution)(dot)[0, 0], 5 * expected)


# -- what depends on the step ------------------------------------------------------------------------------------------


@given(st.integers(1, 3000), st.none() | st.integers(1, 400))
def test_micro_batches_cover_all_images_in_order_with_nearly_equal_sizes(num_images: int, max_size: int | None) -> None:
    found = micro_batches(num_images, max_size)
    assert [index for one in found for index in range(num_images)[one]] == list(range(num_images))
    sizes = [one.stop - one.start for one in found]
    assert len(found) == (1 if max_size is None else -(-num_images // max_size))
    assert max(sizes) <= (max_size or num_images)
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("final", [0.0, 0.1])
@pytest.mark.parametrize("shape", ["cosine", "linear", "constant"])
def test_the_learning_rate_equals_that_of_torchs_schedulers(shape: str, final: float) -> None:
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
    recipe = Recipe(source="", warmup=0.2, schedule=shape, final_lr=final)
    assert [lr_factor(step, steps, recipe) for step in range(steps)] == pytest.approx(expected)


@given(st.integers(1, 100), st.integers(8, 300), st.integers(8, 300))
def test_images_grow_from_the_first_size_to_the_last_in_multiples_of_8(epochs: int, first: int, last: int) -> None:
    recipe = Recipe(source="", epochs=epochs, first_image_size=first, image_size=last)
    sizes = [image_size(epoch, recipe) for epoch in range(epochs)]
    assert sizes == sorted(sizes, reverse=first > last)
    assert sizes[-1] == last
    assert sizes[0] == first or epochs < 3
    assert all(size % 8 == 0 or size in (first, last) for size in sizes)
    assert image_size(0, Recipe(source="", epochs=epochs, image_size=last)) == last


# -- testing -----------------------------------------------------------------------------------------------------------


def test_views_are_mirrored_and_shifted_images_whose_weights_add_up_to_one() -> None:
    images = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    assert [(weight, view is images) for weight, view in views_of(images, "plain")] == [(1.0, True)]
    assert [weight for weight, _ in views_of(images, "flips")] == [0.5, 0.5]
    weights, views = zip(*views_of(images, "flips-and-shifts"), strict=True)
    assert weights == (0.25, 0.25, 0.125, 0.125, 0.125, 0.125)
    assert views[0] is images
    assert all(torch.equal(flipped, plain.flip(-1)) for plain, flipped in (views[:2], views[2:4], views[4:]))
    assert torch.equal(views[2][..., 1:, 1:], images[..., :-1, :-1])
    assert torch.equal(views[4][..., :-1, :-1], images[..., 1:, 1:])


class Leftish(nn.Module):
    """Scores class 0 by the left pixel, 1 by 0.6 of the right one: wrong for images that are darker on the left."""

    def forward(self, images: Tensor) -> Tensor:
        return torch.stack([images[:, 0, 0, 0], 0.6 * images[:, 0, 0, 1]], dim=1)


def test_images_are_counted_with_and_without_test_time_augmentation() -> None:
    left = torch.tensor([1.0] * 5 + [0.1] * 6)
    images = torch.stack([left, torch.ones(11)], dim=1).view(11, 1, 1, 2)
    batches = [(images[:4], torch.zeros(4).long()), (images[4:], torch.zeros(7).long())]
    common = (Leftish(), batches, World(), contextlib.nullcontext, lambda: 0)
    plain, mirrored = evaluate(*common), evaluate(*common, "flips")
    assert plain is not None
    assert mirrored is not None
    assert (plain.correct, plain.total, plain.correct_of_views, plain.accuracy_of_views) == (5, 11, None, None)
    assert (mirrored.correct, mirrored.total, mirrored.accuracy_of_views) == (5, 11, 1.0)
    assert mirrored.loss == plain.loss


# -- reports -----------------------------------------------------------------------------------------------------------


def test_a_resumed_run_appends_to_its_log_which_has_null_for_nan(tmp_path: Path) -> None:
    for step, loss in ((1, 0.5), (2, float("nan"))):
        log = Log(tmp_path / "log.jsonl", None)
        log.write("epoch", step=step, loss=loss, waits=[0.1, 0.2], name="x")
        log.close()
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    line = {"kind": "epoch", "step": 1, "loss": 0.5, "waits": [0.1, 0.2], "name": "x"}
    assert lines == [line, {**line, "step": 2, "loss": None}]


def test_a_missing_tensorboard_and_a_full_disk_are_errors_and_leave_no_half_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UsageError, match="--tensorboard needs TensorBoard: pip install tensorboard"):
        Log(None, tmp_path)
    with pytest.raises(UsageError, match=r"--json must be a writable file, .+ Is a directory"):
        Log(tmp_path, None)
    log, path = Log(tmp_path / "log.jsonl", None), tmp_path / "log.jsonl"
    log.write("step", step=1)
    before, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 5, limits[1]))
    try:
        with pytest.raises(RunError, match="cannot be written: File too large; free some space"):
            log.write("step", step=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    log.close()


def test_the_wait_is_the_time_from_requesting_to_receiving_and_the_slowest_rank_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = iter([10.0, 11.0, 15.0, 15.5, 20.0])
    monkeypatch.setattr("training.metrics.time.perf_counter", lambda: next(times))
    timer = Timer()  # at 10, and requests the first batch
    timer.batch_received()
    timer.batch_requested()  # at 15, after a step
    timer.batch_received()
    assert (timer.received, timer.waited, timer.seconds) == (15.5, 1.5, 10.0)
    speed = Throughput.of_ranks(600, [(2.0, 0.5), (3.0, 0.1)], image_flops=1e9, peak=1e12)
    assert (speed.images_per_s, speed.seconds, speed.waited) == (200.0, 3.0, 0.5)
    assert str(speed) == "    200 images/s   data wait  16.7%   MFU 10.0%"


# -- ranks -------------------------------------------------------------------------------------------------------------


def test_ranks_and_steps_draw_different_numbers() -> None:
    drawn = set()
    with torch.random.fork_rng(devices=[]):
        for seed, step, rank in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1)]:
            seed_rank(seed, step, rank)
            drawn.add(float(torch.rand(())))
    assert len(drawn) == 5


def test_errors_of_a_lost_rank_are_recognised() -> None:
    lost = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:1"
    assert is_lost_rank(RuntimeError(lost))
    assert is_lost_rank(torch.distributed.DistNetworkError("the client socket has failed"))
    assert is_lost_rank(RuntimeError("Wait timeout"))  # of a rank that exited while the group was created
    assert not is_lost_rank(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_lost_rank(ValueError("gloo"))


@pytest.mark.parametrize(
    ("words", "device", "settings"),
    [
        ("", "cuda", (True, False, "highest")),
        ("--deterministic", "cuda", (False, True, "highest")),
        ("--precision tf32", "cuda", (True, False, "high")),
        ("", "cpu", (False, False, "highest")),
    ],
)
def test_cudnn_takes_the_fastest_algorithm_unless_deterministic_and_tf32_is_used_if_requested(
    monkeypatch: pytest.MonkeyPatch, words: str, device: str, settings: tuple[bool, bool, str]
) -> None:
    def current() -> tuple[bool, bool, str]:
        precision = torch.get_float32_matmul_precision()
        return torch.backends.cudnn.benchmark, torch.are_deterministic_algorithms_enabled(), precision

    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    args, _ = parse_arguments(RECIPES, [*words.split(), "--threads", str(torch.get_num_threads())])
    benchmark, _, precision = current()
    try:
        set_backends(args, World(device=torch.device(device)))
        assert current() == settings
    finally:
        torch.backends.cudnn.benchmark = benchmark
        torch.set_float32_matmul_precision(precision)
        torch.use_deterministic_algorithms(False)
