"""What DataParallel computes, step by step: split the batch, copy the weights, join the outputs, add the gradients.

    python examples/parallelism/data_parallel.py                            # two copies on the CPU
    python examples/parallelism/data_parallel.py --devices cuda:0,cuda:1    # compared with the class itself

Not an average, as the notes have it: the loss is computed once, over the joined outputs, so the result equals that of
one process even if the last part is smaller. DistributedDataParallel averages, which is the same only if all ranks have
as many samples. BatchNorm sees one part at a time, and only the first copy's running statistics are kept.

Measured (CPU): the sum of the copies' gradients equals one process's to 2e-8; their mean is off by 0.25.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from common import options
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy


def data_parallel(
    network: nn.Module, batch: Tensor, devices: Sequence[torch.device]
) -> tuple[Tensor, list[dict[str, Tensor]]]:
    """Compute ``nn.DataParallel(network, devices)(batch)``, and return the copies too.

    Returns:
        [n, ...] the outputs on the first device; the parameters of each copy, whose gradients are kept.
    """
    pieces = batch.chunk(len(devices))  # may be fewer than the devices: 5 samples on 4 make 3 parts
    outputs, copies = [], []
    for number, (piece, device) in enumerate(zip(pieces, devices, strict=False)):
        weights = {name: value.to(device, copy=True) for name, value in network.named_parameters()}
        for weight in weights.values():
            weight.retain_grad()
        # The first copy shares the network's own buffers, so its statistics are kept; the others' are lost.
        buffers = {name: value.to(device, copy=number > 0) for name, value in network.named_buffers()}
        outputs.append(functional_call(network, weights | buffers, piece.to(device)))
        copies.append(weights)
    return torch.cat([output.to(devices[0]) for output in outputs]), copies


def gradients(network: nn.Module) -> dict[str, Tensor]:
    """Return the gradients by name, and remove them from the network."""
    found = {name: value.grad for name, value in network.named_parameters() if value.grad is not None}
    network.zero_grad(set_to_none=True)
    return found


def difference(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    """Return the largest absolute difference between tensors of the same names."""
    assert left.keys() == right.keys(), f"{sorted(left)} beside {sorted(right)}"
    return max((left[name] - right[name].to(left[name].device)).abs().max().item() for name in left)


def main() -> None:
    """Compare one process, the copies' sum and the copies' mean, and the class itself if there are GPUs."""
    args = options(__doc__, devices="cpu,cpu", batch_size=10)
    devices = [torch.device(name) for name in args.devices.split(",")]

    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 10)).to(devices[0])
    images = torch.randn(args.batch_size, 20, device=devices[0])
    labels = torch.randint(0, 10, (args.batch_size,), device=devices[0])

    cross_entropy(network(images), labels).backward()
    alone = gradients(network)
    outputs, copies = data_parallel(network, images, devices)
    cross_entropy(outputs, labels).backward()
    together = gradients(network)
    total = {name: torch.zeros_like(value) for name, value in alone.items()}
    for copy in copies:
        for name, weight in copy.items():
            assert weight.grad is not None
            total[name] += weight.grad.to(devices[0])
    sizes = [len(piece) for piece in images.chunk(len(devices))]
    print(f"pieces of {sizes} samples")
    print(f"one process and the copies' gradients: {difference(alone, together):.1e} apart")
    print(f"... their sum:                         {difference(alone, total):.1e}")
    mean = {name: value / len(copies) for name, value in total.items()}
    print(f"... their mean:                        {difference(alone, mean):.1e}")
    if devices[0].type == "cuda":
        live = nn.DataParallel(network, [device.index for device in devices])
        cross_entropy(live(images), labels).backward()
        print(f"... torch's class:                     {difference(alone, gradients(network)):.1e}")
    else:
        print("torch's class on these devices calls the network once: not verified: no GPU")


if __name__ == "__main__":
    main()
