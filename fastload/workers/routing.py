"""Worker threads draw from generators of their own, through the names that everybody uses.

In: a worker thread that calls ``random.random()``, ``np.random.rand()`` or ``torch.rand()``. Out: what a worker process
draws that was seeded with the same key, bit for bit. The process's own generators are neither read nor written, so the
main thread can draw from them meanwhile.

NOTE [Routing]: ``random`` and ``numpy.random`` each have one hidden object, whose bound methods are their functions.
While worker threads run, the class of this object is a subclass whose methods call the thread's generator in a worker
thread, and the original method elsewhere, 0.1 to 0.25 µs slower. Existing bound methods are changed in place to call
the same methods (see method_patches.py), so it does not matter where a function was imported to. torch has a mode for
each thread instead (see torch_routing.py). When the last worker thread ends, all of this is undone.

Not routed: generators inside of C code (OpenCV's is seeded by library_generators.py), and threads that the dataset
starts in a worker thread; they draw from the process's generators.
"""

from __future__ import annotations

import functools
import gc
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch

from ..base import compat_features, reachable
from ..errors import DatasetError
from ..keys import seeding
from . import method_patches, torch_routing
from .method_patches import Patch, bound_methods, patch_method, patch_type
from .torch_routing import ActiveGenerator, TorchRouting

_inst: Any = random._inst  # what the functions of random are bound to
_rand: Any = np.random.mtrand._rand  # what those of numpy.random are bound to
_process_bits = np.random.RandomState._bit_generator.__get__  # type: ignore[attr-defined]  # of _rand, in any thread

_active_random, _active_numpy = ActiveGenerator(), ActiveGenerator()


class ThreadGenerators:
    """The three CPU generators of one worker thread.

    Ownership: made by any thread, used by the one that enters :meth:`active`.
    """

    def __init__(self) -> None:
        self.random = random.Random(0)
        self.numpy = np.random.RandomState(0)
        self.torch = torch.Generator()
        self._process_bits: Any = _process_bits(_rand)

    def seed(self, key: bytes) -> None:
        """Seed all three from 16 bytes of key, as ``seeding.seed_global_generators`` does the global ones.

        Raises:
            DatasetError: the process's bit generator is another than when the thread began.

        Cost: about 6 µs.
        """
        if _process_bits(_rand) is not self._process_bits:
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
        """Let this thread draw from these generators. :func:`install` must have been called.

        ``scripted``: the dataset calls TorchScript, whose draws are only seen as single operators.
        """
        mode = TorchRouting(self.torch)
        self._process_bits = _process_bits(_rand)
        if type(self._process_bits) is not np.random.MT19937:  # the user has chosen another for the process
            self.numpy = np.random.RandomState(type(self._process_bits)())
        with ExitStack() as stack:
            stack.enter_context(mode)
            if scripted:
                stack.enter_context(mode.operators)
            stack.callback(_deactivate)
            _active_random.generator, _active_numpy.generator = self.random, self.numpy
            torch_routing.active.generator = self.torch
            yield


def _deactivate() -> None:
    _active_random.generator = _active_numpy.generator = torch_routing.active.generator = None


def calls_torchscript(*roots: object) -> bool:
    """Return whether TorchScript functions or modules can be reached from these objects."""
    scripted = torch.jit.ScriptFunction, torch.jit.ScriptModule
    return bool(reachable.find(list(roots), lambda thing: isinstance(thing, scripted), inside=False))


def _routed_methods(base: Any, active: ActiveGenerator) -> dict[str, Any]:
    """Return a function for each public method of a class: it calls that of the thread's generator, if there is one."""

    def routed_method(name: str, original: Any) -> Any:
        def routed(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            own = active.generator
            return original(self, *args, **kwargs) if own is None else getattr(own, name)(*args, **kwargs)

        return functools.update_wrapper(routed, original)

    public = [name for name in dir(base) if not name.startswith("_")]
    return {name: routed_method(name, getattr(base, name)) for name in public if callable(getattr(base, name))}


_draw_float, _draw_bits = random.Random.random, random.Random.getrandbits


class _RoutedRandom(random.Random):
    """The class of ``random._inst`` while worker threads run. Copies and pickles are plain, with the current state."""

    # The base class's methods call these two for each number, so they take less time than _routed_methods().

    def random(self) -> float:
        own = _active_random.generator
        return _draw_float(self) if own is None else own.random()

    def getrandbits(self, k: int, /) -> int:
        own = _active_random.generator
        return _draw_bits(self, k) if own is None else own.getrandbits(k)

    @property
    def gauss_next(self) -> Any:  # an attribute of the base class's instances
        return vars(_active_random.generator or self)["gauss_next"]

    @gauss_next.setter
    def gauss_next(self, value: Any) -> None:
        vars(_active_random.generator or self)["gauss_next"] = value

    def __reduce__(self) -> Any:
        return random.Random, (), self.getstate()


class _RoutedRandomState(np.random.RandomState):
    """The class of ``np.random.mtrand._rand`` while worker threads run. Copies and pickles are as of that class."""

    __slots__ = ()

    @property
    def _bit_generator(self) -> Any:  # type: ignore[override]  # read-only here
        return _process_bits(self) if _active_numpy.generator is None else _active_numpy.generator._bit_generator

    def __reduce__(self) -> Any:
        own = _active_numpy.generator
        return super().__reduce__() if own is None else own.__reduce__()


# The hidden objects, and their classes while worker threads run.
_ROUTED: list[tuple[Any, type, ActiveGenerator]] = [
    (_inst, _RoutedRandom, _active_random),
    (_rand, _RoutedRandomState, _active_numpy),
]
for _, _kind, _active in _ROUTED:
    for _name, _method in _routed_methods(_kind.__base__, _active).items():
        if _name not in vars(_kind):
            setattr(_kind, _name, _method)


class _Routing:
    """Counts the threads that need the routing, and applies or undoes it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads = 0
        self._patches: dict[int, Patch] = {}  # by address
        self._references: tuple[int, int] | None = None

    def install(self) -> None:
        """Route the process's generators, for one more thread that is going to be active. See NOTE [Routing].

        Each call needs one of :meth:`uninstall`, unless it raises.

        Raises:
            ConfigError: the layout of methods is not known for this Python or NumPy.

        Cost: for the first of several threads a pass over all objects, 0.1 s for 450,000; later 0.1 ms, unless there
        are new references to the hidden objects.
        """
        with self._locked():
            if self._threads == 0:
                try:
                    self._route()
                except BaseException:  # also an interrupt
                    self._restore()
                    raise
            self._threads += 1

    def uninstall(self) -> None:
        """Undo the routing, if this was the last thread."""
        with self._locked():
            self._threads = max(0, self._threads - 1)  # a forked child begins with 0
            if self._threads == 0:
                self._restore()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock, without garbage collections: one may close a pool, whose threads wait for the lock."""
        with self._lock:
            collects = gc.isenabled()
            gc.disable()
            try:
                yield
            finally:
                if collects:
                    gc.enable()

    def _route(self) -> None:
        seeding.global_states()  # found while the classes are the usual ones
        if self._references != self._count_references():
            self._find_methods()
            # Patched methods live for ever: more references than now mean that there are more methods.
            self._references = self._count_references()
        method_patches.apply(self._patches.values())
        _inst.__class__ = _RoutedRandom
        torch_routing.route_torch_random()

    def _find_methods(self) -> None:
        """Prepare patches for all bound methods, and for the class of ``_rand``."""
        found = {id(_rand): patch_type(_rand, _RoutedRandomState)}
        for owner, kind, _ in _ROUTED:
            for method in bound_methods(owner, [random, np.random, np.random.mtrand]):
                patch = patch_method(method, kind)
                if patch is not None:
                    found[patch.address] = patch
        self._patches = found | self._patches

    def _count_references(self) -> tuple[int, int]:
        return sys.getrefcount(_inst), sys.getrefcount(_rand)

    def _restore(self) -> None:
        torch_routing.restore_torch_random()
        _inst.__class__ = random.Random
        method_patches.undo(self._patches.values())

    def after_fork(self) -> None:
        """Undo the routing in a child, where no worker thread lives; another thread may have held the lock."""
        self._lock = threading.Lock()
        self._threads = 0
        self._restore()
        if _active_random.generator is not None:  # random's own handler has seeded this one
            _deactivate()
            _inst.seed()


_routing = _Routing()
install, uninstall = _routing.install, _routing.uninstall
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_routing.after_fork)
