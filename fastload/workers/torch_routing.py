"""torch's CPU draws of one thread, from a generator of its own.

In a thread that has entered :class:`TorchRouting` torch's calls give the same results, bit for bit, as if
``torch.default_generator`` had been seeded; but that one is neither read nor written.

The functions that draw are not listed here: aten marks its operators with a tag, and their schemas say whether they
take a generator. There are three cases:

* A function that takes ``generator=`` gets the thread's.
* A function that takes none but draws inside (dropout, an LSTM, ``nn.init``, functions written in Python) runs under
  a dispatch mode, which gives the generator to the operators that it calls. This is slower, so only these functions
  run so; and TorchScript, whose calls a function mode does not see.
* An operator that takes none and calls no others raises an error.

``torch.manual_seed`` and related functions act on the thread's generator; in a worker thread they leave accelerators
alone.

Not routed: methods of ``torch.default_generator`` itself, code compiled by ``torch.compile``, C++ extensions that draw
without an operator, and threads that are started in a worker thread.
"""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ..base.overrides import Override, is_written_in
from ..errors import DatasetError

# How a function is called: as it is, with a generator, or under the dispatch mode.
_PLAIN, _WITH_GENERATOR, _WITH_OPERATORS = range(3)
_SEEDED = torch.Tag.nondeterministic_seeded
# It has the tag, but only chooses between operators.
_DRAWS_NOTHING = {"_fused_sdp_choice"}


class ActiveGenerator(threading.local):
    """The generator of the current thread, of one library; None outside of worker threads."""

    generator: Any = None


active = ActiveGenerator()
"""Generator of ``torch.manual_seed`` and related functions."""


class TorchRouting(TorchFunctionMode):
    """A mode in which torch draws from ``generator``, of the CPU, where it would draw from its default one.

    Ownership: entered and left by one thread; it affects no other. Cost: 1 µs for a call of torch, 3 µs for one that
    draws, and about 30 µs for one that draws but takes no generator (dropout).
    """

    only_routes_draws = True
    """For :func:`fastload.late.scope.is_watched`."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self._generator = generator
        self.operators = OperatorRouting(generator)
        """A context in which all operators are seen, as TorchScript needs it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call ``func``; with a generator, if it draws."""
        try:
            case = _cases[func]
        except KeyError:
            case = _cases[func] = _case_of(func)
        except TypeError:  # not hashable
            case = _PLAIN
        if case == _PLAIN:
            return func(*args, **kwargs) if kwargs else func(*args)
        if case == _WITH_GENERATOR:
            if not _draws_from_default(args, kwargs):
                return func(*args, **(kwargs or {}))
            try:
                if not kwargs:
                    return func(*args, generator=self._generator)
                return func(*args, **{**kwargs, "generator": self._generator})
            except (TypeError, RuntimeError):
                # This overload takes no generator; or another mode makes it draw on another device, as the default one
                # does; or the arguments are wrong, which the next call reports.
                pass
        with self.operators:
            return func(*args, **(kwargs or {}))


class _Dispatch:
    """The method of :class:`OperatorRouting`: torch wraps one in a mode's own class, and then imports the compiler."""

    _generator: torch.Generator

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the operator ``func``; with a generator, if it draws.

        Raises:
            DatasetError: it draws, but takes no generator.
        """
        kwargs = kwargs or {}
        if not _operator_draws(func):
            return func(*args, **kwargs)
        names = [argument.name for argument in func._schema.arguments]
        if "generator" in names[: len(args)]:
            place = names.index("generator")
            args, kwargs = args[:place], {**kwargs, **dict(zip(names[place:], args[place:], strict=False))}
        if not _draws_from_default(args, kwargs):
            return func(*args, **kwargs)
        if "generator" in names:
            return func(*args, **{**kwargs, "generator": self._generator})
        twin = _twin_with_generator(func)
        if twin is not None:
            return twin(*args, **kwargs, generator=self._generator)
        rewritten = _REWRITTEN.get(func.overloadpacket.__name__)
        if rewritten is not None and not func._overloadname.endswith("out"):
            return rewritten(self._generator, *args, **kwargs)
        if "dropout_p" in names and not {**dict(zip(names, args, strict=False)), **kwargs}.get("dropout_p"):
            return func(*args, **kwargs)
        raise DatasetError(
            f"{func} draws from torch's global CPU generator and takes no other, so in worker threads its results "
            "would depend on the threads' timing; use worker_method='multiprocessing'"
        )


class OperatorRouting(_Dispatch, TorchDispatchMode):
    """A mode in which aten's operators draw from ``generator`` where they would draw from the default one."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self._generator = generator


_cases: dict[Any, int] = {
    # Written in Python; they draw nothing, and transforms of images call them.
    getattr(functional, name): _PLAIN
    for name in ("affine_grid", "grid_sample", "interpolate", "normalize", "pad")
}


def _case_of(func: Any) -> int:
    if isinstance(func, types.FunctionType):  # a mode does not see what it calls
        return _WITH_OPERATORS
    if isinstance(func, OpOverload | OpOverloadPacket):
        overloads = [func] if isinstance(func, OpOverload) else _overloads(func)
        return _WITH_OPERATORS if any(map(_operator_draws, overloads)) else _PLAIN
    name = getattr(func, "__name__", "__")
    packet = None if name.startswith("__") else getattr(torch.ops.aten, name, None)
    overloads = _overloads(packet) if isinstance(packet, OpOverloadPacket) else []
    if not any(map(_operator_draws, overloads)):
        return _PLAIN
    return _WITH_GENERATOR if any(map(_takes_generator, overloads)) else _WITH_OPERATORS


def _overloads(packet: OpOverloadPacket) -> list[OpOverload]:
    return [getattr(packet, name) for name in packet.overloads()]


@functools.cache
def _operator_draws(func: OpOverload) -> bool:
    return _SEEDED in func.tags and func.overloadpacket.__name__ not in _DRAWS_NOTHING


def _takes_generator(func: OpOverload) -> bool:
    return any(argument.name == "generator" for argument in func._schema.arguments)


@functools.cache
def _twin_with_generator(func: OpOverload) -> OpOverload | None:
    """Return the operator that differs only in taking a generator; None if there is none."""

    def signature(overload: OpOverload) -> list[tuple[str, str]]:
        arguments = [(argument.name, str(argument.type)) for argument in overload._schema.arguments]
        return [argument for argument in arguments if argument[0] != "generator"]

    for twin in _overloads(func.overloadpacket):
        if _takes_generator(twin) and signature(twin) == signature(func):
            return twin
    return None


def _draws_from_default(args: Any, kwargs: Any) -> bool:
    """Return whether a call that draws does so on the CPU, and names no generator but the default one.

    Written as loops, since it runs for each draw: two microseconds less than with generator expressions.
    """
    device = None
    if kwargs:
        if kwargs.get("generator") not in (None, torch.default_generator):
            return False
        device = kwargs.get("device")  # of a "like" function, it may be another than its tensor's
    first = None
    for argument in args:
        if isinstance(argument, torch.Generator):
            return False
        if first is None and isinstance(argument, torch.Tensor):
            first = argument
    if device is not None:
        return torch.device(device).type == "cpu"
    if first is None and kwargs:
        first = next((argument for argument in kwargs.values() if isinstance(argument, torch.Tensor)), None)
    return first is None or first.is_cpu


# Operators that take no generator and call no others, written as their CPU kernels are, with operators that take one:
# since torch 2.9 or so they have twins with a generator.


def _like(fill: Callable[..., Any]) -> Callable[..., Any]:
    def filled_like(generator: torch.Generator, like: Any, *bounds: Any, **options: Any) -> Any:
        given = {name: value for name, value in options.items() if name != "generator" and value is not None}
        return fill(torch.empty_like(like, **given), *bounds, generator=generator)

    return filled_like


def _fill_integers(empty: Any, *bounds: Any, generator: torch.Generator) -> Any:
    low, high = (0, *bounds) if len(bounds) == 1 else bounds
    return empty.random_(int(low), int(high), generator=generator)


_REWRITTEN: dict[str, Callable[..., Any]] = {
    "rand_like": _like(torch.Tensor.uniform_),
    "randn_like": _like(torch.Tensor.normal_),
    "randint_like": _like(_fill_integers),
}


_fork_rng = torch.random.fork_rng
# Functions of torch.random, and what they do with the generator of a worker thread.
_SEEDING: dict[str, Callable[..., Any]] = {
    "manual_seed": lambda generator, seed: generator.manual_seed(int(seed)),
    "seed": torch.Generator.seed,
    "initial_seed": torch.Generator.initial_seed,
    "get_rng_state": torch.Generator.get_state,
    "set_rng_state": lambda generator, new_state: generator.set_state(new_state),
    # It calls torch.get_rng_state() and torch.set_rng_state() by their names.
    "fork_rng": lambda _, devices=None, *args, **kwargs: _fork_rng([], *args, **kwargs),
}


class SeedingOverride(Override):
    """``torch.manual_seed`` or a related function: it acts on the generator in :data:`active`, where there is one."""

    def is_original(self, found: Any) -> bool:
        """Return whether it is torch's own, one of which is a context manager."""
        return is_written_in(found, "torch", "contextlib")

    def stand_in(self, original: Any) -> Any:
        """Return what asks for the generator."""

        @functools.wraps(original)
        def seeding(*args: Any, **kwargs: Any) -> Any:
            generator = active.generator
            return original(*args, **kwargs) if generator is None else _SEEDING[self.name](generator, *args, **kwargs)

        return seeding


def seeding_overrides(*options: Any, **named: Any) -> Iterator[Override]:
    """Yield the overrides of the functions that seed, with these further arguments."""
    for module in (torch.random, torch):  # torch's compiler puts a function of its own into torch
        for name in sorted(vars(module).keys() & _SEEDING.keys()):
            yield SeedingOverride(module.__name__, module.__name__, name, *options, **named)
