"""Averages of a network's weights: an exponential moving average, and Lookahead's slow weights."""

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


class Lookahead:
    """The slow weights of a network; create it when the network has its initial weights.

    Every ``every`` steps the slow weights keep ``decay ** every * (step / num_steps) ** 3`` of themselves and take the
    rest from the network, which is then reset to them. So at first the network hardly changes by it, and at the end it
    is nearly the mean over the last steps. At the last step the network gets the slow weights as they are. Running
    statistics of batch normalisation are treated like weights.

    Args:
        network: on its device, with the same weights on all ranks.
        every: steps, at least 1.
        decay: of the slow weights, for each step, at the end of the training; at least 0 and below 1.

    Source: Zhang et al., "Lookahead optimizer: k steps forward, 1 step back" (2019); the schedule is that of Jordan,
        arXiv 2404.00498, legacy/airbench94.py, which took it from hlb-CIFAR10.
    """

    def __init__(self, network: nn.Module, every: int, decay: float) -> None:
        self.network = network
        self.every = every
        self.decay = decay
        self._slow = {name: value.clone() for name, value in self._fast().items()}

    def _fast(self) -> dict[str, Tensor]:
        return {name: value for name, value in self.network.state_dict().items() if value.is_floating_point()}

    def update(self, step: int, num_steps: int) -> None:
        """Update the slow weights and reset the network to them, if it is due."""
        if step % self.every == 0:
            self._synchronise(self.decay**self.every * (step / num_steps) ** 3)
        if step == num_steps:
            self._synchronise(1.0)

    @torch.no_grad()
    def _synchronise(self, kept: float) -> None:
        fast = self._fast()
        weights, slow = list(fast.values()), [self._slow[name] for name in fast]
        torch._foreach_lerp_(slow, weights, 1 - kept)
        torch._foreach_copy_(weights, slow)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the slow weights, by the network's names."""
        return self._slow

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Set the slow weights; raises :class:`KeyError` or :class:`RuntimeError` for those of another network."""
        for name, slow in self._slow.items():
            slow.copy_(state[name])
