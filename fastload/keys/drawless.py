"""Whether samples of a dataset are known to draw nothing, by the byte code of its ``__getitem__``.

In: a dataset. Out: whether seeding its samples would make no difference, so that it may be left out: it takes longer
than to read a window of an ``np.memmap``. Known is code that computes with numbers, arrays and tensors that are
attributes of the dataset, by functions and methods of NumPy and torch that are listed here: none of them draws, and
none runs code of the user's. Whatever else stands there, it may draw.

What the code says is read once. That the names still mean the same is looked at for each batch, as the user may replace
functions and attributes at any time.
"""

from __future__ import annotations

import builtins
import dis
import inspect
import math
import types
from collections.abc import Iterator
from operator import attrgetter, is_
from typing import Any

import numpy as np
import torch

from ..base import compat

_MODULES: dict[str, Any] = {module.__name__: module for module in (math, np, torch)}
_BUILTINS: dict[str, Any] = {one.__name__: one for one in (int, float, bool, len, min, max, range, slice, tuple, list)}
_SCALARS = (int, float, bool, str, bytes, types.NoneType, torch.dtype)
_ARRAYS = (np.ndarray, np.memmap)
_VALUES = (*_ARRAYS, torch.Tensor)

# Names of functions, classes and dtypes of the modules, and of attributes and methods of arrays and tensors.
_NAMES = {
    *("from_numpy", "as_tensor", "tensor", "asarray", "array", "ascontiguousarray", "stack", "cat", "concatenate"),
    *("zeros", "ones", "full", "arange", "floor", "ceil", "sqrt"),
    *("bool", "bool_", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "float16", "bfloat16"),
    *("float32", "float64", "long", "int", "float", "half", "double", "type"),
    *("astype", "to", "copy", "clone", "contiguous", "numpy", "item", "tolist", "view", "reshape", "flatten", "ravel"),
    *("squeeze", "unsqueeze", "permute", "transpose", "shape", "size", "ndim", "dtype", "T"),
    *("sum", "mean", "max", "min", "add", "sub", "mul", "div", "clip", "clamp", "pi", "inf", "nan", "newaxis"),
    *("index_select", "take"),
}  # fmt: skip

# Instructions that compute with local names and constants: those of Python 3.11 as seen, of 3.12 to 3.14 as documented.
_ALLOWED = {
    "RESUME", "NOP", "CACHE", "COPY", "SWAP", "PUSH_NULL", "PRECALL", "CALL", "CALL_KW", "KW_NAMES", "POP_TOP",
    "RETURN_VALUE", "RETURN_CONST", "LOAD_CONST", "LOAD_SMALL_INT", "LOAD_GLOBAL", "LOAD_ATTR", "LOAD_METHOD",
    "LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK", "LOAD_FAST_LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW",
    "STORE_FAST", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST", "UNPACK_SEQUENCE", "BINARY_OP", "BINARY_SUBSCR",
    "BINARY_SLICE", "BUILD_SLICE", "BUILD_TUPLE", "BUILD_LIST", "BUILD_MAP", "BUILD_CONST_KEY_MAP", "UNARY_NEGATIVE",
    "UNARY_INVERT", "UNARY_NOT", "COMPARE_OP", "IS_OP", "TO_BOOL", "POP_JUMP_IF_FALSE", "POP_JUMP_IF_TRUE",
    "POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_FORWARD_IF_TRUE", "JUMP_FORWARD", "NOT_TAKEN", "EXTENDED_ARG",
}  # fmt: skip
_NOT_PLAIN = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR | inspect.CO_COROUTINE


def drawless_of(dataset: Any) -> Drawless | None:
    """Return what is known of a dataset, or of the one that it is a ``Subset`` of; None if its samples may draw."""
    subset = compat.per_sample_subset(dataset)
    found = Drawless(dataset if subset is None else subset.dataset, subset)
    return found if found.is_known else None


class Drawless:
    """What is known of a dataset.

    Args:
        dataset: whose samples ``dataset[index]`` makes.
        subset: the ``Subset`` that is asked for them; None: the dataset is.
    """

    def __init__(self, dataset: Any, subset: Any = None) -> None:
        self._subset = subset
        self._dataset: Any = dataset
        kind: Any = type(dataset)
        self._kind = kind
        self._function: Any = getattr(self._kind, "__getitem__", None)
        self._attributes: list[str] = []
        """That the code reads of the dataset."""
        self._globals: dict[str, Any] = {}
        """Modules and functions that it names."""
        self._used: list[tuple[Any, Any, tuple[Any, ...]]] = []
        """What reads functions of NumPy's and torch's, of which module or class, and the functions."""
        self._num_of_tensor = len(vars(torch.Tensor))
        """Attributes of the class: another one may be a method that the code names, and that only arrays had."""
        self.is_known = self._read()
        """Whether the code is known to draw nothing, as long as its names mean what they did."""

    def draw_nothing(self, indices: Any) -> bool:
        """Return whether no sample of these indices, a list, can draw. It takes about 7 us."""
        if not self.is_known or not _are_numbers(indices):
            return False
        if self._subset is not None:
            places = self._subset.indices
            try:
                if type(places) is not list or not _are_numbers([places[index] for index in indices]):
                    return False
            except IndexError:  # the samples before it are loaded first
                return False
        return self._is_as_it_was()

    def _read(self) -> bool:
        function = self._function
        if type(function) is not types.FunctionType or function.__closure__ or function.__kwdefaults__:
            return False
        code = function.__code__
        if code.co_argcount != 2 or code.co_kwonlyargcount or code.co_flags & _NOT_PLAIN or function.__defaults__:
            return False
        if getattr(function, "__builtins__", None) is not vars(builtins) or not self._kind.__dictoffset__:
            return False
        if any(isinstance(vars(base).get("__dict__"), property) for base in self._kind.__mro__):
            return False
        self._code = code
        instructions = [one for one in dis.get_instructions(code) if one.opname != "CACHE"]
        names: set[str] = set()
        own = code.co_varnames[0]
        for before, one in zip([None, *instructions], instructions, strict=False):
            if one.opname not in _ALLOWED:
                return False
            is_of_own = before is not None and before.opname not in _STORES and _local_names(before)[-1:] == (own,)
            if is_of_own and (one.opname != "LOAD_ATTR" or one.is_jump_target):
                return False  # it hands itself to something
            if one.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                (self._attributes.append if is_of_own else names.add)(one.argval)
            elif one.opname == "LOAD_GLOBAL":
                if one.argval not in self._globals and not self._knows(one.argval):
                    return False
            elif isinstance(one.argval, types.CodeType):
                return False
            local_names = _local_names(one)
            if own in local_names[:-1] or (own in local_names and one.opname in _STORES):
                return False  # it lies under another value, or is another object from here on
        if not names <= _NAMES:
            return False
        self._used = [*_readers(names), (_OPERATORS, torch.Tensor, _OPERATORS(torch.Tensor))]
        return all(map(_is_theirs, (one for _, _, those in self._used for one in those)))

    def _knows(self, name: str) -> bool:
        found = self._function.__globals__.get(name, _BUILTINS.get(name))
        is_module = any(found is one for one in _MODULES.values())
        if not is_module and not (found is not None and found is _BUILTINS.get(name) and _is_theirs(found)):
            return False
        self._globals[name] = found
        return True

    def _is_as_it_was(self) -> bool:
        dataset, kind, function = self._dataset, self._kind, self._function
        if type(dataset) is not kind or kind.__getitem__ is not function or function.__code__ is not self._code:
            return False
        if _has_modes() or not _are_memmaps_numpys() or len(vars(torch.Tensor)) != self._num_of_tensor:
            return False
        read_attribute: Any = kind.__getattribute__
        if read_attribute is not object.__getattribute__ or hasattr(kind, "__getattr__"):
            return False
        own, variables = dataset.__dict__, function.__globals__
        for name in self._attributes:
            if hasattr(kind, name) or not _is_plain(own.get(name, dataset)):
                return False
        for name, known in self._globals.items():
            if variables.get(name, _builtins.get(name)) is not known:
                return False
        try:
            # Not `==`: a wrapper may say that it equals what it wraps.
            return all(all(map(is_, read(owner), those)) for read, owner, those in self._used)
        except AttributeError:  # somebody has deleted one
            return False


def _are_numbers(indices: Any) -> bool:
    return type(indices) is list and set(map(type, indices)) <= {int}


_STORES = {"STORE_FAST", "STORE_FAST_STORE_FAST"}


def _local_names(instruction: dis.Instruction) -> tuple[Any, ...]:
    if "FAST" not in instruction.opname:
        return ()
    found = instruction.argval
    return found if isinstance(found, tuple) else (found,)


def _readers(names: set[str]) -> Iterator[tuple[Any, Any, tuple[Any, ...]]]:
    for owner in (*_MODULES.values(), *_VALUES):
        # To ask NumPy 1.26 whether it has ``long`` or ``bool`` is to be warned.
        known = vars(owner) if isinstance(owner, types.ModuleType) else dir(owner)
        those = sorted((names | _CALLED_BY_OPERATORS if owner is torch else names).intersection(known))
        if those:
            read = attrgetter(*those, "__class__")  # with one name it would return no tuple
            yield read, owner, read(owner)


def _is_theirs(found: Any) -> bool:
    """Whether a function or an attribute, and all that it says it wraps, is NumPy's, torch's or Python's own."""
    while type(found) is types.FunctionType:
        if _package(found.__globals__.get("__name__")) not in _PACKAGES:
            return False
        if not hasattr(found, "__wrapped__"):
            return True
        found = found.__wrapped__
    named = getattr(found, "__module__", None) if isinstance(found, type) or callable(found) else None
    return _package(named or "builtins") in _PACKAGES and _package(type(found).__module__) in _PACKAGES


_PACKAGES = ("numpy", "torch", "math", "builtins")


def _package(module: Any) -> str:
    return str(module).partition(".")[0]


def _is_plain(value: Any) -> bool:
    """Whether a value runs no code of the user's, whatever is done with it."""
    kind = type(value)
    if kind in _SCALARS:
        return True
    if kind in (torch.Tensor, np.memmap) and not value.__dict__.keys() <= _OF_MEMMAPS:
        return False  # methods of its own, perhaps
    return kind is torch.Tensor or (kind in _ARRAYS and not value.dtype.hasobject)


_OF_MEMMAPS = {"_mmap", "offset", "mode", "filename"}


def _has_modes() -> bool:
    """Whether somebody sees what torch is called for, in this thread."""
    return bool(torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack())


_builtins = vars(builtins)
_OPERATORS = attrgetter(
    *(f"__{name}__" for name in ("getitem", "len", "bool", "int", "float", "index", "iter", "neg", "invert", "array")),
    *(f"__{name}__" for name in ("array_wrap", "lt", "le", "gt", "ge", "eq", "ne", "contains", "hash")),
    *("numpy", "reciprocal", "unbind"),
    *(
        f"__{side}{name}__"
        for name in (
            *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
            *("and", "or", "xor", "lshift", "rshift"),
        )
        for side in ("", "r", "i")
        if hasattr(torch.Tensor, f"__{side}{name}__")
    ),
)
"""What operators and Python's own functions call of a tensor."""
_CALLED_BY_OPERATORS = frozenset(
    ("floor_divide", "remainder", "pow", "matmul", "bitwise_left_shift", "bitwise_right_shift", "from_numpy")
)
"""Torch's functions that tensors' operators call by name."""

_MEMMAP_METHODS = attrgetter("__getitem__", "__array_finalize__", "__array_wrap__")
_numpys_memmap = _MEMMAP_METHODS(np.memmap)
_are_numpys = all(map(_is_theirs, _numpys_memmap))
_num_of_memmap = len(vars(np.memmap))


def _are_memmaps_numpys() -> bool:
    """Whether ``np.memmap``, which is written in Python, has the methods that it was written with, and no others."""
    if not _are_numpys or len(vars(np.memmap)) != _num_of_memmap:
        return False
    return all(map(is_, _MEMMAP_METHODS(np.memmap), _numpys_memmap))
