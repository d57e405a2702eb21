"""The exponential moving average (EMA) of a network's weights."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


class EMA:
    """An exponential moving average of a network's weights and float buffers; it is the network that is tested.

    The first update copies the network; each further one keeps ``decay`` of the average and takes the rest from the
    network. Integer buffers are copied. An update is two calls for all tensors and never waits for the device, while
    ``torch.optim.swa_utils.AveragedModel`` copies its counter from the host.

    Args:
        network: on its device; its tensors must stay the same objects.
        decay: at least 0 and below 1.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.module = copy.deepcopy(network)
        self._started = False
        self._decay = decay
        pairs = list(zip(_tensors(self.module), _tensors(network), strict=True))
        self._floats = [pair for pair in pairs if pair[0].is_floating_point()]
        self._others = [pair for pair in pairs if not pair[0].is_floating_point()]

    @torch.no_grad()
    def update(self) -> None:
        """Include the network's current weights in the average."""
        averages, values = [pair[0] for pair in self._floats], [pair[1] for pair in self._floats]
        if self._started:
            torch._foreach_lerp_(averages, values, 1 - self._decay)
        else:
            torch._foreach_copy_(averages, values)
        if self._others:
            torch._foreach_copy_([pair[0] for pair in self._others], [pair[1] for pair in self._others])
        self._started = True

    def load_state_dict(self, state: dict[str, Tensor], *, started: bool) -> None:
        """Set the average; ``started``: whether there was an update before it was saved."""
        self.module.load_state_dict(state)
        self._started = started


def _tensors(network: nn.Module) -> list[Tensor]:
    return [tensor.detach() for tensor in (*network.parameters(), *network.buffers())]
