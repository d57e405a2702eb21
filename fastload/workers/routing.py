"""Worker threads draw from generators of their own, by the names that everybody uses.

In: a thread that calls ``random.random()``, ``np.random.rand()`` or ``torch.rand()``. Out: what a process would draw
that has been seeded by the same key, bit for bit; and the process's own generators are neither read nor written, so
that the main thread may go on drawing from them.

NOTE [Routing]: ``random`` and ``numpy.random`` each have one hidden object, whose bound methods are their functions.
While threads of ours live, both objects are replaced by :class:`_RoutedRandom` and :class:`_RoutedRandomState`, and
so are the functions, wherever they are held (see rebinding.py): in the modules, in modules that have imported them
by name, in attributes, closures and containers. A routed method calls the same method of the thread's generator in a
worker thread, and of the object that it has replaced everywhere else, 0.1 to 0.25 µs later than that would have been
called directly. torch has a mode for each thread instead (see torch_routing.py).

When the last thread has ended, the modules are as they were. What had been found elsewhere stays routed, and so do
names imported meanwhile: outside of worker threads they do what they always did. So the search, which takes as long
as forking a worker, need not be made again for each epoch of new threads.

What cannot be routed: a reference within an object that cannot be changed, of which :func:`install` warns; code in C
with generators of its own (OpenCV's is seeded by library_generators.py); and threads that the dataset starts itself
in a worker: they draw from the process's generators.
"""

from __future__ import annotations

import gc
import os
import random
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch

from .. import compat, reachable, seeding
from . import torch_routing
from .rebinding import Rebound, describe, rebind, references
from .torch_routing import TorchRouting

_mtrand: Any = np.random.mtrand


class _Active(threading.local):
    """The generators of this thread; None where it is not one of ours."""

    random: Any = None
    numpy: Any = None


_active = _Active()


class ThreadGenerators:
    """The three CPU generators of one worker thread.

    Ownership: made by anyone, used by the one thread that enters :meth:`active`.
    """

    def __init__(self) -> None:
        self.random = random.Random(0)
        self.numpy = np.random.RandomState(0)
        self.torch = torch.Generator()

    def seed(self, key: bytes) -> None:
        """Seed all three from 16 bytes of key, as :func:`fastload.seeding.seed_global_generators` does the global ones.

        Cost: about 6 µs.
        """
        for_random, for_numpy, for_torch = seeding.words(key)
        self.random.seed(for_random)
        self._seed_numpy(for_numpy)
        self.torch.manual_seed(for_torch)

    def each(self, keys: seeding.Keys, ids: Sequence[int]) -> Callable[[], None]:
        """Return a function that seeds for the next sample: see :class:`~fastload.seeding.Seeder`."""
        return seeding.one_by_one(self.seed, keys, ids)

    def seed_as_torch_worker(self, base_seed: int, worker_id: int) -> None:
        """Seed all three with the streams of torch's worker process of this number."""
        for_all, for_numpy = seeding.torch_worker_seeds(base_seed, worker_id)
        self.random.seed(for_all)
        self._seed_numpy(for_numpy)
        self.torch.manual_seed(for_all)

    def _seed_numpy(self, seed: Any) -> None:
        _seed_state(self.numpy if _active.numpy is None else _active.numpy, seed)

    def as_torch_container(self) -> Any:
        """Return what ``WorkerInfo.rng`` is to be; None where torch has no such field."""
        # NumPy's two kinds of generators share the stream, so that both are seeded with each sample.
        return compat.make_worker_rng(self.random, self.torch, np.random.Generator(self.numpy._bit_generator))

    @contextmanager
    def active(self, *, scripted: bool = False) -> Iterator[None]:
        """Let this thread draw from these generators. :func:`install` must hold meanwhile.

        Args:
            scripted: whether TorchScript is called, whose draws are seen operator by operator only.
        """
        mode = TorchRouting(self.torch)
        kind = type(_rand._bit_generator)
        if kind is not np.random.MT19937:  # the user has chosen another for the process
            self.numpy = np.random.RandomState(kind())
        with ExitStack() as stack:
            stack.enter_context(mode)
            if scripted:
                stack.enter_context(mode.everywhere())
            _active.random, _active.numpy, torch_routing.active.generator = self.random, self.numpy, self.torch
            stack.callback(_deactivate)
            yield


def calls_torchscript(*roots: object) -> bool:
    """Whether TorchScript functions or modules can be reached from these objects."""
    return bool(reachable.find(list(roots), lambda thing: isinstance(thing, _SCRIPTED), inside=False))


_SCRIPTED = (torch.jit.ScriptFunction, torch.jit.ScriptModule)


def _deactivate() -> None:
    _active.random = _active.numpy = torch_routing.active.generator = None


def _seed_state(state: Any, seed: Any) -> None:
    """Do to a RandomState what ``np.random.seed`` does to the process's."""
    kind = type(state._bit_generator)
    if kind is np.random.MT19937:
        state.seed(seed)
    else:
        state._bit_generator.state = kind(seed).state


_inst: Any = random._inst  # what the functions of random are bound to
_rand: Any = _mtrand._rand  # what those of numpy.random are bound to


class _RoutedRandom(random.Random):
    """Stands for ``random._inst``. Pickles and copies of it are plain generators, with the current state."""

    def __init__(self) -> None:
        """Leave out the base class's, which would seed."""

    @property
    def gauss_next(self) -> Any:
        return (_active.random or _inst).gauss_next

    @gauss_next.setter
    def gauss_next(self, value: Any) -> None:
        (_active.random or _inst).gauss_next = value

    def __reduce__(self) -> Any:
        return (_active.random or _inst).__reduce__()


class _RoutedRandomState(np.random.RandomState):
    """Stands for ``np.random.mtrand._rand``. Pickles and copies of it are plain, with the current state."""

    def __init__(self) -> None:
        """Leave out the base class's, which would make a bit generator."""

    @property
    def _bit_generator(self) -> Any:  # type: ignore[override]  # nobody sets it
        return _own_state()._bit_generator

    def __reduce__(self) -> Any:
        return _own_state().__reduce__()

    def __repr__(self) -> str:
        return repr(_own_state())

    __str__ = __repr__


def _own_state() -> Any:
    return _rand if _active.numpy is None else _active.numpy


def _random_method(name: str, original: Any) -> Any:
    def routed(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        own = _active.random
        return original(*args, **kwargs) if own is None else getattr(own, name)(*args, **kwargs)

    return _dressed(routed, original)


def _numpy_method(name: str, original: Any) -> Any:
    def routed(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        own = _active.numpy
        return original(*args, **kwargs) if own is None else getattr(own, name)(*args, **kwargs)

    return _dressed(routed, original)


def _numpy_function(own_way: Callable[..., Any], original: Any) -> Any:
    """Return a function that calls ``own_way(state, ...)`` in a worker thread, and ``original(...)`` elsewhere."""

    def routed(*args: Any, **kwargs: Any) -> Any:
        own = _active.numpy
        return original(*args, **kwargs) if own is None else own_way(own, *args, **kwargs)

    return _dressed(routed, original)


def _dressed(routed: Any, original: Any) -> Any:
    routed.__name__, routed.__doc__ = original.__name__, original.__doc__
    routed.__qualname__ = getattr(original, "__qualname__", original.__name__)
    return routed


def _set_bit_generator(_: Any, bit_generator: Any) -> None:
    _active.numpy = np.random.RandomState(bit_generator)


def _get_bit_generator(state: Any) -> Any:
    return state._bit_generator


def _sample(state: Any, *args: Any, **kwargs: Any) -> Any:
    return state.random_sample(*args, **kwargs)


_NUMPY_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "seed": _seed_state,
    "sample": _sample,
    "ranf": _sample,
    "get_bit_generator": _get_bit_generator,
    "set_bit_generator": _set_bit_generator,
}


class _Table:
    """What is replaced, and by what. Made once: references to the routed functions stay good for ever."""

    def __init__(self) -> None:
        for kind, method, original in (
            (_RoutedRandom, _random_method, _inst),
            (_RoutedRandomState, _numpy_method, _rand),
        ):
            for name in dir(original):
                bound = getattr(original, name, None)
                if not name.startswith("__") and name not in vars(kind) and callable(bound):
                    setattr(kind, name, method(name, bound))
        routed: dict[int, Any] = {id(_inst): _RoutedRandom(), id(_rand): _RoutedRandomState()}
        self.pairs: list[tuple[object, object]] = [(_inst, routed[id(_inst)]), (_rand, routed[id(_rand)])]
        self.modules = [vars(random), vars(np.random), vars(_mtrand)]
        """Where they are at home."""
        known = set()
        for namespace in self.modules:
            for name, value in namespace.items():
                owner = routed.get(id(getattr(value, "__self__", None)))
                if id(value) in known:
                    continue
                known.add(id(value))
                if owner is not None:
                    self.pairs.append((value, getattr(owner, value.__name__)))
                elif name in _NUMPY_FUNCTIONS and namespace is not self.modules[0]:
                    self.pairs.append((value, _numpy_function(_NUMPY_FUNCTIONS[name], value)))
        self.originals = [original for original, _ in self.pairs]

    def own_holders(self) -> list[object]:
        """Return all by which this module itself holds what is replaced."""
        routed = (
            [new for _, new in self.pairs]
            + list(vars(_RoutedRandom).values())
            + list(vars(_RoutedRandomState).values())
        )
        cells = [cell for function in routed for cell in getattr(function, "__closure__", None) or ()]
        methods = [cell.cell_contents for cell in cells]
        return [globals(), vars(seeding), self.pairs, self.originals, *self.pairs, *cells, *methods]


class _Routing:
    """Whether the process is routed, and for how many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads = 0
        self._table: _Table | None = None
        self._rebound: Rebound | None = None
        self._references: list[int] | None = None
        self._searched = False

    def install(self) -> list[str]:
        with self._held():
            if self._threads == 0:
                try:
                    unrouted = self._route()
                except BaseException:  # an interrupt, say
                    self._restore()
                    raise
            else:
                unrouted = []
            self._threads += 1
            return unrouted

    def uninstall(self) -> None:
        with self._held():
            self._threads = max(0, self._threads - 1)  # a child of a fork begins at zero
            if self._threads == 0:
                self._restore()

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Hold the lock, without collections: they may close a pool, and so wait for threads that want the lock."""
        with self._lock:
            collects = gc.isenabled()
            gc.disable()
            try:
                yield
            finally:
                if collects:
                    gc.enable()

    def _route(self) -> list[str]:
        table = self._table = self._table or _Table()
        # No more references than there were when nobody else had any: nobody has taken one since.
        unknown = self._references is None or references(table.originals) != self._references
        rebound = self._rebound = Rebound()
        self._searched = False
        rebind(table.pairs, table.own_holders(), rebound, among=None if unknown else table.modules)
        self._searched = not rebound.stuck  # else the next search has to tell of them again
        unrouted = torch_routing.route_torch_random()
        stuck = [f"{getattr(old, '__qualname__', old)} in {describe(holder)}" for old, holder in rebound.stuck]
        return stuck + unrouted

    def _restore(self) -> None:
        rebound, self._rebound = self._rebound, None
        torch_routing.restore_torch_random()
        if rebound is not None and self._table is not None:
            searched = self._searched
            rebound.undo(self._table.modules)
            self._references = references(self._table.originals) if searched else None

    def after_fork(self) -> None:
        """Begin anew in a child, where no thread of ours lives; another may have held the lock."""
        self._lock = threading.Lock()
        self._threads = 0
        self._restore()
        _deactivate()


_routing = _Routing()
os.register_at_fork(after_in_child=_routing.after_fork)


def install() -> None:
    """Route the process's generators, for one more thread that is going to be active. See NOTE [Routing].

    Each call needs one of :func:`uninstall`, but where it raises. Cost: for the first of several threads a pass over
    all objects, 0.1 s for 450,000; later 0.2 ms, as long as nobody takes another of the functions by its name.
    """
    unrouted = _routing.install()
    try:
        for what in unrouted:
            warnings.warn(
                f"worker threads cannot be given their own generator for {what}, which cannot be changed: what the "
                "dataset draws by it depends on the threads' timing; use worker_method='multiprocessing', or look the "
                "function up in its module when it is called",
                RuntimeWarning,
                stacklevel=3,
            )
    except BaseException:
        _routing.uninstall()
        raise


def uninstall() -> None:
    """Put everything back, if this was the last thread's."""
    _routing.uninstall()


__all__ = ["ThreadGenerators", "calls_torchscript", "install", "uninstall"]
