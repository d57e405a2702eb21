"""Worker threads draw from generators of their own, through the names that everybody uses.

They draw what a worker process draws that was seeded with the same key, bit for bit. The process's own generators are
neither read nor written, so the main thread can draw from them meanwhile.

NOTE [Routing]: ``random`` and ``numpy.random`` each have one hidden object, whose methods are their functions. While
worker threads run, another object takes its place and its methods theirs, under all names by which modules hold them
(:data:`OVERRIDES`): they call the thread's generator in a worker thread, and the hidden object's method elsewhere,
0.2 µs slower. torch has a mode for each thread instead, and only its functions that seed are replaced (see
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
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch

from ..base import compat, compat_features, objects, overrides
from ..base.overrides import Override
from ..errors import ConfigError
from ..keys import seeding
from ..keys.library_generators import LibraryGenerators
from ..keys.library_transforms import copies_for_thread, warn_of_what_threads_share
from ..keys.torch_streams import torch_worker_seeds
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

    def seed(self, key: bytes) -> None:
        """Seed all three from 16 bytes of key, as ``seeding.seed_global_generators`` does the global ones.

        Cost: about 6 µs.
        """
        for_random, for_numpy, for_torch = seeding.words(key)
        self._seed(for_random, for_numpy, for_torch)

    def each(self, keys: seeding.Keys, ids: Sequence[int]) -> Callable[[], None]:
        """Return a function that seeds for the next sample: see :class:`~fastload.keys.seeding.Seeder`."""
        return seeding.one_by_one(self.seed, keys, ids)

    def seed_as_torch_worker(self, base_seed: int, worker_id: int) -> None:
        """Seed all three with the streams of torch's worker process of this number."""
        for_all, for_numpy = torch_worker_seeds(base_seed, worker_id)
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
        """Let this thread draw from these generators, while :data:`OVERRIDES` are installed.

        ``scripted``: the dataset calls TorchScript, whose draws are only seen as single operators.
        """
        mode = TorchRouting(self.torch)
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


@contextmanager
def job_of_thread(job: Job, worker_id: int, generators: ThreadGenerators | None, *, scripted: bool) -> Iterator[Job]:
    """Let a thread draw as torch's worker process of this number, from these generators; None: nothing draws.

    Yields the thread's job: what libraries draw from is its own, as far as it can be copied.
    """
    compat.collate_into_private_memory()
    if generators is None:
        yield job
        return
    generators.seed_as_torch_worker(job.base_seed, worker_id)
    with generators.active(scripted=scripted):
        dataset, collate_fn = copies_for_thread(job.dataset, job.collate_fn)
        yield dataclasses.replace(job, dataset=dataset, collate_fn=collate_fn)


def seeder_of_thread(job: Job, generators: ThreadGenerators | None) -> seeding.Seeder:
    """Return what seeds the samples of a job of :func:`job_of_thread`."""
    if generators is None:
        return seeding.GlobalSeeder()  # nothing is seeded where nothing draws
    libraries = LibraryGenerators(job.dataset, job.collate_fn, then=generators, owned=False)
    if job.seed is not None:
        libraries.adopt()
    return libraries


def check(job: Job) -> None:
    """Look at a job before threads that draw do it. Warns of what they would share though it is seeded for each sample.

    Raises:
        ConfigError: nothing may be replaced, so they would share the process's generators.
    """
    if not overrides.ON:
        raise ConfigError(
            f"{overrides.VARIABLE}=0, but worker threads that draw need generators of their own in the places of "
            "random's, numpy.random's and torch's, or their samples would depend on the threads' timing; unset "
            f"{overrides.VARIABLE}, or use worker processes of one thread each (worker_method='multiprocessing', "
            "worker_threads=1)"
        )
    warn_of_what_threads_share(job.dataset, job.collate_fn)


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


def _routed(hidden: Any, kind: Any, active: ActiveGenerator) -> Any:
    """Return what takes the place of a hidden object."""
    for name in dir(kind):
        original = getattr(kind.__base__, name, None)
        if not name.startswith("_") and name not in vars(kind) and callable(original):
            setattr(kind, name, _routed_method(name, original, hidden, active))
    return kind.__new__(kind)  # its constructor would seed


def _owner_of(thing: Any) -> object:
    """Return the object of a bound method; of another thing itself."""
    return thing.__self__ if type(thing) in (types.MethodType, types.BuiltinMethodType) else thing


_routed_inst, _routed_rand = (
    _routed(_inst, _RoutedRandom, _active_random),
    _routed(_rand, _RoutedRandomState, _active_numpy),
)
_PURPOSE = "worker threads draw from generators of their own"


class _OfHidden(Override):
    """A hidden object, or a function that is bound to it."""

    def is_original(self, found: Any) -> bool:
        """Return whether it is the original."""
        return _owner_of(found) is _inst or _owner_of(found) is _rand

    def stand_in(self, original: Any) -> Any:
        """Return the same of the object that takes the hidden one's place."""
        other = _routed_inst if _owner_of(original) is _inst else _routed_rand
        return getattr(other, self.name) if _owner_of(original) is not original else other


def _overrides() -> Iterator[Override]:
    options: Any = {"where": overrides.THREADS, "everywhere": True}
    for module, hidden in ((random, _inst), (np.random, _rand), (np.random.mtrand, _rand)):
        for name in [name for name, value in vars(module).items() if _owner_of(value) is hidden]:
            if module is not np.random.mtrand or not hasattr(np.random, name):
                yield _OfHidden(module.__name__, module.__name__, name, _PURPOSE, **options)
    yield from torch_routing.seeding_overrides(_PURPOSE, **options)
    yield compat_features.worker_info_override(_PURPOSE, **options)


OVERRIDES = tuple(_overrides())


_changing = threading.RLock()  # one thread may take it twice: a collection may close another pool
_num_pools = 0


def install(**roots: object) -> bool:
    """Install :data:`OVERRIDES` for the threads of one pool, which calls :func:`uninstall` when they have ended.

    Args:
        roots: the dataset, and functions that they call.

    Returns:
        Whether TorchScript functions or modules can be reached from these objects.

    Raises:
        ConfigError: they hold what is replaced as a default argument, an attribute, or in another way than by a name.
            Then nothing is replaced.
    """
    global _num_pools
    try:
        with _changing:
            _num_pools += 1
            overrides.install_all(OVERRIDES)
        return _check(roots)
    except BaseException:  # also an interrupt
        uninstall()
        raise


def uninstall() -> None:
    """Undo :func:`install`, once no pool needs the overrides any more."""
    global _num_pools
    with _changing:
        _num_pools -= 1
        if _num_pools == 0:
            for one in OVERRIDES:
                one.undo()


def _check(roots: dict[str, object]) -> bool:
    scripted = torch.jit.ScriptFunction, torch.jit.ScriptModule
    replaced = {id(_owner_of(one.original)) for one in OVERRIDES if one.is_installed}
    others = {id(_owner_of(one.own)) for one in OVERRIDES if one.is_installed}

    def is_found(thing: object) -> bool:
        owner = id(_owner_of(thing))
        # What is in another's place is found too, so that the search does not look into it.
        return owner in replaced or owner in others or isinstance(thing, scripted)

    found = [(one.path(root), one.thing) for root in roots for one in objects.find(roots[root], is_found, inside=False)]
    for path, thing in found:
        if id(_owner_of(thing)) in replaced:
            name = _name_of(thing)
            raise ConfigError(
                f"{path} holds {name}, which worker threads would share with the process; by the name {name} they have "
                "their own. Write that where it is used, in place of an attribute, a default argument, a closure or a "
                "container that holds it; or use worker processes of one thread each"
            )
    return any(isinstance(thing, scripted) for _, thing in found)


def _name_of(thing: Any) -> str:
    """Return the public name of what is replaced."""
    if thing is _inst or thing is _rand:
        return "random" if thing is _inst else "numpy.random"
    owner = _owner_of(thing)
    if owner is _inst or owner is _rand:
        return f"{_name_of(owner)}.{thing.__name__}"
    return f"{thing.__module__.partition('._')[0]}.{thing.__name__}"


def _after_fork() -> None:
    """Let a child that a worker thread has forked draw from the process's generators, which are its own."""
    global _changing
    _changing = threading.RLock()  # another thread may have held the old one
    if _active_random.generator is not None:
        _deactivate()


os.register_at_fork(after_in_child=_after_fork)
