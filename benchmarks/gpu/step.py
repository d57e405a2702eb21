"""A training step with data, against the same step with a batch that is there already.

Claim: at most 1.01 times as long, whether the images lie on the device or come from workers.

The step: forward, backward, SGD; ResNet-18 for images of 32 pixels in bfloat16 autocast, channels-last (on the CPU a
small convolutional net in float32). The sides: "one batch": augmented once, and given again and again; "resident":
``DataLoader(resident="device")``; "workers": a TensorDataset with ``device=`` and ``batch_transform=``. Steps are timed
epoch after epoch without a pause, behind enough warm-up steps that no batch is left which was loaded in a pause;
nothing within waits for the device.

Meaningless if: there are fewer cores than workers; or the step is so short that the host cannot keep the device busy.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.gpu.made_data import NUM_CLASSES, classes, noise
from benchmarks.gpu.measuring import endless, measuring, seconds_of
from benchmarks.gpu.resident import array_loader, augmentation
from benchmarks.loops import kept
from benchmarks.spec import Measurement, Side

Step = Callable[[Tensor, Tensor], None]


@measuring
def steps(side: Side, *, num_steps: int, device: str, **arguments: Any) -> Measurement:
    work = warm_steps(side.name, num_steps, device=device, **arguments)
    return {"ms/step": seconds_of(work, torch.device(device)) / num_steps * 1e3}


def warm_steps(
    side: str,
    num_steps: int,
    *,
    device: str,
    model: str,
    num_images: int,
    batch_size: int,
    num_warm_steps: int,
    num_workers: int,
) -> Callable[[], None]:
    """Return what makes ``num_steps`` steps with a side's batches, after the warm-up steps."""
    step: Step = kept("step", lambda: _step(model, torch.device(device)))
    loader = kept("loader", lambda: _batches(side, device, num_images, batch_size, num_workers))
    batches: Iterator[tuple[Tensor, Tensor]] = kept("batches", lambda: endless(loader))

    def work(num: int = num_steps) -> None:
        for _ in range(num):
            step(*next(batches))

    work(num_warm_steps)
    return work


def _batches(name: str, device: str, num_images: int, batch_size: int, num_workers: int) -> Any:
    images, labels = noise(num_images, 3, 32, 32), classes(num_images)
    if name == "resident":
        return array_loader(images, labels, batch_size, device, channels_last=True)
    if name == "workers":
        given = {"resident": None, "num_workers": num_workers, "persistent_workers": True}
        return array_loader(images, labels, batch_size, device, channels_last=True, **given)
    one = augmentation()(images[:batch_size].to(device).contiguous(memory_format=torch.channels_last))
    return [(one, labels[:batch_size].to(device))]


def _step(name: str, device: torch.device) -> Step:
    model = _model(name).to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    torch.backends.cudnn.benchmark = True

    def step(images: Tensor, labels: Tensor) -> None:
        with torch.autocast(device.type, torch.bfloat16):
            loss = cross_entropy(model(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


def _model(name: str) -> nn.Module:
    if name == "small":
        return nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, NUM_CLASSES)
        )
    from torchvision.models import resnet18  # type: ignore[import-untyped]

    model: nn.Module = resnet18(num_classes=NUM_CLASSES)
    # As He et al. have it for CIFAR: the first convolution keeps the size.
    model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    model.maxpool = nn.Identity()
    return model
