"""Lookahead: slow weights that follow the network's, and to which the network returns every few steps.

In: a network, after each of its steps. Out: the same network, with other weights. It has a state, for checkpoints.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Lookahead:
    """The slow weights of a network, to be made when its weights are those of the first step.

    Every ``every`` steps the slow weights keep ``decay ** every * (t / T) ** 3`` of themselves at step ``t`` of ``T``
    and take the rest from the network, which then goes on from them. So at first they are the network's own, and at the
    end, when steps are noise around a place, nearly its mean over the last steps; with the last step the network gets
    them as they are. The averages of batch normalisation are treated like weights, which fits quick averages.

    Args:
        network: on its device, all its processes with the same weights.
        every: steps, at least 1.
        decay: of the slow weights, for each step, at the end of the training; at least 0 and below 1.

    Source: Zhang et al., "Lookahead optimizer: k steps forward, 1 step back" (2019); the schedule is that of Jordan,
        arXiv 2404.00498, as legacy/airbench94.py has it, where it comes from hlb-CIFAR10.
    """

    def __init__(self, network: nn.Module, every: int, decay: float) -> None:
        self.network = network
        self.every = every
        self.decay = decay
        self._slow = {name: value.clone() for name, value in self._quick().items()}

    def _quick(self) -> dict[str, Tensor]:
        return {name: value for name, value in self.network.state_dict().items() if value.is_floating_point()}

    def update(self, step: int, num_steps: int) -> None:
        """Bring both together, if this step is one for it.

        Args:
            step: steps made so far, 1 to ``num_steps``.
            num_steps: of the whole training.
        """
        if step % self.every == 0:
            self._meet(self.decay**self.every * (step / num_steps) ** 3)
        if step == num_steps:
            self._meet(1.0)

    @torch.no_grad()
    def _meet(self, kept: float) -> None:
        quick = self._quick()
        weights = list(quick.values())
        slow = [self._slow[name] for name in quick]
        torch._foreach_lerp_(slow, weights, 1 - kept)
        torch._foreach_copy_(weights, slow)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the slow weights, by the network's names."""
        return self._slow

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Set the slow weights; raises :class:`KeyError` or :class:`RuntimeError` for those of another network."""
        for name, slow in self._slow.items():
            slow.copy_(state[name])
