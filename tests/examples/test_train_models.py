"""The networks: parameters, cost, and what is special about each."""

from __future__ import annotations

from dataclasses import replace

import cifar10
import pytest
import torch
import trainings  # noqa: F401  # puts examples/ on the path
from torch import nn
from training.errors import UsageError
from training.metrics import flops_per_image
from training.models import (
    Blurred,
    GlobalMaxPool,
    Whitened,
    blur_strides,
    build_network,
    parameter_groups,
    set_learning_rates,
)
from training.recipe import Recipe


@pytest.mark.parametrize(
    ("name", "parameters", "giga_flops"),
    [
        # Published counts; the last column is forward and backward for one image.
        ("resnet18-cifar", 11_173_962, 3.34),
        ("mobilenetv2-cifar", 2_296_922, 0.56),
        ("airbench", 1_972_792, 0.73),
        ("proxy", None, 0.1),
        ("small", None, None),
    ],
)
@pytest.mark.parametrize("norm", ["batch", "none"])
def test_networks_have_the_published_parameters_and_cost(
    name: str, parameters: int | None, giga_flops: float | None, norm: str
) -> None:
    network = build_network(name, 3, 10, norm)
    assert network.eval()(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    has_norm = any(isinstance(module, nn.BatchNorm2d) for module in network.modules())
    assert has_norm == (norm == "batch")
    if norm == "none":
        return
    if parameters is not None:
        count = sum(one.numel() for one in network.parameters())
        assert count == pytest.approx(parameters, rel=0.001)
    if giga_flops is not None:
        assert flops_per_image(network, 3, 32) / 1e9 == pytest.approx(giga_flops, rel=0.1)


def test_unknown_networks_are_an_error() -> None:
    with pytest.raises(UsageError, match=r"--model must be one of small, .+, got resnet19"):
        build_network("resnet19", 3, 10)
    with pytest.raises(UsageError, match=r"resnet50 is torchvision's, .+ got --norm none and 1 channels"):
        build_network("resnet50", 1, 10, "none")


def test_whitened_patches_have_unit_variance_and_no_correlation() -> None:
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


def test_parameters_are_grouped_by_their_dimensions() -> None:
    network = build_network("proxy", 3, 10)
    recipe = Recipe(source="", lr=1.5, weight_decay=2e-3, norm_weight_decay=1e-3, bias_lr_factor=64.0)
    weights, rest, _ = parameter_groups(network, recipe)
    assert {one.ndim for one in weights["params"]} == {2, 4}
    assert {one.ndim for one in rest["params"]} == {1}
    assert (weights["peak"], rest["peak"]) == (1.5, 96.0)
    assert rest["peak"] * rest["weight_decay"] == pytest.approx(1.5 * 1e-3)
    assert all(one.requires_grad for group in (weights, rest) for one in group["params"])


def test_global_max_pool_equals_torchs() -> None:
    images = torch.randn(3, 4, 5, 6, generator=torch.Generator().manual_seed(0), requires_grad=True)
    pooled = nn.AdaptiveMaxPool2d(1)(images).flatten(1)
    assert torch.equal(GlobalMaxPool()(images), pooled)
    gradients = [torch.autograd.grad(out.square().sum(), images)[0] for out in (GlobalMaxPool()(images), pooled)]
    assert torch.equal(*gradients)


def test_the_bias_of_a_whitening_layer_is_trained_in_the_first_epochs_only() -> None:
    torch.manual_seed(0)
    network = build_network("proxy", 3, 10)
    assert isinstance(network, Whitened)
    images, labels = torch.randn(8, 3, 9, 9), torch.arange(8)
    groups = parameter_groups(network, cifar10.FAST)
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
    assert [group["peak"] for group in groups] == [1.5, 96.0, 1.5]
    everywhere = parameter_groups(network, replace(cifar10.FAST, whitening_bias_epochs=0))
    set_learning_rates(everywhere, 0.5, 1000)
    assert [group["lr"] for group in everywhere] == [0.75, 48.0, 0.75]


def test_a_blur_is_added_before_strides_and_changes_nothing_else() -> None:
    torch.manual_seed(0)
    plain, blurred = build_network("resnet18", 3, 5), build_network("resnet18", 3, 5, blur=True)
    found = [name for name, layer in blurred.named_modules() if isinstance(layer, Blurred)]
    assert found == [f"layer{n}.0.{part}" for n in (2, 3, 4) for part in ("conv1", "downsample.0")]
    names = [name.replace(".convolution.", ".") for name in blurred.state_dict()]
    assert names == list(plain.state_dict())
    assert flops_per_image(blurred, 3, 64) > flops_per_image(plain, 3, 64)
    dot = torch.zeros(1, 5, 9, 9)
    dot[..., 4, 4] = 16.0
    layer = nn.Sequential(nn.Conv2d(5, 1, 1, stride=2, bias=False))
    nn.init.ones_(layer[0].weight)
    blur_strides(layer)
    expected = torch.zeros(5, 5)
    expected[2, 2] = 4.0  # the centre of the kernel; the stride skips the rest
    torch.testing.assert_close(layer(dot)[0, 0], 5 * expected)


@pytest.mark.parametrize(("eps", "survives"), [(None, True), (1e-12, False)])
def test_a_batch_of_white_images_breaks_the_training_only_with_a_tiny_eps(eps: float | None, survives: bool) -> None:
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


def test_flops_of_resnet18_equal_those_counted_by_hand() -> None:
    # Kernel, input and output channels, output pixels; the three later stages have the same cost.
    stem, early = 9 * 3 * 64 * 32**2, 4 * 9 * 64 * 64 * 32**2
    stage = 9 * 64 * 128 * 16**2 + 3 * 9 * 128 * 128 * 16**2 + 64 * 128 * 16**2
    forward = stem + early + 3 * stage + 512 * 10
    assert forward == 555_422_720  # the published 0.56 billion
    assert flops_per_image(build_network("resnet18-cifar", 3, 10), 3, 32) == 2 * 3 * forward
