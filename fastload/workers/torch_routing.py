"""torch's CPU draws of one thread, from a generator of its own.

In: calls of torch in a thread that has entered :class:`TorchRouting`. Out: the same results, bit for bit, as if
``torch.default_generator`` had been seeded instead; but that one is neither read nor written.

Which functions draw is not written down here: aten marks its operators with a tag, and their schemas say whether
they take a generator. There are three ways:

* A function that takes ``generator=`` is given the thread's.
* One that takes none but draws somewhere inside (dropout, an LSTM, ``nn.init``, functions written in Python) runs
  under a dispatch mode, which sees the operators that it is made of and gives them the generator. This is slower, so
  it is done for these functions only; for TorchScript, whose calls no function mode sees, it is done throughout.
* An operator that takes none and is not made of others is warned of, once.

``torch.manual_seed`` and its like act on the thread's generator. In a routed thread they do not touch accelerators.

Not routed: methods called on ``torch.default_generator`` itself, code compiled by ``torch.compile``, C++ extensions
that draw without an operator, and threads that are started in a routed thread.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_PLAIN, _INJECT, _GUARD = range(3)
_SEEDED = torch.Tag.nondeterministic_seeded
# Marked as drawing, though it only chooses among those that may.
_HARMLESS = {"_fused_sdp_choice"}


class TorchRouting(TorchFunctionMode):
    """A mode in which torch draws from ``generator`` where it would draw from its default one on the CPU.

    Args:
        generator: a CPU generator, for one thread.

    Ownership: entered and left by one thread, for which alone it works. Cost: 1 µs a call of torch, 3 µs one that
    draws, and about 30 µs one that draws but takes no generator (dropout).
    """

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self._generator = generator
        self._operators = OperatorRouting(generator)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call ``func``; with a generator, if it draws."""
        try:
            way = _ways[func]
        except KeyError:
            way = _ways[func] = _way_of(func)
        except TypeError:  # not hashable
            way = _PLAIN
        if way == _PLAIN:
            return func(*args, **kwargs) if kwargs else func(*args)
        if way == _INJECT:
            kwargs = kwargs or {}
            if not _shall_be_given(args, kwargs) or not _on_cpu(args, kwargs):
                return func(*args, **kwargs)
            try:
                return func(*args, **{**kwargs, "generator": self._generator})
            except TypeError:
                pass  # its Python signature knows less than the operator's; or the caller is to hear of his error
        with self._operators:
            return func(*args, **(kwargs or {}))

    def everywhere(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which every operator is looked at, as calls from TorchScript need it."""
        operators: contextlib.AbstractContextManager[Any] = self._operators
        return operators


class OperatorRouting(TorchDispatchMode):
    """A mode in which aten's operators draw from ``generator`` where they would draw from the default one."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self._generator = generator

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the operator ``func``; with a generator, if it draws."""
        kwargs = kwargs or {}
        if not _operator_draws(func) or not _on_cpu(args, kwargs):
            return func(*args, **kwargs)
        place = _generator_place(func)
        if place is not None:
            if place < len(args):
                if args[place] is None or args[place] is torch.default_generator:
                    args = (*args[:place], self._generator, *args[place + 1 :])
            elif _shall_be_given((), kwargs):
                kwargs = {**kwargs, "generator": self._generator}
            return func(*args, **kwargs)
        twin = _twin_with_generator(func)
        if twin is not None:
            return twin(*args, **kwargs, generator=self._generator)
        rewritten = _REWRITTEN.get(func.overloadpacket.__name__)
        if rewritten is not None and not func._overloadname.endswith("out"):
            return rewritten(self._generator, *args, **kwargs)
        _warn_of(func, args, kwargs)
        return func(*args, **kwargs)


_ways: dict[Any, int] = {}


def _way_of(func: Any) -> int:
    if isinstance(func, OpOverload):
        return _GUARD if _operator_draws(func) else _PLAIN
    if isinstance(func, OpOverloadPacket):
        return _GUARD if any(_operator_draws(getattr(func, name)) for name in func.overloads()) else _PLAIN
    if isinstance(func, types.FunctionType):
        return _GUARD if _may_draw(func) else _PLAIN
    name = getattr(func, "__name__", "")
    if not _name_draws(name):
        return _PLAIN
    packet = getattr(torch.ops.aten, name)
    takes = any(_generator_place(getattr(packet, overload)) is not None for overload in packet.overloads())
    return _INJECT if takes else _GUARD


@functools.cache
def _name_draws(name: str) -> bool:
    """Whether aten has an operator of this name that draws."""
    if not name or name.startswith("__"):
        return False
    packet = getattr(torch.ops.aten, name, None)
    return isinstance(packet, OpOverloadPacket) and any(
        _operator_draws(getattr(packet, overload)) for overload in packet.overloads()
    )


@functools.cache
def _operator_draws(func: OpOverload) -> bool:
    return _SEEDED in func.tags and func.overloadpacket.__name__ not in _HARMLESS


@functools.cache
def _generator_place(func: OpOverload) -> int | None:
    """Return the place of the argument ``generator``; None if there is none."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.name == "generator":
            return place
    return None


@functools.cache
def _twin_with_generator(func: OpOverload) -> OpOverload | None:
    """Return the operator that differs only in taking a generator; None if there is none."""
    names = [argument.name for argument in func._schema.arguments]
    kinds = [str(argument.type) for argument in func._schema.arguments]
    packet = func.overloadpacket
    for name in packet.overloads():
        twin: OpOverload = getattr(packet, name)
        others = [argument for argument in twin._schema.arguments if argument.name != "generator"]
        if (
            len(others) < len(twin._schema.arguments)
            and [argument.name for argument in others] == names
            and [str(argument.type) for argument in others] == kinds
        ):
            return twin
    return None


def _may_draw(function: types.FunctionType) -> bool:
    """Whether a function of torch's, written in Python, names anything that draws. One of others always may.

    While a function mode handles such a function the mode itself is off, so what it calls would go unseen.
    """
    if not _is_followed(function):
        return True
    waiting: list[object] = [function]
    seen: set[types.CodeType] = set()
    while waiting:
        other = inspect.unwrap(waiting.pop())  # type: ignore[arg-type]  # anything may be asked
        if not isinstance(other, types.FunctionType) or not _is_followed(other) or other.__code__ in seen:
            continue
        seen.add(other.__code__)
        waiting += [cell.cell_contents for cell in other.__closure__ or () if _is_filled(cell)]
        codes = [other.__code__]
        while codes:
            code = codes.pop()
            codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
            if any(map(_name_draws, code.co_names)):
                return True
            waiting += [other.__globals__[name] for name in code.co_names if name in other.__globals__]
    return False


# Where torch's functions on tensors are; what else they call (warnings, the compiler) draws nothing.
_FOLLOWED = ("torch.nn.", "torch.functional", "torch._tensor", "torch._lowrank", "torch._jit_internal", "torch._lobpcg")


def _is_followed(function: types.FunctionType) -> bool:
    return (function.__module__ or "").startswith(_FOLLOWED)


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _shall_be_given(args: Any, kwargs: Any) -> bool:
    """Whether a call leaves its generator open, or names the default one."""
    if "generator" in kwargs:
        return kwargs["generator"] is None or kwargs["generator"] is torch.default_generator
    return not any(isinstance(argument, torch.Generator) for argument in args)


def _on_cpu(args: Any, kwargs: Any) -> bool:
    for argument in args:
        if isinstance(argument, torch.Tensor):
            # "like" functions may be told another device than their tensor's.
            return argument.is_cpu if kwargs.get("device") is None else torch.device(kwargs["device"]).type == "cpu"
    if kwargs:
        if kwargs.get("device") is not None:
            return torch.device(kwargs["device"]).type == "cpu"
        for argument in kwargs.values():
            if isinstance(argument, torch.Tensor):
                return argument.is_cpu
    return True


def _warn_of(func: OpOverload, args: Any, kwargs: Any) -> None:
    named = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)} | dict(kwargs)
    if "dropout_p" in {argument.name for argument in func._schema.arguments} and not named.get("dropout_p"):
        return
    warnings.warn(
        f"{func} draws from torch's global CPU generator and takes no other, so its results in a worker thread depend "
        "on the threads' timing; use worker_method='multiprocessing'",
        RuntimeWarning,
        stacklevel=2,
    )


# What takes no generator and is one operator, written as its CPU kernel is, in terms of operators that take one.
# NOTE: the first three have twins with a generator since torch 2.9 or so.


def _rand_like(generator: torch.Generator, like: Any, **options: Any) -> Any:
    return torch.empty_like(like, **_without_generator(options)).uniform_(0, 1, generator=generator)


def _randn_like(generator: torch.Generator, like: Any, **options: Any) -> Any:
    return torch.empty_like(like, **_without_generator(options)).normal_(0, 1, generator=generator)


def _randint_like(generator: torch.Generator, like: Any, *bounds: Any, **options: Any) -> Any:
    low, high = (0, *bounds) if len(bounds) == 1 else bounds
    return torch.empty_like(like, **_without_generator(options)).random_(int(low), int(high), generator=generator)


def _native_dropout(generator: torch.Generator, values: Any, p: float, train: bool | None) -> Any:
    if values.numel() == 0:
        return values, torch.empty_like(values)
    if train is False:
        return values.clone(), torch.ones_like(values, dtype=torch.bool)
    mask = torch.empty_like(values, dtype=torch.bool).bernoulli_(1 - p, generator=generator)
    return values.mul(mask).mul_(0.0 if p == 1 else 1 / (1 - p)), mask


def _without_generator(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "generator" and value is not None}


_REWRITTEN: dict[str, Callable[..., Any]] = {
    "rand_like": _rand_like,
    "randn_like": _randn_like,
    "randint_like": _randint_like,
    "native_dropout": _native_dropout,
}


class _Active(threading.local):
    generator: torch.Generator | None = None


active = _Active()
"""``generator``: that of this thread, if ``torch.manual_seed`` and its like shall act on it."""


class _TorchRandom:
    """What the functions of ``torch.random`` do while :func:`route_torch_random` holds."""

    def __init__(self) -> None:
        self.originals: dict[str, Callable[..., Any]] = {}

    def manual_seed(self, seed: Any) -> Any:
        generator = active.generator
        return self.originals["manual_seed"](seed) if generator is None else generator.manual_seed(int(seed))

    def seed(self) -> Any:
        generator = active.generator
        return self.originals["seed"]() if generator is None else generator.seed()

    def initial_seed(self) -> Any:
        generator = active.generator
        return self.originals["initial_seed"]() if generator is None else generator.initial_seed()

    def get_rng_state(self) -> Any:
        generator = active.generator
        return self.originals["get_rng_state"]() if generator is None else generator.get_state()

    def set_rng_state(self, new_state: Any) -> Any:
        generator = active.generator
        return self.originals["set_rng_state"](new_state) if generator is None else generator.set_state(new_state)

    @contextlib.contextmanager
    def fork_rng(self, enabled: bool, everything: dict[str, Any]) -> Iterator[None]:
        generator = active.generator
        if generator is None:
            with contextlib.contextmanager(self.originals["fork_rng"])(**everything):
                yield
        elif not enabled:
            yield
        else:
            state = generator.get_state()
            try:
                yield
            finally:
                generator.set_state(state)


_torch_random = _TorchRandom()


# The code of torch's functions while they are routed; it runs among the globals of torch.random.


def _manual_seed(seed: Any) -> Any:
    return _fastload.manual_seed(seed)  # type: ignore[name-defined]  # noqa: F821  # torch's globals


def _seed() -> Any:
    return _fastload.seed()  # type: ignore[name-defined]  # noqa: F821


def _initial_seed() -> Any:
    return _fastload.initial_seed()  # type: ignore[name-defined]  # noqa: F821


def _get_rng_state() -> Any:
    return _fastload.get_rng_state()  # type: ignore[name-defined]  # noqa: F821


def _set_rng_state(new_state: Any) -> Any:
    return _fastload.set_rng_state(new_state)  # type: ignore[name-defined]  # noqa: F821


def _fork_rng(devices: Any, enabled: Any, _caller: Any, _devices_kw: Any, device_type: Any) -> Any:
    with _fastload.fork_rng(enabled, dict(locals())):  # type: ignore[name-defined]  # noqa: F821
        yield


_CODES: dict[str, Any] = {
    "manual_seed": _manual_seed,
    "seed": _seed,
    "initial_seed": _initial_seed,
    "get_rng_state": _get_rng_state,
    "set_rng_state": _set_rng_state,
    "fork_rng": _fork_rng,
}


def route_torch_random() -> list[str]:
    """Let ``torch.manual_seed`` and its like act on the generator in :data:`active`, where there is one.

    Their code is changed, not their names: who has imported one of them by its name holds the same function.

    Returns:
        Names of functions whose arguments are not those known here, and which were left as they are.
    """
    unknown = []
    for name, routed in _CODES.items():
        function: Any = inspect.unwrap(getattr(torch.random, name))
        if getattr(function, "__code__", None) is routed.__code__:
            continue
        if not isinstance(function, types.FunctionType) or _arguments(function) != _arguments(routed):
            unknown.append(f"torch.random.{name}")
            continue
        original = types.FunctionType(
            function.__code__, function.__globals__, name, function.__defaults__, function.__closure__
        )
        original.__kwdefaults__ = function.__kwdefaults__
        _torch_random.originals[name] = original
        function.__globals__["_fastload"] = _torch_random
        function.__code__ = routed.__code__
    return unknown


def restore_torch_random() -> None:
    """Give ``torch.manual_seed`` and its like their own code back."""
    # A call that is in the middle of it still finds the originals, so they are kept.
    for name in list(_CODES):
        original: Any = _torch_random.originals.get(name)
        if original is not None:
            function: Any = inspect.unwrap(getattr(torch.random, name))
            function.__code__ = original.__code__


def _arguments(function: types.FunctionType) -> tuple[str, ...]:
    code = function.__code__
    return (*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount], *code.co_freevars)


__all__ = ["OperatorRouting", "TorchRouting", "active", "restore_torch_random", "route_torch_random"]
