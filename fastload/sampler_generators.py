"""The generators that an order comes from, where the sampler is not ours: their states, and back.

In: a loader. Out: a flat dict of states: a uint8 tensor for a generator of torch's, else JSON. Looked for are the
loader's own generator, those that its samplers hold, directly or inside of what they hold, and the global ones where a
sampler may draw from them. A sampler of torch's draws from torch's alone, and only if it was given no generator.
"""

from __future__ import annotations

import itertools
import json
import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, Dataset, IterableDataset, Sampler, SequentialSampler
from torch.utils.data import DistributedSampler as TorchDistributedSampler

from .epochs import samplers_of
from .errors import StateError
from .sampling import DistributedBatchSampler, DistributedSampler, KeyedSampler

_MAX_DEPTH = 4
_MAX_ITEMS = 20
_LEAVES = (str, bytes, int, float, complex, type(None), type, np.ndarray, torch.Tensor, ModuleType, FunctionType)

_KINDS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)

# Their order is a function of their attributes, or of the sampler inside of them.
_DRAWING_NOTHING = (
    SequentialSampler,
    TorchDistributedSampler,
    DistributedSampler,
    KeyedSampler,
    BatchSampler,
    DistributedBatchSampler,
)


def generator_states(loader: Any) -> dict[str, Any]:
    """Return the states of all generators that may make the order of a loader whose sampler is not ours."""
    return {name: _state_of(generator) for name, generator in (_owned(loader) | _drawn_from(loader)).items()}


def check_generator_states(loader: Any, states: dict[str, Any]) -> None:
    """Check states that were loaded; no generator is touched.

    Raises:
        StateError: one of them is not the state of a generator of that kind.
    """
    for name, generator in (_owned(loader) | _drawn_from(loader)).items():
        try:
            _set_state(_like(generator), states[name])
        except Exception as error:
            raise StateError(
                f"generator.{name} is not the state of a generator of {type(generator).__name__}'s kind, got "
                f"{states[name]!r:.80}: {error}"
            ) from None


@contextmanager
def generators_at(loader: Any, states: dict[str, Any], *, leave_equal: bool = False) -> Iterator[None]:
    """Set the generators that make a loader's order to recorded states.

    Afterwards the global ones get their own state back: they are the user's. A loader's or sampler's own generator goes
    on from where it has come, as it did when the state was recorded.

    Args:
        loader: the loader.
        states: the recorded ones.
        leave_equal: if the global ones are in these states already, they go on too.
    """
    shared = _drawn_from(loader)
    before = {name: _state_of(generator) for name, generator in shared.items()}
    leaves = leave_equal and _same(before, states)
    try:
        for name, generator in (_owned(loader) | shared).items():
            if name in states:
                _set_state(generator, states[name])
        yield
    finally:
        for name, generator in shared.items():
            if not leaves:
                _set_state(generator, before[name])


@contextmanager
def generators_kept(loader: Any) -> Iterator[None]:
    """Give all generators that make a loader's order their states back at the end."""
    all_of_them = _owned(loader) | _drawn_from(loader)
    before = {name: _state_of(generator) for name, generator in all_of_them.items()}
    try:
        yield
    finally:
        for name, generator in all_of_them.items():
            _set_state(generator, before[name])


def set_own_generators(loader: Any, states: dict[str, Any]) -> bool:
    """Set the loader's and samplers' own generators to recorded states; return if the global ones are in theirs."""
    for name, generator in _owned(loader).items():
        if name in states:
            _set_state(generator, states[name])
    return _same({name: _state_of(generator) for name, generator in _drawn_from(loader).items()}, states)


def names_not_made_yet(loader: Any) -> set[str]:
    """Return the names that generators of the samplers would have which are to be made when they are first needed."""
    return {path for path, value in _attributes(loader) if value is None}


def _same(states: dict[str, Any], others: dict[str, Any]) -> bool:
    return all(
        name in others
        and (torch.equal(state, others[name]) if isinstance(state, torch.Tensor) else state == others[name])
        for name, state in states.items()
    )


def _owned(loader: Any) -> dict[str, Any]:
    """Return the loader's own generator and those that its samplers hold, each once."""
    if isinstance(loader.dataset, IterableDataset):
        return {}
    found: dict[str, Any] = {}
    if isinstance(loader.generator, torch.Generator):
        found["loader"] = loader.generator
    for path, value in _attributes(loader):
        if _is_generator(value) and all(value is not known for known in found.values()):
            found[path] = value
    return found


def _attributes(loader: Any) -> Iterator[tuple[str, Any]]:
    """Yield what the samplers hold, with the way to it: their attributes, and those of samplers inside of them.

    Looked into are containers and objects that may be samplers; not datasets, but for samplers that these hold.
    """
    seen: set[int] = {id(loader.dataset)}
    waiting: deque[tuple[str, Any, int]] = deque()
    for sampler in samplers_of(loader):
        if all(sampler is not other for _, other, _ in waiting):
            waiting.append((f"sampler{len(waiting)}", sampler, 0))
    while waiting:
        path, holder, depth = waiting.popleft()
        if id(holder) in seen:
            continue
        seen.add(id(holder))
        for name, value in _held_by(holder):
            yield f"{path}.{name}", value
            inside = not isinstance(value, _LEAVES) and not _is_generator(value)
            if depth < _MAX_DEPTH and inside and (not isinstance(holder, Dataset) or isinstance(value, Sampler)):
                waiting.append((f"{path}.{name}", value, depth + 1))


def _held_by(holder: Any) -> list[tuple[Any, Any]]:
    if isinstance(holder, dict):
        return sorted(itertools.islice(holder.items(), _MAX_ITEMS), key=lambda item: str(item[0]))
    if isinstance(holder, (list, tuple)):
        return list(enumerate(holder[:_MAX_ITEMS]))
    found = dict(getattr(holder, "__dict__", {}))
    for kind in type(holder).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(holder, name):
                found[name] = getattr(holder, name)
    return sorted(found.items())


def _is_generator(value: Any) -> bool:
    if isinstance(value, np.random.Generator):
        return type(value.bit_generator).__module__.startswith("numpy.random")
    return isinstance(value, _KINDS) and not isinstance(value, random.SystemRandom)  # which has no state


def _drawn_from(loader: Any) -> dict[str, Any]:
    """Return the global generators that a sampler may draw from."""
    if isinstance(loader.dataset, IterableDataset):
        return {}
    drawing = [sampler for sampler in samplers_of(loader) if type(sampler) not in _DRAWING_NOTHING]
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


def _like(generator: Any) -> Any:
    """Return another generator of the kind, to try a state on."""
    if isinstance(generator, torch.Generator):
        return torch.Generator(generator.device)
    if isinstance(generator, np.random.Generator):
        return np.random.Generator(type(generator.bit_generator)(0))
    if isinstance(generator, np.random.RandomState):
        return np.random.RandomState(type(generator._bit_generator)(0))
    return random.Random(0)
