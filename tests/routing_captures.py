"""Functions that draw, bound before any worker thread ran, for test_routing.py: by names, and in other ways."""

from __future__ import annotations

import collections
import functools
import random
from collections.abc import Callable
from random import choices, gauss, randint, shuffle
from typing import Any

import numpy as np
import scipy.stats
import torch
from kit.datasets import Sized
from numpy.random import mtrand, normal, permutation, rand, seed
from torch import manual_seed, rand_like, randperm
from torch.utils.data import get_worker_info

generator = mtrand._rand  # type: ignore[attr-defined]
NAMES = ("choices", "gauss", "randint", "shuffle", "normal", "permutation", "rand", "manual_seed", "generator")


def draw_by_names() -> list[Any]:
    """Draw once by each name."""
    items = list(range(10))
    shuffle(items)
    drawn = [gauss(0, 1), randint(0, 10**9), choices(range(100), k=3), items, float(normal()), permutation(5).tolist()]
    drawn += [float(rand()), float(generator.rand()), randperm(5).tolist(), rand_like(torch.ones(3)).tolist()]
    seed(7)
    return [*drawn, float(rand()), manual_seed(randint(0, 9)).initial_seed()]


class Dataset(Sized):
    """Counts how often it is asked for a sample; draws by ``draw``."""

    def __init__(self, draw: Callable[..., Any], **attributes: Any) -> None:
        super().__init__(4)
        self.asked, self.draw = 0, draw
        vars(self).update(attributes)

    def __getitem__(self, index: int) -> Any:
        self.asked += 1
        return self.draw()


class InClass:
    """Holds functions as attributes."""

    draw = random.random
    static = staticmethod(np.random.rand)


class InSlots:
    """Holds a function in a slot."""

    __slots__ = ("draw",)

    def __init__(self) -> None:
        self.draw = random.random


def by_default(draw: Any = random.random) -> Any:
    """Draw by a default argument."""
    return draw()


def by_keyword(*, draw: Any = np.random.rand) -> Any:
    """Draw by a default argument that has a name."""
    return draw()


def closure() -> Callable[[], Any]:
    """Return a function that draws by its closure."""
    draw = random.random
    return lambda: draw()


in_deque = collections.deque([random.random])
partial = functools.partial(random.uniform, 0, 1)

HELD: list[tuple[str, Dataset, str]] = [
    ("dataset.draw", Dataset(random.random), "random.random"),
    ("dataset.draw", Dataset(np.random.normal), "numpy.random.normal"),
    ("dataset.draw", Dataset(random._inst.uniform), "random.uniform"),  # type: ignore[attr-defined]
    ("dataset.generator", Dataset(int, generator=np.random.mtrand._rand), "numpy.random"),  # type: ignore[attr-defined]
    ("dataset.generator", Dataset(int, generator=random._inst), "random"),  # type: ignore[attr-defined]
    ("dataset.draw.draw", Dataset(by_default), "random.random"),
    ("draw", Dataset(by_keyword), "numpy.random.rand"),
    ("dataset.draw.draw", Dataset(closure()), "random.random"),
    ("InClass.draw", Dataset(lambda: InClass().draw(), held=InClass()), "random.random"),
    ("dataset.held.draw", Dataset(int, held=InSlots()), "random.random"),
    ("in_deque[0]", Dataset(lambda: in_deque[0]()), "random.random"),
    ("partial.func", Dataset(lambda: partial()), "random.uniform"),
    ("dataset.draws['seed']", Dataset(int, draws={"seed": torch.manual_seed}), "torch.random.manual_seed"),
    ("dataset.info", Dataset(int, info=get_worker_info), "torch.utils.data.get_worker_info"),
    ("scipy.stats.norm._random_state", Dataset(lambda: scipy.stats.norm.rvs()), "numpy.random"),
]
"""Where datasets hold what no name can exchange, and what it is."""
