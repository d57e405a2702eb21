"""A ResNet-50 on two devices, with the batch cut into splits so that both devices work at once; for several sizes.

    python examples/parallelism/pipeline_by_hand.py --devices cuda:0,cuda:1               # batches of 120, 128 pixels
    python examples/parallelism/pipeline_by_hand.py --network resnet18 --batch-size 24 --side 64 --split-sizes 24,12,6

GPU calls are asynchronous, so one thread keeps both devices busy, as the notes say; on the CPU nothing overlaps. With m
splits on p devices a step takes at least (m + p - 1) / (m p) of one device's time: 7/12 for the notes' splits of 20 of
120, which took 2.51 of 3.75 s. In training BatchNorm sees one split at a time.

Measured: see README.md for the CPU. Two GPUs: not verified: no GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from common import descend, options, seconds
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torchvision import models


def halves(network: nn.Module) -> tuple[nn.Sequential, nn.Sequential]:
    """Split a torchvision ResNet after its second stage."""
    parts = dict(network.named_children())
    front = [parts[name] for name in ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2")]
    back = [parts[name] for name in ("layer3", "layer4", "avgpool")]
    return nn.Sequential(*front), nn.Sequential(*back, nn.Flatten(), parts["fc"])


class Pipelined(nn.Module):
    """Two halves of a network on two devices, which process a batch split by split."""

    def __init__(
        self, front: nn.Module, back: nn.Module, devices: Sequence[torch.device | str], split_size: int
    ) -> None:
        super().__init__()
        self.devices = [torch.device(device) for device in devices]
        self.front, self.back = front.to(self.devices[0]), back.to(self.devices[1])
        self.split_size = split_size

    def forward(self, batch: Tensor) -> Tensor:
        """Return the outputs of the whole batch [n, classes], on the second device."""
        splits = iter(batch.split(self.split_size))
        between = self.front(next(splits).to(self.devices[0])).to(self.devices[1])
        outputs = []
        for split in splits:
            outputs.append(self.back(between))  # the second device has this to do, and is not waited for,
            between = self.front(split.to(self.devices[0])).to(self.devices[1])  # while the first does this
        outputs.append(self.back(between))
        return torch.cat(outputs)


def bound(splits: int, devices: int) -> float:
    """Return the least share of one device's time that a step may take: full but for filling and draining."""
    return (splits + devices - 1) / (splits * devices)


def main() -> None:
    """Time training steps for each size of a split."""
    networks, sizes = ("resnet50", "resnet34", "resnet18"), "120,60,40,20,12,8,4,2,1"
    args = options(__doc__, devices="cpu,cpu", network=networks, batch_size=120, side=128, split_sizes=sizes, repeats=3)
    devices = [torch.device(name) for name in args.devices.split(",")]
    images = torch.randn(args.batch_size, 3, args.side, args.side)
    labels = torch.randint(0, 1000, (args.batch_size,), device=devices[1])

    def step_time(places: Sequence[torch.device], split_size: int) -> float:
        torch.manual_seed(0)
        model = Pipelined(*halves(getattr(models, args.network)()), places, split_size)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001)

        def step() -> None:
            descend(optimizer, cross_entropy(model(images), labels.to(places[1])))
            if places[0].type == "cuda":
                torch.cuda.synchronize(places[0])  # the way back ends there

        return seconds(step, places[1], args.repeats, warm_up=1)

    one = step_time([devices[0], devices[0]], args.batch_size)
    print(f"{args.network}, {args.batch_size} images of {args.side} pixels; one device: {one:.3f} s a step")
    print("| split size | splits | s a step | of one device | bound for 2 devices |\n| --- | --- | --- | --- | --- |")
    for size in map(int, args.split_sizes.split(",")):
        splits = -(-args.batch_size // size)
        taken = step_time(devices, size)
        print(f"| {size} | {splits} | {taken:.3f} | {taken / one:.2f} | {bound(splits, 2):.2f} |", flush=True)


if __name__ == "__main__":
    main()
