"""The three global generators."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def seed_generators(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def generator_states() -> tuple[Any, ...]:
    """Return their states, which can be compared."""
    kind, words, *rest = np.random.get_state()
    return random.getstate(), (kind, words.tolist(), *rest), torch.get_rng_state().tolist()
