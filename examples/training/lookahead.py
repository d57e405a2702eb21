"""Lookahead: slow weights that follow the network's, and that the network is reset to every few steps."""

from __future__ import annotations

import torch
from torch import Tensor, nn


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
