"""Change existing bound methods in place, so that all code that holds them calls other functions.

In: an object, and functions for its methods. Out: patches that make the bound methods of this object call these
functions, and that can be undone.

NOTE [Patching in place]: ``from random import randint`` copies a reference to a bound method. Replacing the name in its
module does not change that copy, and a search for all copies misses those in objects that cannot be changed. So the
bound method itself is changed: the function that it calls is a pointer at a fixed place of the object. Python gives no
way to set it, so it is written with ctypes. Before that, the memory is compared with what Python says about the object;
an unknown layout is a :class:`~fastload.errors.ConfigError`, and nothing is written. While a method is patched its hash
is another, so it is not found as the key of a dict or in a set.

NOTE [Other threads meanwhile]: a method of C has two fields to change. A thread that calls it between the two writes
passes the wrong object to a function of C, and crashes. With the GIL no other thread runs meanwhile. Without it, all of
them are stopped, as the garbage collector stops them. Until they go on, no bytecode may run: a signal handler or a
collection in it could wait for one of them.

Ownership: patched objects are kept alive for ever, since their memory is written.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import operator
import struct
import types
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ..base import gil
from ..errors import ConfigError

_HEADER = object.__basicsize__  # reference count and type; the fields of a class follow
_POINTER = struct.calcsize("P")
_METH_VARARGS, _METH_KEYWORDS, _METH_NOARGS, _METH_O, _METH_FASTCALL = 0x1, 0x2, 0x4, 0x8, 0x80

# Functions of CPython with the signature of a method of these flags, that call `self`. NumPy 1 has all of them.
_CALL_SELF = {
    _METH_NOARGS: ctypes.pythonapi.PyObject_CallNoArgs,
    _METH_O: ctypes.pythonapi.PyObject_CallOneArg,
    _METH_VARARGS | _METH_KEYWORDS: ctypes.pythonapi.PyObject_Call,
    _METH_FASTCALL | _METH_KEYWORDS: ctypes.pythonapi.PyObject_Vectorcall,
}


class _MethodDef(ctypes.Structure):
    """CPython's ``PyMethodDef``."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


class Patch(NamedTuple):
    """Bytes at an address, and what replaces them."""

    address: int
    original: bytes
    changed: bytes
    kept: tuple[object, ...]
    """What must stay alive."""


def apply(patches: Iterable[Patch]) -> None:
    """Write the changed bytes of patches: see NOTE [Other threads meanwhile]."""
    _write((patch.address, patch.changed) for patch in patches)


def undo(patches: Iterable[Patch]) -> None:
    """Write the original bytes."""
    _write((patch.address, patch.original) for patch in patches)


class _BoundMethod(functools.partial[Any]):
    """A function and its first argument. A patched method of C calls it.

    Pickling a bound method pickles its object, so this pickles as the object.
    """

    def __reduce__(self) -> Any:
        return self.args[0].__reduce__()


def bound_methods(owner: object, modules: Sequence[types.ModuleType]) -> list[Any]:
    """Return all bound methods of an object, in 0.1 s for 450,000 objects.

    The garbage collector does not see what ``gc.freeze()`` hides, so that ``modules`` are looked through too.
    """
    holders = gc.get_referrers(owner) + [value for module in modules for value in vars(module).values()]
    kinds = types.MethodType, types.BuiltinMethodType
    methods = [holder for holder in holders if type(holder) in kinds and holder.__self__ is owner]
    return list({id(method): method for method in methods}.values())


def patch_method(method: Any, subclass: type) -> Patch | None:
    """Return a patch that lets a bound method call a subclass's method of the same name, a function of Python.

    None: this is not a method of the class from which the subclass is derived, or the subclass does not override it.

    Raises:
        ConfigError: the layout of methods is not known for this Python.
    """
    name, owner = method.__name__, method.__self__
    function = vars(subclass).get(name)
    if isinstance(method, types.MethodType):
        if function is None or method.__func__ is not vars(subclass.__base__).get(name):
            return None
        pointers = _read_pointers(method, method.__func__, owner)
        return Patch(id(method) + _HEADER, pointers, struct.pack("PP", id(_immortal(function)), id(owner)), (method,))
    if function is None:
        return None
    address = struct.unpack("P", ctypes.string_at(id(method) + _HEADER, _POINTER))[0]
    pointers = _read_pointers(method, address, owner)
    definition = _MethodDef.from_address(address)
    if definition.name != name.encode() or definition.flags not in _CALL_SELF:
        raise _unknown_layout(method)
    call_self = ctypes.cast(_CALL_SELF[definition.flags], ctypes.c_void_p).value
    changed = _MethodDef(definition.name, call_self, definition.flags, definition.doc)
    target = _immortal(_BoundMethod(function, owner))
    return Patch(
        id(method) + _HEADER, pointers, struct.pack("PP", ctypes.addressof(changed), id(target)), (method, changed)
    )


def patch_type(thing: object, subclass: type) -> Patch:
    """Return a patch that makes an object an instance of a subclass of its class, where Python does not allow it.

    Raises:
        ConfigError: the layout of objects is not known for this Python, or the subclass adds something to it.
    """
    address = id(thing) + _HEADER - _POINTER
    original = struct.pack("P", id(type(thing)))
    if ctypes.string_at(address, _POINTER) != original or subclass.__basicsize__ != type(thing).__basicsize__:
        raise _unknown_layout(thing)
    return Patch(address, original, struct.pack("P", id(_immortal(subclass))), (thing,))


def _read_pointers(method: Any, first: Any, second: object) -> bytes:
    """Return the first two fields of a method, after comparing them with an address or object, and an object."""
    expected = struct.pack("PP", first if isinstance(first, int) else id(first), id(second))
    if ctypes.string_at(id(method) + _HEADER, len(expected)) != expected:
        raise _unknown_layout(method)
    return expected


def _unknown_layout(thing: object) -> ConfigError:
    return ConfigError(
        f"worker_method='thread' cannot give worker threads their own random generators: {thing!r} is not laid out in "
        "memory as in the versions of Python and NumPy that fastload knows; use worker_method='multiprocessing'"
    )


def _immortal(thing: Any) -> Any:
    """Return an object that is never freed: a patched field refers to it without counting."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
    return thing


# As ctypes.memmove, which lets other threads run meanwhile.
_memmove = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t)(
    ctypes.cast(ctypes.memmove, ctypes.c_void_p).value or 0
)


def _write(changes: Iterable[tuple[int, bytes]]) -> None:
    """Write bytes at addresses, all in one step for other threads."""
    calls = [functools.partial(_memmove, address, data, len(data)) for address, data in changes]
    if calls and gil.IS_FREE_THREADED:
        stop, start = _stop_and_start()
        calls = [stop, *calls, start]
    deque(map(operator.call, calls), maxlen=0)


def _stop_and_start() -> tuple[functools.partial[Any], functools.partial[Any]]:
    """Return functions that stop the other threads of a Python without the GIL, and let them go on."""
    python = ctypes.PyDLL(None)  # not ctypes.pythonapi: the types below would be everybody's
    try:
        stop, start = python._PyEval_StopTheWorld, python._PyEval_StartTheWorld
    except AttributeError as error:
        raise ConfigError(
            "worker_method='thread' cannot give worker threads their own random generators: this Python without the "
            "GIL has no _PyEval_StopTheWorld; set PYTHON_GIL=1, or use worker_method='multiprocessing'"
        ) from error
    python.PyInterpreterState_Get.restype = ctypes.c_void_p
    interpreter = ctypes.c_void_p(python.PyInterpreterState_Get())
    stop.restype = start.restype = None
    return functools.partial(stop, interpreter), functools.partial(start, interpreter)
