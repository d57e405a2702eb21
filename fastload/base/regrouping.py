"""Whether a ``collate_fn`` only regroups its samples, as ``lambda batch: tuple(zip(*batch))`` does. Pure.

In: a function. Out: whether its code builds tuples, lists and dicts of the samples and their parts, and does nothing
else: then it costs no more than ``zip``, draws nothing, and gives the same in any process.
"""

from __future__ import annotations

import builtins
import dis
import types
from collections.abc import Iterator
from typing import Any

# Instructions that read and write local names and the stack, loop, build containers and call: those of Python 3.11 as
# seen, of 3.12 to 3.14 as documented.
_ALLOWED = {
    "RESUME", "NOP", "CACHE", "COPY", "SWAP", "POP_TOP", "PUSH_NULL", "PRECALL", "CALL", "CALL_FUNCTION_EX",
    "RETURN_VALUE", "RETURN_CONST", "COPY_FREE_VARS", "MAKE_CELL", "LOAD_CONST", "LOAD_SMALL_INT", "LOAD_GLOBAL",
    "LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW", "LOAD_FAST_AND_CLEAR", "LOAD_FAST_LOAD_FAST",
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW", "STORE_FAST", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST",
    "STORE_FAST_MAYBE_NULL", "DELETE_FAST", "UNPACK_SEQUENCE", "UNPACK_EX", "BUILD_TUPLE", "BUILD_LIST",
    "BUILD_MAP", "BUILD_CONST_KEY_MAP", "LIST_EXTEND", "LIST_APPEND", "LIST_TO_TUPLE", "MAP_ADD", "DICT_UPDATE",
    "GET_ITER", "FOR_ITER", "END_FOR", "POP_ITER", "JUMP_BACKWARD", "JUMP_FORWARD", "BINARY_SUBSCR",
    "LOAD_CLOSURE", "LOAD_DEREF", "STORE_DEREF", "MAKE_FUNCTION", "CALL_INTRINSIC_1", "NOT_TAKEN", "EXTENDED_ARG",
    "RERAISE",
}  # fmt: skip
_BUILTINS = {"zip", "tuple", "list", "dict", "map", "range", "len", "enumerate"}


def only_regroups(collate_fn: Any) -> bool:
    """Return whether a function of one argument is known to do no more than to regroup what it is given."""
    if type(collate_fn) is not types.FunctionType or collate_fn.__closure__ or collate_fn.__kwdefaults__:
        return False
    code = collate_fn.__code__
    if code.co_argcount != 1 or code.co_kwonlyargcount or code.co_flags & _NOT_PLAIN:
        return False
    instructions = list(_instructions(code))
    # Builtins and comprehensions may be called, but nothing that comes with the samples.
    num_calls = sum(instruction.opname in _CALLS for instruction in instructions)
    num_functions = sum(instruction.opname in ("LOAD_GLOBAL", "MAKE_FUNCTION") for instruction in instructions)
    return num_calls <= num_functions and all(_is_allowed(one, collate_fn.__globals__) for one in instructions)


_CALLS = {"CALL", "CALL_FUNCTION_EX"}
# Functions with *args or **kwargs, generators and coroutines.
_NOT_PLAIN = 0x04 | 0x08 | 0x20 | 0x80 | 0x200


def _instructions(code: types.CodeType) -> Iterator[dis.Instruction]:
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):  # of a comprehension
            yield from _instructions(constant)


def _is_allowed(instruction: dis.Instruction, names: dict[str, Any]) -> bool:
    operation, argument = instruction.opname, instruction.argval
    if operation == "LOAD_GLOBAL":
        return argument in _BUILTINS and argument not in names and hasattr(builtins, argument)
    if operation == "BINARY_OP":
        return instruction.argrepr == "[]"  # BINARY_SUBSCR until Python 3.13
    if operation == "CALL_INTRINSIC_1":
        return "LIST_TO_TUPLE" in instruction.argrepr
    return operation in _ALLOWED
