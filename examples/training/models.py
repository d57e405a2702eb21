"""The networks, by name: images [N, C, H, W] -> scores [N, classes].

For images of 32 x 32: ``small``, ``proxy``, ``airbench``, ``resnet18-cifar``, ``mobilenetv2-cifar``; ``small`` also for
8 x 8. For ImageNet torchvision's ``resnet18`` and ``resnet50``. With ``norm="none"`` there is no batch normalisation,
and the convolutions have biases.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from .errors import UsageError
from .recipe import Recipe

# c channels, k side of a kernel.


def conv_norm(inputs: int, outputs: int, k: int, norm: str, *, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """Return a convolution that keeps the image's size (but for the stride), and its normalisation if there is one."""
    convolution = nn.Conv2d(inputs, outputs, k, stride=stride, padding=k // 2, groups=groups, bias=norm == "none")
    return [convolution] if norm == "none" else [convolution, nn.BatchNorm2d(outputs)]


def small(channels: int, num_classes: int, norm: str) -> nn.Module:
    """Three stages of two convolutions; each stage halves the image, which must have 8 x 8 pixels at least."""
    layers: list[nn.Module] = []
    for inputs, outputs in [(channels, 16), (16, 32), (32, 64)]:
        layers += [*conv_norm(inputs, outputs, 3, norm), nn.ReLU()]
        layers += [*conv_norm(outputs, outputs, 3, norm), nn.ReLU()]
        layers += [nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, num_classes))


class Scaled(nn.Module):
    """A product with a constant: scores that are large at the start saturate the softmax."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, scores: Tensor) -> Tensor:
        """Return the product."""
        return scores * self.factor


class Largest(nn.Module):
    """The largest value of each channel: [N, C, H, W] -> [N, C].

    ``nn.AdaptiveMaxPool2d(1)`` gives the same, and its backward pass on GPUs is refused in deterministic mode.
    """

    def forward(self, images: Tensor) -> Tensor:
        """Return the values."""
        return images.amax(dim=(2, 3))


class Whitened(nn.Module):
    """A network in the manner of airbench94: a whitening layer, three blocks of two convolutions, a linear layer.

    What makes it fast to train: the first layer's weights are not learnt (:meth:`whiten`); convolutions begin as the
    identity; batch normalisation has no factors and quick averages; GELU; the scores are scaled down.

    One number is another: batch normalisation's eps is torch's 1e-5, not 1e-12. Of a channel that is constant, as all
    are in a batch of white images, 1e-12 leaves rounding times a million, layer after layer: the next step is NaN.

    Args:
        widths: channels of the three blocks: 64, 256, 256 in airbench94, 32, 64, 64 in its proxy.
        channels: of the images, whose sides are 9 pixels at least.
        num_classes: how many scores.
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
        self.layers = nn.Sequential(*layers, Largest())
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
        """Set the first layer: the 2 x 2 patches of images, projected to their principal axes and scaled to variance 1.

        Args:
            images: [N, C, H, W], float, as the network gets them in training; some thousands are enough.
            eps: added to the variances, against axes that have none.
        """
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
    """Layers, and a way past them; both are added."""

    def __init__(self, layers: list[nn.Module], past: list[nn.Module], *, relu: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.past = nn.Sequential(*past)
        self.last = nn.ReLU() if relu else nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        """Return what both ways together give."""
        out: Tensor = self.last(self.layers(images) + self.past(images))
        return out


def resnet18_cifar(channels: int, num_classes: int, norm: str) -> nn.Module:
    """ResNet-18 for small images: the first layer keeps their size, and nothing is pooled before the end.

    Source: He et al., "Deep residual learning for image recognition" (2016), with this first layer in section 4.2.
    """
    layers: list[nn.Module] = [*conv_norm(channels, 64, 3, norm), nn.ReLU()]
    inputs = 64
    for outputs, first_stride in [(64, 1), (128, 2), (256, 2), (512, 2)]:
        for stride in (first_stride, 1):
            main = [*conv_norm(inputs, outputs, 3, norm, stride=stride), nn.ReLU()]
            main += conv_norm(outputs, outputs, 3, norm)
            same = stride == 1 and inputs == outputs
            past = [] if same else conv_norm(inputs, outputs, 1, norm, stride=stride)
            layers.append(Residual(main, past, relu=True))
            inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, num_classes))


def mobilenetv2_cifar(channels: int, num_classes: int, norm: str) -> nn.Module:
    """MobileNetV2 for small images: three of its five halvings, and a way past every block of stride 1.

    Where the number of channels changes, that way is a 1 x 1 convolution: the variant whose accuracies on CIFAR-10 are
    published.

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
            past = [] if inputs == outputs else conv_norm(inputs, outputs, 1, norm)
            layers.append(Residual(block, past, relu=False) if stride == 1 else nn.Sequential(*block))
            inputs = outputs
    layers += [*conv_norm(inputs, 1280, 1, norm), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, num_classes))


class Blurred(nn.Module):
    """A convolution with a stride, and before it a blur, [1, 2, 1] / 4 along both sides, so that it skips less.

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
        """Return what the convolution makes of the blurred images."""
        kernel = self.kernel.to(images.dtype)
        blurred = nn.functional.conv2d(images, kernel, padding=1, groups=len(kernel))
        out: Tensor = self.convolution(blurred)
        return out


def blur_strides(network: nn.Module) -> None:
    """Put a blur before each convolution with a stride, but for those of the image itself."""
    for name, layer in list(network.named_children()):
        if isinstance(layer, nn.Conv2d) and max(layer.stride) > 1 and layer.in_channels > 4:
            setattr(network, name, Blurred(layer))
        else:
            blur_strides(layer)


MODELS = ("small", "proxy", "airbench", "resnet18-cifar", "mobilenetv2-cifar", "resnet18", "resnet50")


def build_network(name: str, channels: int, num_classes: int, norm: str = "batch", *, blur: bool = False) -> nn.Module:
    """Return a network by its name, and with a blur before its strides if that is wanted.

    Raises:
        UsageError: there is none of that name, or not with this normalisation or these channels.
    """
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
        raise UsageError(f"--model must be one of {', '.join(MODELS)}, got {name}; correct it")
    if norm != "batch" or channels != 3:
        raise UsageError(
            f"{name} is torchvision's: it has batch normalisation and takes images of 3 channels, got --norm {norm} "
            f"and {channels} channels; take another --model"
        )
    import torchvision.models

    # The last factor of each block begins at 0, so that blocks begin as the identity: 0.2 to 0.3 % in ImageNet
    # (Goyal et al., "Accurate, large minibatch SGD", 2017, section 5.1).
    network: nn.Module = getattr(torchvision.models, name)(num_classes=num_classes, zero_init_residual=True)
    return network


def parameter_groups(network: nn.Module, recipe: Recipe) -> list[dict[str, Any]]:
    """Return the optimizer's groups: weights of two dimensions and more, and the rest: biases and normalisation.

    They are told apart by dimensions, not by names: those of normalisation inside of a shortcut are often named
    otherwise. The product of learning rate and weight decay stays, whatever the factor. The bias of a whitening layer
    is neither: it learns at the weights' rate, and in the first epochs only.
    """
    whitening = network.whitening.bias if isinstance(network, Whitened) else None
    learnt = [one for one in network.parameters() if one.requires_grad and one is not whitening]
    weights, rest = [one for one in learnt if one.ndim > 1], [one for one in learnt if one.ndim <= 1]
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
    """Set the learning rates of a step: the factor times each group's highest, and 0 where it learns no longer.

    The gradient of what learns no longer is worked out all the same: DistributedDataParallel waits for all that it was
    made with.

    Args:
        groups: of the optimizer, made by :func:`parameter_groups`.
        factor: see :func:`~.schedule.lr_factor`.
        epoch: of the step, from 0.
    """
    for group in groups:
        group["lr"] = group["peak"] * factor if epoch < group.get("epochs", math.inf) else 0.0
