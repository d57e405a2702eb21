"""Names imported before any worker thread ran, for test_routing.py."""

from __future__ import annotations

import collections
import functools
import random
from dataclasses import dataclass
from random import choices, gauss, randint, shuffle
from typing import Any

import numpy as np
import torch
from numpy.random import normal, permutation, rand
from torch import manual_seed, rand_like, randperm


class InClass:
    draw = random.random
    static = staticmethod(np.random.rand)


class InSlots:
    __slots__ = ("draw",)

    def __init__(self) -> None:
        self.draw = random.random


@dataclass(frozen=True)
class Frozen:
    draw: Any = random.random


class InInstance:
    def __init__(self) -> None:
        self.draw = np.random.normal
        self.generator = np.random.mtrand._rand
        self.method = random._inst.uniform  # another object than random.uniform


def by_default(draw: Any = random.random, *, other: Any = np.random.rand) -> tuple[Any, Any]:
    return draw(), float(other())


def make_closure() -> Any:
    draw = random.random
    return lambda: draw()


slots, frozen, instance, closure = InSlots(), Frozen(), InInstance(), make_closure()
in_list, in_dict, in_deque = [random.random], {"draw": np.random.rand}, collections.deque([random.random])
in_tuple = (random.random, (np.random.rand,))
in_set = {random.random}
partial = functools.partial(random.uniform, 0, 1)
of_partial = functools.partial(lambda draw, other: draw() + other(), random.random, other=np.random.rand)


def draw_all() -> list[Any]:
    """Draw once by each."""
    items = list(range(10))
    shuffle(items)
    return [
        gauss(0, 1),
        randint(0, 10**9),
        choices(range(100), k=3),
        items,
        float(normal()),
        permutation(5).tolist(),
        float(rand()),
        InClass().draw(),
        float(InClass.static()),
        slots.draw(),
        frozen.draw(),
        float(instance.draw()),
        float(instance.generator.rand()),
        instance.method(0, 1),
        by_default(),
        closure(),
        in_list[0](),
        float(in_dict["draw"]()),
        in_deque[0](),
        in_tuple[0](),
        float(in_tuple[1][0]()),
        next(iter(in_set))(),
        partial(),
        of_partial(),
        randperm(5).tolist(),
        rand_like(torch.ones(3)).tolist(),
        manual_seed(randint(0, 9)).initial_seed(),
    ]
