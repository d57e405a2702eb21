"""The FLOPs of a network, by which tests tell that it is the one that was published."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


def flops_per_image(network: nn.Module, channels: int, size: int) -> float:
    """Return the FLOPs of the forward and backward pass of one image, without computing anything.

    As usual, only convolutions and matrix products count, and the backward pass counts as twice the forward pass.
    (torch's counter is wrong for the gradients of grouped convolutions.)
    """
    twin = copy.deepcopy(network).to("meta").eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        twin(torch.empty(1, channels, size, size, device="meta"))
    return 3.0 * int(counter.get_total_flops())
