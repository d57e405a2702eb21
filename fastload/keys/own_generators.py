"""Finds the generators of a dataset's own that samples draw from, and that nothing seeds for each sample.

Whether one is used in samples, its state tells: it has moved after a task. So one that only ``__init__`` draws from is
never named, nor is one that the code seeds anew for each sample, which depends on nothing else.
"""

from __future__ import annotations

import pickle
import random
import types
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..base import objects
from ..base.users_line import warn_at_users_line
from .library_transforms import GENERATORS, is_transform
from .seeding import numpy_generator, random_generator

if TYPE_CHECKING:
    from ..work import Counts

_NAMED: dict[str, type] = {
    "random.Random": random.Random,
    "numpy.random.Generator": np.random.Generator,
    "numpy.random.RandomState": np.random.RandomState,
    "torch.Generator": torch.Generator,
}
_KINDS = tuple(_NAMED.values())
# Tasks in which the states are looked at; later in fewer.
_FIRST = 16
# Of a Mersenne Twister's state. So many states are looked at: what 1.3 million draws of 32 bits go through.
_WORDS, _MOST_BLOCKS = 624, 2048

REMEDY = (
    "draw from fastload.rng(), a generator for each sample, or from the global generators (random, numpy.random, "
    "torch), which are seeded for each; or give the DataLoader seeding='torch' in place of a seed: "
    "then samples are those of torch's DataLoader, and depend on num_workers"
)


def generators_in(roots: dict[str, object]) -> list[tuple[str, Any]]:
    """Return the generators that objects reach and nothing seeds, each with words for its place and kind."""
    in_threads = random._inst, np.random.mtrand._rand
    seeded: list[Any] = [random_generator, numpy_generator, *in_threads, torch.default_generator]

    def is_generator(thing: Any) -> bool:
        if is_transform(thing):
            seeded.extend(vars(thing).get(name) for name in GENERATORS)
        return issubclass(type(_of(thing)), _KINDS)

    found: dict[int, tuple[str, Any]] = {}
    for name, root in roots.items():
        for one in objects.find(root, is_generator, inside=False, is_library=objects.is_installed):
            generator = _of(one.thing)
            found.setdefault(id(generator), (f"{one.path(name)} ({_kind_of(generator)})", generator))
    return [one for number, one in found.items() if number not in set(map(id, seeded))]


def _of(thing: Any) -> Any:
    return thing.__self__ if type(thing) is types.BuiltinMethodType else thing  # as random.Random(0).random


def _kind_of(generator: Any) -> str:
    return next(name for name, kind in _NAMED.items() if isinstance(generator, kind))


class _Watched:
    def __init__(self, name: str, generator: Any) -> None:
        self.name, self.generator = name, generator
        self.before: tuple[Any, bytes] | None = None
        self.is_known = self.has_moved = False

    def goes_on(self) -> bool:
        """Return whether tasks have drawn from it, and nothing has seeded it; it is looked at no more then."""
        after = _state_of(self.generator)
        if self.before is None or after is None or self.before[1] == after[1]:
            return False
        is_first, self.has_moved = not self.has_moved, True
        goes_on = _goes_on(self.before[0], after[0])
        if goes_on and is_first:
            return False  # one that is seeded for each sample may have been seeded as it was in the constructor
        self.is_known = True
        return goes_on


class OwnGenerators:
    """The generators that a worker's dataset and ``collate_fn`` reach, and what became of them.

    Cost: two searches of 0.1 to 1 ms, or 10 to 30 ms where a dataset holds nested lists of data, and 40 µs for each
    generator in each of 16 tasks, and the 32nd, 64th ...
    """

    def __init__(self, dataset: Any, collate_fn: Any) -> None:
        self._roots = {"dataset": dataset, "collate_fn": collate_fn}
        self._watched: dict[int, _Watched] = {}
        self._num_tasks = 0

    def begin(self) -> None:
        """Look at the states before a task."""
        self._num_tasks += 1
        if self._num_tasks <= 2:  # some are made when a sample is first loaded
            for name, one in generators_in(self._roots):
                self._watched.setdefault(id(one), _Watched(name, one))
        for one in self._looked_at():
            one.before = _state_of(one.generator)

    def end(self) -> list[str]:
        """Return the generators that tasks are now seen to draw from, each once; to be called after each task."""
        return [one.name for one in self._looked_at() if one.goes_on()]

    def _looked_at(self) -> list[_Watched]:
        is_due = self._num_tasks <= _FIRST or not self._num_tasks & (self._num_tasks - 1)
        return [one for one in self._watched.values() if is_due and not one.is_known]


def _state_of(generator: Any) -> tuple[Any, bytes] | None:
    """Return what :func:`_goes_on` asks for, and the state as bytes; None: it has none that can be had here."""
    try:
        if isinstance(generator, torch.Generator):
            # To ask a GPU's would start its runtime in this process.
            on_cpu = generator.device.type == "cpu"
            return (generator.initial_seed(), generator.get_state().numpy().tobytes()) if on_cpu else None
        if isinstance(generator, random.Random):
            state: Any = generator.getstate()
            return np.array(state[1][:-1], np.uint32), pickle.dumps(state)
        is_new = isinstance(generator, np.random.Generator)
        state = generator.bit_generator.state if is_new else generator.get_state(legacy=False)
        return state["state"].get("key", state["state"].get("inc")), pickle.dumps(state)
    except Exception:  # random.SystemRandom has no state, and classes of the user's may do anything
        return None


def _goes_on(before: Any, after: Any) -> bool:
    """Return whether a generator may have come from one state to another by drawing alone, without being seeded.

    Of torch's the seed tells, of PCG64 the increment, of Philox the key. Of a Mersenne Twister its words do: they stay
    for 624 draws, and then others follow.
    """
    if np.all(before == after) or np.size(before) != _WORDS:
        return bool(np.all(before == after))
    twister = np.random.MT19937(0)
    twister.state = {"bit_generator": "MT19937", "state": {"key": after, "pos": 0}}
    first = twister.random_raw()
    twister.state = {"bit_generator": "MT19937", "state": {"key": before, "pos": _WORDS}}
    return bool((twister.random_raw(_WORDS * _MOST_BLOCKS)[::_WORDS] == first).any())


def tell_of(counts: Counts) -> None:
    """Warn of the generators that workers have named, once for a loader; ``explain()`` names later ones too."""
    counts.has_warned = True
    warn_at_users_line(
        f"samples draw from {', '.join(list(counts.unseeded))}, which fastload does not seed for each sample: what "
        f"they get depends on which worker loads them, and when; {REMEDY}"
    )
