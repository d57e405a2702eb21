"""Worker threads draw from generators of their own, through the names that everybody uses.

They draw what a worker process draws that was seeded with the same key, bit for bit. The process's own generators are
neither read nor written, so the main thread can draw from them meanwhile.

NOTE [Routing]: ``random`` and ``numpy.random`` each have one hidden object, whose methods are their functions. While
worker threads run, another object takes its place and its methods theirs, under all names by which modules hold them
(see base/exchanged_names.py): they call the thread's generator in a worker thread, and the hidden object's method
elsewhere, 0.2 µs slower. torch has a mode for each thread instead, and only its functions that seed are exchanged (see
torch_routing.py). When the last worker thread ends, all of this is undone. What a dataset holds in another way than by
a module's name is found by :func:`_check`.

Not routed: generators inside of C code (OpenCV's is seeded by library_generators.py), and threads that the dataset
starts in a worker thread; they draw from the process's generators.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import random
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch

from ..base import compat_features, overrides, reachable
from ..base.exchanged_names import ExchangedNames
from ..errors import ConfigError, DatasetError
from ..keys import seeding
from ..keys.collator_generators import collate_fn_for_thread, warn_of_shared_collators
from ..keys.library_transforms import copies_for_thread, warn_of_shared_transforms
from . import torch_routing
from .samples import Job
from .torch_routing import ActiveGenerator, TorchRouting

_inst: Any = random._inst  # what the functions of random are bound to
_rand: Any = np.random.mtrand._rand  # what those of numpy.random are bound to
_bits_of = np.random.RandomState._bit_generator.__get__  # type: ignore[attr-defined]  # in any thread

_active_random, _active_numpy = ActiveGenerator(), ActiveGenerator()


class ThreadGenerators:
    """The three CPU generators of one worker thread.

    Ownership: made by any thread, used by the one that enters :meth:`active`.
    """

    def __init__(self) -> None:
        self.random = random.Random(0)
        self.numpy = np.random.RandomState(0)
        self.torch = torch.Generator()
        self._chosen_bits: Any = _bits_of(_routed_rand)

    def seed(self, key: bytes) -> None:
        """Seed all three from 16 bytes of key, as ``seeding.seed_global_generators`` does the global ones.

        Raises:
            DatasetError: another bit generator was set since the thread began.

        Cost: about 6 µs.
        """
        if _bits_of(_routed_rand) is not self._chosen_bits:
            raise DatasetError(
                "np.random.set_bit_generator() was called while worker threads were running, which cannot change "
                "their generators; call it before the loader is iterated, or use worker_method='multiprocessing'"
            )
        for_random, for_numpy, for_torch = seeding.words(key)
        self._seed(for_random, for_numpy, for_torch)

    def each(self, keys: seeding.Keys, ids: Sequence[int]) -> Callable[[], None]:
        """Return a function that seeds for the next sample: see :class:`~fastload.keys.seeding.Seeder`."""
        return seeding.one_by_one(self.seed, keys, ids)

    def seed_as_torch_worker(self, base_seed: int, worker_id: int) -> None:
        """Seed all three with the streams of torch's worker process of this number."""
        for_all, for_numpy = seeding.torch_worker_seeds(base_seed, worker_id)
        self._seed(for_all, for_numpy, for_all)

    def _seed(self, for_random: int, for_numpy: Any, for_torch: int) -> None:
        self.random.seed(for_random)
        bits: Any = self.numpy._bit_generator
        if type(bits) is np.random.MT19937:
            self.numpy.seed(for_numpy)
        else:  # as np.random.seed() does
            bits.state = type(bits)(for_numpy).state
        self.torch.manual_seed(for_torch)

    def as_torch_container(self) -> Any:
        """Return the value of ``WorkerInfo.rng``; None where torch has no such field."""
        # NumPy's two kinds of generators share the bit generator, so both are seeded for each sample.
        bits: Any = self.numpy._bit_generator
        return compat_features.make_worker_rng(self.random, self.torch, np.random.Generator(bits))

    @contextmanager
    def active(self, *, scripted: bool = False) -> Iterator[None]:
        """Let this thread draw from these generators, while :data:`names` are exchanged.

        ``scripted``: the dataset calls TorchScript, whose draws are only seen as single operators.
        """
        mode = TorchRouting(self.torch)
        self._chosen_bits = _bits_of(_routed_rand)
        of_process = type(_bits_of(_rand))
        if of_process is not np.random.MT19937:  # the user has chosen another for the process
            self.numpy = np.random.RandomState(of_process())
        with ExitStack() as stack:
            stack.enter_context(mode)
            if scripted:
                stack.enter_context(mode.operators)
            stack.callback(_deactivate)
            _active_random.generator, _active_numpy.generator = self.random, self.numpy
            torch_routing.active.generator = self.torch
            yield


class NoSeeder:
    """Seeds nothing: samples draw nothing, or from the process's generators, which all threads share."""

    def seed(self, key: bytes) -> None:
        """Do nothing."""

    def each(self, keys: seeding.Keys, ids: Sequence[int]) -> Callable[[], None]:
        """Return a function that does nothing."""
        return lambda: None


def job_of_thread(job: Job) -> Job:
    """Return a job for one thread: what libraries draw from is its own, as far as it can be copied."""
    dataset, collate_fn = copies_for_thread(job.dataset, collate_fn_for_thread(job.collate_fn))
    return dataclasses.replace(job, dataset=dataset, collate_fn=collate_fn)


def check(job: Job) -> None:
    """Look at a job before threads that draw do it. Warns of what they would share though it is seeded for each sample.

    Raises:
        ConfigError: nothing may be exchanged, so they would share the process's generators.
    """
    if not overrides.ON:
        raise ConfigError(
            f"{overrides.VARIABLE}=0, but worker threads that draw need generators of their own in the places of "
            "random's, numpy.random's and torch's, or their samples would depend on the threads' timing; unset "
            f"{overrides.VARIABLE}, or use worker processes of one thread each (worker_method='multiprocessing', "
            "worker_threads=1)"
        )
    warn_of_shared_transforms(job.dataset, job.collate_fn)
    warn_of_shared_collators(job.collate_fn)


def _deactivate() -> None:
    _active_random.generator = _active_numpy.generator = torch_routing.active.generator = None


def _routed_method(name: str, original: Any, hidden: Any, active: ActiveGenerator) -> Any:
    """Return a method that calls that of the thread's generator, or of the hidden object where there is none."""

    def routed(_: Any, /, *args: Any, **kwargs: Any) -> Any:
        return getattr(active.generator or hidden, name)(*args, **kwargs)

    return functools.update_wrapper(routed, original)


class _RoutedRandom(random.Random):
    """Takes the place of ``random._inst``. Copies and pickles are plain, with the current state."""

    @property
    def gauss_next(self) -> Any:  # an attribute of the base class's instances
        return (_active_random.generator or _inst).gauss_next

    @gauss_next.setter
    def gauss_next(self, value: Any) -> None:
        (_active_random.generator or _inst).gauss_next = value

    def __reduce__(self) -> Any:
        return random.Random, (), self.getstate()


class _RoutedRandomState(np.random.RandomState):
    """Takes the place of ``np.random.mtrand._rand``. Copies and pickles are as of that class.

    ``np.random.seed`` and others that are no methods ask for it by its name.
    """

    @property
    def _bit_generator(self) -> Any:  # type: ignore[override]  # read-only here
        return (_active_numpy.generator or _rand)._bit_generator

    def __reduce__(self) -> Any:
        return (_active_numpy.generator or _rand).__reduce__()


def _pairs(hidden: Any, kind: Any, active: ActiveGenerator, *modules: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the hidden object of modules and what is bound to it there, each with what takes its place."""
    for name in dir(kind):
        original = getattr(kind.__base__, name, None)
        if not name.startswith("_") and name not in vars(kind) and callable(original):
            setattr(kind, name, _routed_method(name, original, hidden, active))
    other = kind.__new__(kind)  # its constructor would seed
    yield hidden, other
    for value in [value for module in modules for value in vars(module).values()]:
        if value is not hidden and _owner_of(value) is hidden:
            yield value, getattr(other, value.__name__)


def _owner_of(thing: Any) -> object:
    """Return the object of a bound method; of another thing itself."""
    return thing.__self__ if type(thing) in (types.MethodType, types.BuiltinMethodType) else thing


_of_random = list(_pairs(_inst, _RoutedRandom, _active_random, random))
_of_numpy = list(_pairs(_rand, _RoutedRandomState, _active_numpy, np.random, np.random.mtrand))
_routed_rand: Any = _of_numpy[0][1]
names = ExchangedNames(
    lambda: [*_of_random, *_of_numpy, *torch_routing.seeding_functions(), compat_features.WORKER_INFO]
)
"""Of all that is another in worker threads."""


def install(number: int, **roots: object) -> bool:
    """Exchange :data:`names` for worker threads, each of which is to call ``names.uninstall()`` at its end.

    Args:
        number: of threads.
        roots: the dataset, and functions that they call.

    Returns:
        Whether TorchScript functions or modules can be reached from these objects.

    Raises:
        ConfigError: they hold what is exchanged as a default argument, an attribute, or in another way than by a name.
            Then nothing is exchanged.
    """
    names.install(number)
    try:
        return _check(roots)
    except BaseException:  # also an interrupt
        names.uninstall(number)
        raise


def _check(roots: dict[str, object]) -> bool:
    scripted = torch.jit.ScriptFunction, torch.jit.ScriptModule

    def is_found(thing: object) -> bool:
        owner = _owner_of(thing)
        # What is in another's place is found too, so that the search does not look into it.
        return owner in names or names.is_other(owner) or isinstance(thing, scripted)

    found = [
        (one.path(root), one.thing) for root in roots for one in reachable.find(roots[root], is_found, inside=False)
    ]
    for path, thing in found:
        if _owner_of(thing) in names:
            name = _name_of(thing)
            raise ConfigError(
                f"{path} holds {name}, which worker threads would share with the process; by the name {name} they have "
                "their own. Write that where it is used, in place of an attribute, a default argument, a closure or a "
                "container that holds it; or use worker processes of one thread each"
            )
    return any(isinstance(thing, scripted) for _, thing in found)


def _name_of(thing: Any) -> str:
    """Return the public name of what is exchanged."""
    if thing is _inst or thing is _rand:
        return "random" if thing is _inst else "numpy.random"
    owner = _owner_of(thing)
    if owner is _inst or owner is _rand:
        return f"{_name_of(owner)}.{thing.__name__}"
    return f"{thing.__module__.partition('._')[0]}.{thing.__name__}"


def exchanged() -> list[str]:
    """Return the public names of all that is exchanged."""
    return sorted({_name_of(first) for first, _ in [*_of_random, *_of_numpy, *torch_routing.seeding_functions()]})


def _after_fork() -> None:
    """Let a child that a worker thread has forked draw from the process's generators, which are its own."""
    if _active_random.generator is not None:
        _deactivate()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
