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
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
