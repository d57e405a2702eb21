"""Save and restore the generators that determine the order of a sampler that is not fastload's.

States are a flat dict: a uint8 tensor for a generator of torch's, JSON for others. Found are the loader's generator,
those in attributes of its samplers, at any depth, and the global ones if a sampler may draw from them. A sampler of
torch's draws only from torch's global generator, and only if it has no own.
"""

from __future__ import annotations

import copy
import itertools
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, Dataset, IterableDataset, Sampler, SequentialSampler
from torch.utils.data import DistributedSampler as TorchDistributedSampler

from ..base.walking import ATTRIBUTE, Held, ReachableObject, attributes_of, walk
from ..errors import StateError
from .epochs import Sampling, iterates_as
from .samplers import EpochBatchSampler, EpochSampler

# Saved states name what is found by its path: another limit, or another order, makes them unreadable.
_MAX_DEPTH = 5
_MAX_ITEMS = 20
_LEAVES = (str, bytes, int, float, complex, type(None), type, np.ndarray, torch.Tensor, ModuleType, FunctionType)

_KINDS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)

# Their order is a function of their attributes, or of the sampler in them.
_DRAWING_NOTHING = (SequentialSampler, TorchDistributedSampler, BatchSampler)


def generator_states(sampling: Sampling) -> dict[str, Any]:
    """Return the states of all generators that may determine the order of a loader."""
    return _states_of(_owned(sampling) | _global(sampling))


def check_generator_states(sampling: Sampling, states: dict[str, Any]) -> None:
    """Check loaded states; the generators are not changed.

    Raises:
        StateError: one of them is not the state of a generator of that class.
    """
    for name, generator in (_owned(sampling) | _global(sampling)).items():
        try:
            _set_state(_new_like(generator), states[name])
        except Exception as error:
            raise StateError(
                f"generator.{name} must be the state of a {type(generator).__name__}, got {states[name]!r:.80}: {error}"
            ) from None


@contextmanager
def generators_at(sampling: Sampling, states: dict[str, Any], *, leave_equal: bool = False) -> Iterator[None]:
    """Set the generators that determine a loader's order to saved states.

    At the end the global ones get their previous states back, since they are the user's. The loader's and samplers' own
    ones keep the states that they have then, as they did when the states were saved. ``leave_equal``: global ones that
    are in these states already keep theirs too.
    """
    shared = _global(sampling)
    before = _states_of(shared)
    restores = not (leave_equal and _equal(before, states))
    try:
        _set_states(_owned(sampling) | shared, states)
        yield
    finally:
        if restores:
            _set_states(shared, before)


@contextmanager
def generators_kept(sampling: Sampling) -> Iterator[None]:
    """Restore all generators that determine a loader's order at the end."""
    generators = _owned(sampling) | _global(sampling)
    before = _states_of(generators)
    try:
        yield
    finally:
        _set_states(generators, before)


def set_own_generators(sampling: Sampling, states: dict[str, Any]) -> bool:
    """Set the loader's and samplers' own generators to saved states; return whether the global ones are in theirs."""
    _set_states(_owned(sampling), states)
    return _equal(_states_of(_global(sampling)), states)


def names_not_made_yet(sampling: Sampling) -> set[str]:
    """Return the names of the samplers' attributes that are None: a generator may be made there when it is needed."""
    return {path for path, value in _attributes(sampling) if value is None}


def _states_of(generators: dict[str, Any]) -> dict[str, Any]:
    return {name: _state_of(generator) for name, generator in generators.items()}


def _set_states(generators: dict[str, Any], states: dict[str, Any]) -> None:
    for name, generator in generators.items():
        if name in states:
            _set_state(generator, states[name])


def _equal(states: dict[str, Any], others: dict[str, Any]) -> bool:
    return all(
        name in others
        and (torch.equal(state, others[name]) if isinstance(state, torch.Tensor) else state == others[name])
        for name, state in states.items()
    )


def _owned(sampling: Sampling) -> dict[str, Any]:
    """Return the loader's own generator and those that its samplers hold, each once."""
    if isinstance(sampling.dataset, IterableDataset):
        return {}
    found: dict[str, Any] = {}
    if isinstance(sampling.generator, torch.Generator):
        found["loader"] = sampling.generator
    for path, value in _attributes(sampling):
        if _is_generator(value) and all(value is not known for known in found.values()):
            found[path] = value
    return found


def _attributes(sampling: Sampling) -> list[tuple[str, Any]]:
    """Return the attributes of the samplers, and of what these hold, with their paths.

    Containers and other objects are entered. Of a dataset, only samplers are.
    """
    found: list[ReachableObject] = []

    def enters(one: ReachableObject) -> bool:
        found.append(one)
        if one.holder is not None and isinstance(one.holder.thing, Dataset) and not isinstance(one.thing, Sampler):
            return False
        is_leaf = isinstance(one.thing, _LEAVES) or _is_generator(one.thing) or one.thing is sampling.dataset
        return not is_leaf and one.depth <= _MAX_DEPTH

    samplers = list({id(sampler): sampler for sampler in sampling.samplers}.values())
    walk(samplers, _held_by, enters)
    return [(_path_of(one), one.thing) for one in found if one.depth > 1]


def _path_of(found: ReachableObject) -> str:
    if found.holder is None or found.depth == 1:
        return f"sampler{found.key}"
    return f"{_path_of(found.holder)}.{found.key}"


def _held_by(holder: Any) -> Iterator[Held]:
    held: Any = sorted(dict(attributes_of(holder)).items())
    if isinstance(holder, dict):
        held = sorted(itertools.islice(holder.items(), _MAX_ITEMS), key=lambda item: str(item[0]))
    elif isinstance(holder, (list, tuple)):
        held = enumerate(holder[:_MAX_ITEMS])
    return ((ATTRIBUTE, key, value) for key, value in held)


def _is_generator(value: Any) -> bool:
    if isinstance(value, np.random.Generator):
        return type(value.bit_generator).__module__.startswith("numpy.random")
    return isinstance(value, _KINDS) and not isinstance(value, random.SystemRandom)  # which has no state


def _global(sampling: Sampling) -> dict[str, Any]:
    """Return the global generators that a sampler may draw from."""
    if isinstance(sampling.dataset, IterableDataset):
        return {}
    drawing = [
        sampler
        for sampler in sampling.samplers
        if type(sampler) not in _DRAWING_NOTHING
        and not (iterates_as(sampler, EpochSampler) or iterates_as(sampler, EpochBatchSampler))
    ]
    foreign = [sampler for sampler in drawing if not type(sampler).__module__.startswith("torch.utils.data")]
    found: dict[str, Any] = {}
    if foreign or any(getattr(sampler, "generator", None) is None for sampler in drawing):
        found["torch"] = torch.default_generator
    if foreign:
        found |= {"python": random, "numpy": np.random.mtrand._rand}
    return found


def _state_of(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, np.random.Generator):
        return json.dumps(generator.bit_generator.state, default=_array_to_json)
    if isinstance(generator, np.random.RandomState):
        return json.dumps(generator.get_state(legacy=False), default=_array_to_json)
    return json.dumps(generator.getstate())


def _array_to_json(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.name, "values": value.tolist()}
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} in a generator's state")


def _array_from_json(value: dict[str, Any]) -> Any:
    return np.array(value["values"], value["dtype"]) if value.keys() == {"dtype", "values"} else value


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = json.loads(state, object_hook=_array_from_json)
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(json.loads(state, object_hook=_array_from_json))
    else:
        version, words, gauss = json.loads(state)
        generator.setstate((version, tuple(words), gauss))


def _new_like(generator: Any) -> Any:
    """Return another generator of the same class, to try a state on."""
    return random.Random(0) if generator is random else copy.deepcopy(generator)
