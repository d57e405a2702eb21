"""A whole training step as a CUDA graph: forward, backward and optimizer are one launch for the host.

    python examples/graphed_step.py

A graph reads the memory that it was captured with. With ``fixed_buffers=True`` the loader's batches lie in a few places
in turn, ``prefetch_to_device + 2`` of them, so there is one graph for each place, and no batch is copied for a graph.
What it has captured stays: all batches have one shape, and numbers such as the learning rate are those of the capture.
To change it, take an optimizer that reads it on the device (``SGD(..., lr=on_device, fused=True)`` with a tensor on the
device, ``Adam(..., capturable=True)``), and fill that tensor in between steps.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any, Protocol

import torch
from minimal import Digits, build_network
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fastload

PREFETCH = 2


class Graph(Protocol):
    """Work that was captured."""

    def replay(self) -> object:
        """Do it again, in the same memory."""


class Capturing:
    """Captures work on the current device."""

    def __init__(self) -> None:
        # One for all: the graphs are replayed one after the other, in the order in which they were captured.
        self._pool: Any = torch.cuda.graph_pool_handle()

    def before(self, work: Callable[[], Tensor]) -> Tensor:
        """Do work as it is done before it can be captured: on a stream of its own, as torch asks for."""
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            result = work()
        torch.cuda.current_stream().wait_stream(beside)
        return result

    def capture(self, work: Callable[[], Tensor]) -> tuple[Graph, Tensor]:
        """Return a graph of work, and where each replay leaves its result. The work is not done."""
        graph = torch.cuda.CUDAGraph()
        # The loader's threads may call CUDA meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            result = work()
        return graph, result


class GraphedStep:
    """Does a training step by graphs: one for each place that batches lie in.

    Args:
        step: (tensors of a batch) -> the loss. It must not look at a value, nor depend on anything but these tensors
            and what it changes itself.
        num_places: in how many places batches lie.
        capturing: captures it.
        num_before: steps that are done without a graph first: the optimizer makes its state, cuDNN chooses kernels.
    """

    def __init__(self, step: Callable[..., Tensor], num_places: int, capturing: Any, num_before: int = 3) -> None:
        self._step = step
        self._num_places = num_places
        self._capturing = capturing
        self._num_before = num_before
        self._graphs: dict[tuple[int, ...], tuple[Graph, Tensor]] = {}

    def __call__(self, *batch: Tensor) -> Tensor:
        """Do a step and return the loss, which the next step with a batch in this place overwrites."""
        if self._num_before:
            self._num_before -= 1
            result: Tensor = self._capturing.before(lambda: self._step(*batch))
            return result
        place = tuple(tensor.data_ptr() for tensor in batch)
        if place not in self._graphs:
            if len(self._graphs) == self._num_places:
                raise RuntimeError(
                    f"batches lie in more than {self._num_places} places, and each would be captured; give the loader "
                    "fixed_buffers=True"
                )
            self._graphs[place] = self._capturing.capture(lambda: self._step(*batch))
        graph, loss = self._graphs[place]
        graph.replay()
        return loss


def training_step(network: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Tensor, Tensor], Tensor]:
    """Return an ordinary training step."""

    def step(images: Tensor, labels: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=True)  # backward makes them anew, in the graph's own memory
        loss = cross_entropy(network(images), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def train(device: torch.device, capturing: Any, *, epochs: int, batch_size: int, lr: float, workers: int) -> nn.Module:
    """Train on the digits, and print each epoch's last loss; return the network."""
    torch.manual_seed(0)
    network = build_network().to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=lr, momentum=0.9, nesterov=True)
    loader = fastload.DataLoader(
        Digits(train=True), batch_size, shuffle=True, drop_last=True, seed=0, num_workers=workers, device=device,
        prefetch_to_device=PREFETCH, fixed_buffers=True,
    )  # fmt: skip
    step = GraphedStep(training_step(network, optimizer), PREFETCH + 2, capturing)
    loss = torch.zeros(())
    for epoch in range(1, epochs + 1):
        for images, labels in loader:
            loss = step(images, labels)
        print(f"epoch {epoch:2d}   loss {loss:.3f}", flush=True)  # waits for the device
    return network


def main() -> int:
    """Read the options and train; return 1 without a CUDA device."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print(f"CUDA graphs need CUDA, and torch {torch.__version__} sees no such device", file=sys.stderr)
        return 1
    train(torch.device("cuda"), Capturing(), **vars(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
