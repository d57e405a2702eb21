"""Whether a ``collate_fn`` only regroups its samples, as ``lambda batch: tuple(zip(*batch))`` does. Pure.

In: a function. Out: whether its code builds tuples and lists of whole samples, or of all their parts, and does nothing
else: then it costs no more than ``zip``, draws nothing, and drops nothing that would have to be sent for it. What
samples do when they are iterated is not known here: see :func:`are_plain`.
"""

from __future__ import annotations

import builtins
import dis
import inspect
import types
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

# Instructions that read and write local names and the stack, build containers and call: those of Python 3.11 as seen,
# of 3.12 to 3.14 as documented.
_ALLOWED = {
    "RESUME", "NOP", "CACHE", "COPY", "SWAP", "PUSH_NULL", "PRECALL", "CALL", "CALL_FUNCTION_EX", "RETURN_VALUE",
    "LOAD_CONST", "LOAD_GLOBAL", "LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_LOAD_FAST",
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW", "STORE_FAST", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST",
    "UNPACK_SEQUENCE", "UNPACK_EX", "BUILD_TUPLE", "BUILD_LIST", "BUILD_MAP", "LIST_EXTEND", "LIST_TO_TUPLE",
    "CALL_INTRINSIC_1", "NOT_TAKEN", "EXTENDED_ARG",
}  # fmt: skip
_BUILTINS = {"zip": zip, "tuple": tuple, "list": list}
# Functions with *args or **kwargs, and those that do not return at once.
_NOT_PLAIN = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR
_NOT_PLAIN |= inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_PLAIN = (
    *(tuple, list, dict, str, bytes, int, float, complex, bool, type(None), np.ndarray, np.float64, np.int64),
    *(torch.Tensor, torch.Size),
)


def only_regroups(collate_fn: Any) -> bool:
    """Return whether a function of one argument is known to do no more than to regroup what it is given."""
    if type(collate_fn) is not types.FunctionType or collate_fn.__closure__ or collate_fn.__kwdefaults__:
        return False
    code = collate_fn.__code__
    if code.co_argcount != 1 or code.co_kwonlyargcount or code.co_flags & _NOT_PLAIN:
        return False
    if getattr(collate_fn, "__builtins__", None) is not vars(builtins):
        return False
    instructions = list(dis.get_instructions(code))
    stored, loaded = _names(instructions, "STORE"), _names(instructions, "LOAD")
    # A name that is not read again would be a part of all samples that is dropped.
    return stored <= loaded and all(_is_allowed(one, collate_fn.__globals__) for one in instructions)


def are_plain(samples: Sequence[Any]) -> bool:
    """Return whether iterating these samples runs no code of the user's."""
    return all(type(sample) in _PLAIN for sample in samples)


def _names(instructions: list[dis.Instruction], kind: str) -> set[str]:
    """Return the local names that are stored, or loaded. Some instructions do both, and have two names."""
    found: set[str] = set()
    for one in instructions:
        words = one.opname.replace("_BORROW", "").split("_FAST")
        names = one.argval if isinstance(one.argval, tuple) else (one.argval,)
        kinds = [word.strip("_") for word in words[:-1]]
        found |= {name for word, name in zip(kinds, names, strict=False) if word == kind}
    return found


def _is_allowed(instruction: dis.Instruction, names: dict[str, Any]) -> bool:
    operation, argument = instruction.opname, instruction.argval
    if operation == "LOAD_GLOBAL":
        known = _BUILTINS.get(argument)
        return known is not None and argument not in names and getattr(builtins, argument) is known
    if operation == "CALL_INTRINSIC_1":
        return "LIST_TO_TUPLE" in instruction.argrepr
    if operation == "LOAD_CONST":
        return not isinstance(argument, types.CodeType)
    return operation in _ALLOWED
