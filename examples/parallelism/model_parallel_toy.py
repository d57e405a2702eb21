"""A network with its first half on one device and the second on another; only one of them works at a time.

    python examples/parallelism/model_parallel_toy.py --devices cpu,cpu
    python examples/parallelism/model_parallel_toy.py --devices cuda:0,cuda:1

The notes are right: ``.to`` between the halves is part of the graph, so gradients cross it, and nothing else changes.

Measured (CPU): loss and gradients are bit-identical to those of one device. Two GPUs: not verified: no GPU.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn


class Toy(nn.Module):
    """Two linear layers, each on its own device."""

    def __init__(self, first: torch.device | str, second: torch.device | str) -> None:
        super().__init__()
        self.first, self.second = torch.device(first), torch.device(second)
        # Initialised on the CPU, so that the weights do not depend on the devices.
        self.net1, self.net2 = nn.Linear(10, 10).to(self.first), nn.Linear(10, 5).to(self.second)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [n, 5] on the second device, for [n, 10] from anywhere."""
        between = torch.relu(self.net1(inputs.to(self.first)))
        outputs: Tensor = self.net2(between.to(self.second))
        return outputs


def trained(first: str, second: str, steps: int = 3) -> tuple[float, list[Tensor]]:
    """Train; return the last loss and the last gradients, on the CPU."""
    torch.manual_seed(0)
    network = Toy(first, second)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)  # one optimizer for parameters on several devices
    for _ in range(steps):
        inputs, targets = torch.randn(20, 10), torch.randn(20, 5)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(network(inputs), targets.to(second))  # targets go where the outputs are
        loss.backward()
        optimizer.step()
    return loss.item(), [value.grad.cpu() for value in network.parameters() if value.grad is not None]


def main() -> None:
    """Compare with one device."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", default="cpu,cpu")
    first, second = parser.parse_args().devices.split(",")
    loss, split = trained(first, second)
    alone_loss, alone = trained(first, first)
    largest = max((left - right).abs().max().item() for left, right in zip(split, alone, strict=True))
    print(f"loss {loss:.6f} on {first} and {second}, {alone_loss:.6f} on {first} alone")
    print(f"gradients: {largest:.1e} apart")


if __name__ == "__main__":
    main()
