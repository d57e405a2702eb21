"""What in a stage can make its result differ from run to run, by looking at it: each with its remedy.

In: an object of the user's (a transform, a dataset, a function). Out: sentences. Nothing is called; what is read are
its attributes, and the names in the compiled code of its class.

These are guesses: that the stage differs was measured before, why it does is read from its code.
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

from ..library_generators import shared_transforms

_PER_SAMPLE = (
    "draw from the global generators (random, numpy.random, torch), which fastload seeds for each sample, or make the "
    "generator inside the call from a draw of theirs"
)

# A name in the code, and what it tells.
_NAMES = {
    "get_worker_info": "it looks at worker_info, so the result depends on which worker took the sample; use the index",
    "getpid": "it uses os.getpid(), which is another in each worker and run; take it out",
    "getppid": "it uses os.getppid(), which is another in each run; take it out",
    "get_ident": "it uses the thread's identity, which is another in each worker; take it out",
    "current_thread": "it uses the current thread, which is another in each worker; take it out",
    "current_process": "it uses the current process, which is another in each worker; take it out",
    "uuid1": "it makes a uuid, which is another each time; derive it from the index",
    "uuid4": "it makes a uuid, which is another each time; derive it from the index",
    "urandom": f"it draws from the operating system, which nothing seeds; {_PER_SAMPLE}",
    "SystemRandom": f"it draws from the operating system, which nothing seeds; {_PER_SAMPLE}",
    "token_bytes": f"it draws from the operating system, which nothing seeds; {_PER_SAMPLE}",
    "randbits": f"it draws from the operating system, which nothing seeds; {_PER_SAMPLE}",
    "hostname": "it uses the machine's name; take it out",
    "RANK": "it looks at the rank, so the result depends on the world size; use the index",
    "get_rank": "it looks at the rank, so the result depends on the world size; use the index",
}
_CLOCKS = {"time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "now", "today", "utcnow"}
_CLOCK_MODULES = {"time", "datetime", "date"}
_FRESH_GENERATORS = {"default_rng", "RandomState", "Random"}
_GENERATORS: dict[type, str] = {
    random.Random: "random.Random",
    np.random.Generator: "numpy.random.Generator",
    np.random.RandomState: "numpy.random.RandomState",
    torch.Generator: "torch.Generator",
}


def causes_in(value: Any, *, thread: bool, spawn: bool) -> list[str]:
    """Return what was found in an object.

    Args:
        value: a transform, a dataset, a function.
        thread: the difference was seen between threads.
        spawn: it was seen with processes started by spawn, and not with those that are forked.
    """
    found: list[str] = []
    for name, generator in _generators_of(value):
        kind = next(name for known, name in _GENERATORS.items() if isinstance(generator, known))
        found.append(
            f"it keeps a generator of its own, {name} ({kind}): each worker has a copy of it, so a sample's draws "
            f"depend on what that worker drew before; {_PER_SAMPLE}"
        )
    names: set[str] = set()
    written: set[str] = set()
    sets = False
    for code in _codes_of(value):
        names |= set(code.co_names)
        for name in code.co_names:
            if name in _NAMES and _NAMES[name] not in found:
                found.append(_NAMES[name])
        clocks = sorted(set(code.co_names) & _CLOCKS)
        if clocks and (set(code.co_names) & _CLOCK_MODULES or "perf_counter" in clocks):
            found.append(f"it reads the clock ({clocks[0]}); take it out")
        sets |= _iterates_over_sets(code)
        if code.co_name not in ("__init__", "__new__", "__setstate__"):
            written |= _attributes_written(code)
    for name in sorted(names & _FRESH_GENERATORS):
        if not any("generator of its own" in cause for cause in found):
            found.append(f"it makes a generator ({name}); without a seed it is another each time; {_PER_SAMPLE}")
    for name, generator in _global_generators(value, names):
        found.append(
            f"it draws from the generator {name} ({type(generator).__qualname__}) of its module, which nothing seeds "
            f"for each sample; {_PER_SAMPLE}"
        )
    shared = shared_transforms(value)
    if shared:
        found.append(
            f"it reaches Albumentations transforms ({shared}) by a global variable or a class: threads share them and "
            "their generators, and no copy of the dataset has its own; make them attributes of the dataset"
        )
    written &= vars(value).keys() if hasattr(value, "__dict__") else set()
    if written:
        kept = ", ".join(f"self.{name}" for name in sorted(written))
        remedy = "threads share it, and workers have copies" if thread else "each worker has a copy of its own"
        found.append(
            f"it keeps state from sample to sample ({kept}): {remedy}; make the result depend on the sample alone"
        )
    if spawn and (sets or "hash" in names):
        found.append(
            "it uses the order of a set, or hash(): for strings both are others in each process that is not forked "
            "(PYTHONHASHSEED); sort the set, or use hashlib"
        )
    return list(dict.fromkeys(found))


def _generators_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and value of generators among the attributes of an object, and of objects it holds."""
    for name, held in _held(value):
        if isinstance(held, tuple(_GENERATORS)):
            yield name, held
        elif not isinstance(held, (torch.Tensor, np.ndarray, torch.utils.data.Dataset)):
            for inner, deeper in _held(held):
                if isinstance(deeper, tuple(_GENERATORS)):
                    yield f"{name}.{inner.removeprefix('self.')}", deeper


def _held(value: Any) -> list[tuple[str, Any]]:
    held = [(f"self.{name}", one) for name, one in getattr(value, "__dict__", {}).items()]
    if isinstance(value, types.FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=False)
        held += [(name, cell.cell_contents) for name, cell in cells]
    return held


def _global_generators(value: Any, names: set[str]) -> Iterator[tuple[str, Any]]:
    for function in _functions_of(value):
        for name in names:
            held = function.__globals__.get(name)
            if isinstance(held, tuple(_GENERATORS)):
                yield name, held
        return


def _functions_of(value: Any) -> Iterator[types.FunctionType]:
    """Yield the functions of an object's class that are the user's: not those of libraries and of Python."""
    function = getattr(value, "func", value)  # of a partial
    if isinstance(function, types.MethodType):
        function = function.__func__
    if isinstance(function, types.FunctionType):
        yield function
        return
    for base in type(value).__mro__:
        if base.__module__.split(".")[0] in _LIBRARIES:
            continue
        for member in vars(base).values():
            plain = getattr(member, "__func__", getattr(member, "fget", member))
            if isinstance(plain, types.FunctionType):
                yield plain


_LIBRARIES = {*sys.stdlib_module_names, "torch", "torchvision", "numpy", "PIL", "albumentations", "kornia"} - {
    "__main__",
    "test",
}


def _codes_of(value: Any) -> Iterator[types.CodeType]:
    waiting = [function.__code__ for function in _functions_of(value)]
    while waiting:
        code = waiting.pop()
        yield code
        waiting += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]


def _attributes_written(code: types.CodeType) -> set[str]:
    """Return the attributes that a method writes."""
    if code.co_varnames[:1] != ("self",):
        return set()
    return {str(step.argval) for step in dis.get_instructions(code) if step.opname == "STORE_ATTR"}


def _iterates_over_sets(code: types.CodeType) -> bool:
    made = any(step.opname in ("BUILD_SET", "SET_ADD") for step in dis.get_instructions(code))
    return (
        made
        or bool({"set", "frozenset"} & set(code.co_names))
        or any(isinstance(constant, frozenset) for constant in code.co_consts)
    )


__all__ = ["causes_in"]
