"""The networks, by name: images [N, C, H, W] -> scores [N, classes].

For images of 32 x 32: ``small`` (also 8 x 8), ``proxy``, ``airbench``, ``resnet18-cifar``, ``mobilenetv2-cifar``. For
ImageNet: torchvision's ``resnet18`` and ``resnet50``. ``norm="none"``: biases in place of batch normalisation.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from .errors import UsageError
from .recipe import Recipe


def conv_norm(inputs: int, outputs: int, k: int, norm: str, *, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """Return a padded convolution with a k x k kernel, and its batch normalisation if ``norm`` is ``"batch"``."""
    convolution = nn.Conv2d(inputs, outputs, k, stride=stride, padding=k // 2, groups=groups, bias=norm == "none")
    return [convolution] if norm == "none" else [convolution, nn.BatchNorm2d(outputs)]


def small(channels: int, num_classes: int, norm: str) -> nn.Module:
    """Return three stages of two convolutions; each halves the image, which must be at least 8 x 8."""
    layers: list[nn.Module] = []
    for inputs, outputs in [(channels, 16), (16, 32), (32, 64)]:
        layers += [*conv_norm(inputs, outputs, 3, norm), nn.ReLU()]
        layers += [*conv_norm(outputs, outputs, 3, norm), nn.ReLU()]
        layers += [nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, num_classes))


class Scaled(nn.Module):
    """Multiplies the scores by a constant: large scores at the start saturate the softmax."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, scores: Tensor) -> Tensor:
        """Scale the scores."""
        return scores * self.factor


class GlobalMaxPool(nn.Module):
    """The maximum of each channel: [N, C, H, W] -> [N, C].

    Unlike the backward pass of ``nn.AdaptiveMaxPool2d(1)``, its own is allowed on GPUs in deterministic mode.
    """

    def forward(self, images: Tensor) -> Tensor:
        """Pool the images."""
        return images.amax(dim=(2, 3))


class Whitened(nn.Module):
    """The network of airbench94: a whitening layer, three blocks of two convolutions, a linear layer.

    It trains fast because the first layer's weights are fixed (:meth:`whiten`), convolutions start as the identity,
    batch normalisation has no scale and a high momentum, and the scores are scaled down.

    One difference: the eps of batch normalisation is torch's 1e-5, not 1e-12. In a batch of white images all channels
    are constant, and with 1e-12 rounding errors grow a million times in each layer: the next step is NaN.

    Args:
        widths: channels of the three blocks: 64, 256, 256 in airbench94, 32, 64, 64 in its proxy.
        channels: of the images, whose sides must be at least 9 pixels.
        num_classes: number of scores.
        norm: ``"batch"`` or ``"none"``.

    Source: Jordan, "94 % on CIFAR-10 in 3.29 seconds on a single GPU" (2024), arXiv 2404.00498, section 3.
    """

    def __init__(self, widths: tuple[int, int, int], channels: int, num_classes: int, norm: str) -> None:
        super().__init__()
        whitening = nn.Conv2d(channels, 2 * channels * 4, 2)
        whitening.weight.requires_grad = False
        nn.init.zeros_(whitening.bias)  # type: ignore[arg-type]
        layers: list[nn.Module] = [whitening, nn.GELU()]
        inputs = whitening.out_channels
        for width in widths:
            layers += [self._convolution(inputs, width, norm), nn.MaxPool2d(2), *self._norm(width, norm), nn.GELU()]
            layers += [self._convolution(width, width, norm), *self._norm(width, norm), nn.GELU()]
            inputs = width
        self.layers = nn.Sequential(*layers, GlobalMaxPool())
        self.head = nn.Sequential(nn.Linear(inputs, num_classes, bias=False), Scaled(1 / 9))

    @property
    def whitening(self) -> nn.Conv2d:
        """The first layer."""
        layer = self.layers[0]
        assert isinstance(layer, nn.Conv2d)
        return layer

    @staticmethod
    def _convolution(inputs: int, outputs: int, norm: str) -> nn.Module:
        convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=norm == "none")
        with torch.no_grad():
            nn.init.dirac_(convolution.weight[: min(inputs, outputs)])
        return convolution

    @staticmethod
    def _norm(width: int, norm: str) -> list[nn.Module]:
        if norm == "none":
            return []
        layer = nn.BatchNorm2d(width, momentum=0.4)
        layer.weight.requires_grad = False
        return [layer]

    @torch.no_grad()
    def whiten(self, images: Tensor, eps: float = 5e-4) -> None:
        """Set the first layer's weights: they project 2 x 2 patches to principal axes of variance 1."""
        whitening = self.whitening
        patches = images.unfold(2, 2, 1).unfold(3, 2, 1).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(0, 2)
        patches = patches.double()
        centred = patches - patches.mean(dim=0)
        variances, axes = torch.linalg.eigh(centred.T @ centred / len(centred))
        filters = (axes / (variances + eps).sqrt()).T.flip(0).reshape(-1, *whitening.weight.shape[1:])
        whitening.weight.copy_(torch.cat([filters, -filters]))

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores."""
        scores: Tensor = self.head(self.layers(images))
        return scores


class Residual(nn.Module):
    """Layers and a shortcut, whose outputs are added."""

    def __init__(self, layers: list[nn.Module], shortcut: list[nn.Module], *, relu: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.past = nn.Sequential(*shortcut)
        self.last = nn.ReLU() if relu else nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        """Return the sum."""
        out: Tensor = self.last(self.layers(images) + self.past(images))
        return out


def resnet18_cifar(channels: int, num_classes: int, norm: str) -> nn.Module:
    """Return ResNet-18 for small images: the first layer has no stride, and there is no max pooling.

    Source: He et al., "Deep residual learning for image recognition" (2016), section 4.2.
    """
    layers: list[nn.Module] = [*conv_norm(channels, 64, 3, norm), nn.ReLU()]
    inputs = 64
    for outputs, first_stride in [(64, 1), (128, 2), (256, 2), (512, 2)]:
        for stride in (first_stride, 1):
            main = [*conv_norm(inputs, outputs, 3, norm, stride=stride), nn.ReLU()]
            main += conv_norm(outputs, outputs, 3, norm)
            same = stride == 1 and inputs == outputs
            shortcut = [] if same else conv_norm(inputs, outputs, 1, norm, stride=stride)
            layers.append(Residual(main, shortcut, relu=True))
            inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, num_classes))


def mobilenetv2_cifar(channels: int, num_classes: int, norm: str) -> nn.Module:
    """Return MobileNetV2 for small images: three of its five strides, and a shortcut around every block of stride 1.

    If the number of channels changes, the shortcut is a 1 x 1 convolution; the published accuracies on CIFAR-10 are of
    this variant.

    Source: Sandler et al., "MobileNetV2: inverted residuals and linear bottlenecks" (2018), table 2.
    """
    layers: list[nn.Module] = [*conv_norm(channels, 32, 3, norm), nn.ReLU()]
    inputs = 32
    for expansion, outputs, count, first_stride in [
        (1, 16, 1, 1),
        (6, 24, 2, 1),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ]:
        for number in range(count):
            stride, width = first_stride if number == 0 else 1, expansion * inputs
            block = [*conv_norm(inputs, width, 1, norm), nn.ReLU()]
            block += [*conv_norm(width, width, 3, norm, stride=stride, groups=width), nn.ReLU()]
            block += conv_norm(width, outputs, 1, norm)
            shortcut = [] if inputs == outputs else conv_norm(inputs, outputs, 1, norm)
            layers.append(Residual(block, shortcut, relu=False) if stride == 1 else nn.Sequential(*block))
            inputs = outputs
    layers += [*conv_norm(inputs, 1280, 1, norm), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, num_classes))


class Blurred(nn.Module):
    """A convolution with a stride after a blur, [1, 2, 1] / 4 in both directions, against aliasing.

    Source: Zhang, "Making convolutional networks shift-invariant again" (2019), as ffcv-imagenet's recipes have it.
    """

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        self.convolution = convolution
        line = torch.tensor([0.25, 0.5, 0.25])
        kernel = torch.outer(line, line).expand(convolution.in_channels, 1, 3, 3).clone()
        self.kernel: Tensor
        self.register_buffer("kernel", kernel, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Blur and convolve."""
        kernel = self.kernel.to(images.dtype)
        blurred = nn.functional.conv2d(images, kernel, padding=1, groups=len(kernel))
        out: Tensor = self.convolution(blurred)
        return out


def blur_strides(network: nn.Module) -> None:
    """Put a blur before each convolution with a stride, except the first layer."""
    for name, layer in list(network.named_children()):
        if isinstance(layer, nn.Conv2d) and max(layer.stride) > 1 and layer.in_channels > 4:
            setattr(network, name, Blurred(layer))
        else:
            blur_strides(layer)


MODELS = ("small", "proxy", "airbench", "resnet18-cifar", "mobilenetv2-cifar", "resnet18", "resnet50")


def build_network(name: str, channels: int, num_classes: int, norm: str = "batch", *, blur: bool = False) -> nn.Module:
    """Return a network by its name; ``blur``: with a blur before its strides."""
    network = _plain_network(name, channels, num_classes, norm)
    if blur:
        blur_strides(network)
    return network


def _plain_network(name: str, channels: int, num_classes: int, norm: str) -> nn.Module:
    own = {"small": small, "resnet18-cifar": resnet18_cifar, "mobilenetv2-cifar": mobilenetv2_cifar}
    widths = {"proxy": (32, 64, 64), "airbench": (64, 256, 256)}
    if name in own:
        return own[name](channels, num_classes, norm)
    if name in widths:
        return Whitened(widths[name], channels, num_classes, norm)
    if name not in MODELS:
        raise UsageError(f"--model must be one of {', '.join(MODELS)}, got {name}")
    if norm != "batch" or channels != 3:
        raise UsageError(
            f"--model {name} is torchvision's, with batch normalisation and 3 channels, got --norm {norm} and "
            f"{channels} channels; use another --model"
        )
    import torchvision.models

    # The last scale of each block starts at 0, so that blocks start as the identity: 0.2 to 0.3 % on ImageNet
    # (Goyal et al., "Accurate, large minibatch SGD", 2017, section 5.1).
    network: nn.Module = getattr(torchvision.models, name)(num_classes=num_classes, zero_init_residual=True)
    return network


def parameter_groups(network: nn.Module, recipe: Recipe) -> list[dict[str, Any]]:
    """Return the optimizer's groups: parameters of two dimensions or more, and the rest (biases, normalisation).

    They are distinguished by dimensions, since names differ between networks. The product of learning rate and weight
    decay does not depend on ``bias_lr_factor``. The bias of a whitening layer is a third group: it has the weights'
    learning rate, and is trained in the first epochs only.
    """
    whitening = network.whitening.bias if isinstance(network, Whitened) else None
    trained = [one for one in network.parameters() if one.requires_grad and one is not whitening]
    weights, rest = [one for one in trained if one.ndim > 1], [one for one in trained if one.ndim <= 1]
    factor = recipe.bias_lr_factor
    groups: list[dict[str, Any]] = [
        {"params": weights, "peak": recipe.lr, "weight_decay": recipe.weight_decay},
        {"params": rest, "peak": recipe.lr * factor, "weight_decay": recipe.norm_weight_decay / factor},
    ]
    if whitening is not None:
        first = {"epochs": recipe.whitening_bias_epochs} if recipe.whitening_bias_epochs else {}
        groups.append({"params": [whitening], "peak": recipe.lr, "weight_decay": recipe.weight_decay, **first})
    return [group for group in groups if group["params"]]


def set_learning_rates(groups: list[dict[str, Any]], factor: float, epoch: int) -> None:
    """Set the learning rates of a step: the factor times each group's peak, and 0 after the group's last epoch.

    (Its gradient is still computed: DistributedDataParallel waits for all parameters that it was created with.)
    """
    for group in groups:
        group["lr"] = group["peak"] * factor if epoch < group.get("epochs", math.inf) else 0.0
