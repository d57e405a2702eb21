"""Why a stage gives other results from run to run: what its attributes and code show, each with its remedy.

In: a transform, a dataset, a function. Out: sentences. Nothing is called. That the stage differs was measured before;
why it does is only read, and may be wrong.
"""

from __future__ import annotations

import dis
import random
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from ..keys.library_generators import shared_transforms

_PER_SAMPLE = (
    "draw from the global generators (random, numpy.random, torch), which fastload seeds for each sample, or make the "
    "generator inside the call from a draw of theirs"
)
_WORKER = "which differs between workers and runs; derive the value from the index"
_CLOCK = "it reads the clock; take that out"
_ENTROPY = f"it draws from the operating system, which cannot be seeded; {_PER_SAMPLE}"
_NEW = f"it makes a generator, which differs each time unless it is seeded; {_PER_SAMPLE}"

# Names in the code of a stage, and what they show.
_NAMES = {
    "get_worker_info": "it looks at worker_info, so the result depends on which worker took the sample; use the index",
    "getpid": f"it uses os.getpid(), {_WORKER}",
    "get_ident": f"it uses the thread's identity, {_WORKER}",
    "current_process": f"it uses the current process, {_WORKER}",
    "uuid1": f"it makes a uuid, {_WORKER}",
    "uuid4": f"it makes a uuid, {_WORKER}",
    "get_rank": f"it uses the rank, {_WORKER}",
    "urandom": _ENTROPY,
    "SystemRandom": _ENTROPY,
    "token_bytes": _ENTROPY,
    "default_rng": _NEW,
    "RandomState": _NEW,
    "Random": _NEW,
    "time": _CLOCK,
    "time_ns": _CLOCK,
    "perf_counter": _CLOCK,
    "perf_counter_ns": _CLOCK,
    "monotonic": _CLOCK,
    "now": _CLOCK,
}
_GENERATORS: dict[type, str] = {
    random.Random: "random.Random",
    np.random.Generator: "numpy.random.Generator",
    np.random.RandomState: "numpy.random.RandomState",
    torch.Generator: "torch.Generator",
}
_LIBRARIES = {*sys.stdlib_module_names, "torch", "torchvision", "numpy", "PIL", "albumentations", "kornia"} - {
    "__main__",
    "test",
}


def causes_in(value: Any) -> list[str]:
    """Return the causes that a stage shows, none if there are none."""
    found = [
        f"it keeps a generator of its own, {name} ({kind}): each worker has a copy of it, so a sample's draws depend "
        f"on what that worker drew before; {_PER_SAMPLE}"
        for name, kind in _own_generators(value)
    ]
    functions = list(_functions_of(value))
    codes = [code for function in functions for code in _with_inner(function.__code__)]
    names = list(dict.fromkeys(name for code in codes for name in code.co_names))
    for name in names:
        words = _NAMES.get(name, "")
        if words and not (found and words is _NEW):  # the generator is the one that it keeps
            found.append(words)
    variables = functions[0].__globals__ if functions else {}
    found += [
        f"it draws from the global variable {name} ({_kind_of(variables[name])}), which is not seeded for each sample; "
        f"{_PER_SAMPLE}"
        for name in names
        if isinstance(variables.get(name), tuple(_GENERATORS))
    ]
    shared = shared_transforms(value)
    if shared:
        found.append(
            f"it reaches Albumentations transforms ({shared}) by a global variable or a class: threads share them and "
            "their generators, and no copy of the dataset has its own; make them attributes of the dataset"
        )
    written = {name for code in codes for name in _attributes_written(code)} & set(getattr(value, "__dict__", ()))
    if written:
        kept = ", ".join(f"self.{name}" for name in sorted(written))
        found.append(
            f"it keeps state from sample to sample ({kept}): each worker process has a copy of it, and threads share "
            "it; make the result depend on the sample alone"
        )
    return list(dict.fromkeys(found))


def _own_generators(value: Any) -> Iterator[tuple[str, str]]:
    """Yield name and class of generators among the attributes of an object, and of objects it holds."""
    for name, held in _held(value):
        if isinstance(held, tuple(_GENERATORS)):
            yield name, _kind_of(held)
        elif not isinstance(held, (torch.Tensor, np.ndarray, torch.utils.data.Dataset)):
            for inner, deeper in _held(held):
                if isinstance(deeper, tuple(_GENERATORS)):
                    yield f"{name}.{inner.removeprefix('self.')}", _kind_of(deeper)


def _kind_of(generator: Any) -> str:
    return next(name for known, name in _GENERATORS.items() if isinstance(generator, known))


def _held(value: Any) -> list[tuple[str, Any]]:
    """Return the attributes of an object, and the variables in a function's closure."""
    held = [(f"self.{name}", one) for name, one in getattr(value, "__dict__", {}).items()]
    if isinstance(value, types.FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=False)
        held += [(name, cell.cell_contents) for name, cell in cells]
    return held


def _functions_of(value: Any) -> Iterator[types.FunctionType]:
    """Yield a function itself, or the methods of an object's class, without those of libraries."""
    function = getattr(value, "func", value)  # of a partial
    function = getattr(function, "__func__", function)  # of a method
    if isinstance(function, types.FunctionType):
        yield function
        return
    for base in type(value).__mro__:
        if base.__module__.split(".")[0] not in _LIBRARIES:
            for member in vars(base).values():
                plain = getattr(member, "__func__", getattr(member, "fget", member))
                if isinstance(plain, types.FunctionType):
                    yield plain


def _with_inner(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _with_inner(constant)


def _attributes_written(code: types.CodeType) -> set[str]:
    if code.co_varnames[:1] != ("self",) or code.co_name in ("__init__", "__new__", "__setstate__"):
        return set()
    return {str(step.argval) for step in dis.get_instructions(code) if step.opname == "STORE_ATTR"}


__all__ = ["causes_in"]
