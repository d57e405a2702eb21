"""Create the optimizer after the model has its device, its dtype and its layers.

    python examples/parallelism/optimizer_after_to.py

The order that is always right: ``to(device)``, channels-last, SyncBatchNorm, the copy for an EMA,
DistributedDataParallel, then the optimizer, then ``load_state_dict``, which moves the state to the parameters' device.
The notes' reason is outdated (README.md). What breaks an earlier one gives no error: it silently updates parameters
that the model no longer has.

Measured (torch 2.13, CPU): right after ``to(float64)``, channels-last and SyncBatchNorm; wrong after ``to_empty`` and a
new layer; the momentum of a step before ``to(float64)`` is float32 until ``load_state_dict``.
"""

from typing import Any

import torch
from common import descend
from torch import nn


def has_all_parameters(optimizer: torch.optim.Optimizer, model: nn.Module) -> bool:
    """Return whether the optimizer has exactly the parameters of the model; assert it after set-up."""
    stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return stepped == {id(parameter) for parameter in model.parameters()}


def make_network(device: str = "cpu") -> nn.Sequential:
    """Return a small network."""
    return nn.Sequential(nn.Linear(4, 4, device=device), nn.BatchNorm1d(4, device=device))


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer with a buffer for each parameter."""
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, dtype: torch.dtype = torch.float32) -> None:
    """Make one step."""
    descend(optimizer, model(torch.ones(2, 4, dtype=dtype)).square().sum())


def kept_after(change: str) -> bool:
    """Return whether an optimizer created before a change still has the model's parameters."""
    network = make_network("meta" if change == "to_empty" else "cpu")
    optimizer = make_optimizer(network)
    match change:
        case "to(dtype)":
            network.to(torch.float64)
        case "channels-last":
            network.to(memory_format=torch.channels_last)
        case "SyncBatchNorm":
            network = nn.SyncBatchNorm.convert_sync_batchnorm(network)
        case "to_empty":
            network.to_empty(device="cpu")
        case "another layer":
            network[0] = nn.Linear(4, 4)
    return has_all_parameters(optimizer, network)


def state_after_a_move() -> tuple[torch.dtype, torch.dtype]:
    """Return the momentum's dtype after a step, a move to float64, and then after ``load_state_dict``."""
    network = make_network()
    optimizer = make_optimizer(network)
    step(network, optimizer)
    network.to(torch.float64)
    weight: Any = network[0].weight
    stale: torch.dtype = optimizer.state[weight]["momentum_buffer"].dtype
    optimizer.load_state_dict(optimizer.state_dict())
    step(network, optimizer, torch.float64)
    fresh: torch.dtype = optimizer.state[weight]["momentum_buffer"].dtype
    return stale, fresh


def main() -> None:
    """Print what an early optimizer keeps."""
    for change in ("to(dtype)", "channels-last", "SyncBatchNorm", "to_empty", "another layer"):
        result = "still right" if kept_after(change) else "updates parameters that the model no longer has"
        print(f"created before {change:14} {result}")
    stale, fresh = state_after_a_move()
    print(f"momentum of a step before to(float64): {stale}; after load_state_dict: {fresh}")


if __name__ == "__main__":
    main()
