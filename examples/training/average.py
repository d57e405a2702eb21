"""The running mean of a network's weights, which is the network that is tested.

In: a network, after each of its steps. Out: a network of the same kind. Nothing here waits for the device, while
``torch.optim.swa_utils.AveragedModel`` copies its count from the host for each dtype in each step.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


class Average:
    """The mean of a network's weights, recent ones counting most.

    After the first step it is the network; each further step keeps ``decay`` of it and takes the rest from the network.
    Buffers of floats, as the statistics of batch normalisation, are averaged likewise; others are those of the network.

    Args:
        network: on its device; its tensors stay the same ones, whatever their values.
        decay: at least 0 and below 1.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.module = copy.deepcopy(network)
        self.begun = False
        """Whether there has been a step; to be set with weights that are loaded into ``module``."""
        self._decay = decay
        pairs = list(zip(_tensors_of(self.module), _tensors_of(network), strict=True))
        self._floats = [pair for pair in pairs if pair[0].is_floating_point()]
        self._others = [pair for pair in pairs if not pair[0].is_floating_point()]

    @torch.no_grad()
    def update(self) -> None:
        """Take the network's last step in."""
        means, values = [mean for mean, _ in self._floats], [value for _, value in self._floats]
        if self.begun:
            torch._foreach_lerp_(means, values, 1 - self._decay)
        else:
            torch._foreach_copy_(means, values)
        if self._others:
            torch._foreach_copy_([ours for ours, _ in self._others], [theirs for _, theirs in self._others])
        self.begun = True


def _tensors_of(network: nn.Module) -> list[Tensor]:
    return [tensor.detach() for tensor in (*network.parameters(), *network.buffers())]
