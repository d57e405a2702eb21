"""Deep and exact comparison of what two loaders gave.

``difference`` finds the first place where two observations differ: container types, order of keys, dtypes, shapes,
strides, flags and every bit of the values count. It returns a text that names the place, or None.
"""

import array
import collections
import collections.abc
import dataclasses
import struct
from typing import Any

import numpy as np
import torch
from PIL import Image


def difference(actual: Any, expected: Any, path: str = "observation") -> str | None:
    """Say where and how ``actual`` differs from ``expected``.

    Args:
        actual: what the class under test gave.
        expected: what torch's class gave.
        path: the name of this place, for the text.

    Returns:
        The first difference found, or None if there is none.
    """
    if type(actual) is not type(expected):
        names = f"{_name(type(actual))}, expected {_name(type(expected))}"
        return f"{path}: type {names} ({actual!r:.200}, {expected!r:.200})"
    if actual is expected:
        return None
    if isinstance(expected, torch.Tensor):
        return _tensor_difference(actual, expected, path)
    if isinstance(expected, np.ndarray):
        return _array_difference(actual, expected, path)
    if isinstance(expected, np.generic) and not isinstance(expected, (str, bytes)):
        same = actual.dtype == expected.dtype and _value_bytes(actual) == _value_bytes(expected)
        return None if same else f"{path}: {actual!r}, expected {expected!r}"
    if isinstance(expected, Image.Image):
        seen = [(image.mode, image.size, image.tobytes()) for image in (actual, expected)]
        return difference(seen[0], seen[1], f"{path} (a Pillow image)")
    if isinstance(expected, float):
        # By their bits: a NaN equals itself, and 0.0 is not -0.0.
        same = struct.pack("d", actual) == struct.pack("d", expected)
        return None if same else f"{path}: {actual!r}, expected {expected!r}"
    if isinstance(expected, complex):
        same = struct.pack("dd", actual.real, actual.imag) == struct.pack("dd", expected.real, expected.imag)
        return None if same else f"{path}: {actual!r}, expected {expected!r}"
    if isinstance(expected, (str, bytes, bytearray, array.array, int, range, set, frozenset)):
        if actual != expected:
            return f"{path}: {actual!r:.300}, expected {expected!r:.300}"
        return _attribute_difference(actual, expected, path)
    if isinstance(expected, collections.abc.Mapping):
        return _mapping_difference(actual, expected, path)
    if isinstance(expected, collections.abc.Sequence):
        return _sequence_difference(actual, expected, path)
    if dataclasses.is_dataclass(expected) and not isinstance(expected, type):
        for field in dataclasses.fields(expected):
            found = difference(getattr(actual, field.name), getattr(expected, field.name), f"{path}.{field.name}")
            if found:
                return found
        return None
    if getattr(expected, "__dict__", None) and not isinstance(expected, type) and not callable(expected):
        return _attribute_difference(actual, expected, path)
    if type(expected).__eq__ is object.__eq__ and type(expected).__module__ != "builtins":
        # Two plain objects without attributes, or two functions: nothing more can be seen of them.
        return None if not callable(expected) else f"{path}: {actual!r}, expected {expected!r}"
    return None if actual == expected else f"{path}: {actual!r:.300}, expected {expected!r:.300}"


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _tensor_difference(actual: torch.Tensor, expected: torch.Tensor, path: str) -> str | None:
    for what in ("dtype", "layout", "device", "is_nested", "is_quantized", "requires_grad", "is_leaf"):
        found, wanted = getattr(actual, what), getattr(expected, what)
        if found != wanted:
            return f"{path}.{what}: {found}, expected {wanted}"
    if expected.is_nested:
        return difference(list(actual.unbind()), list(expected.unbind()), f"{path}.unbind()")
    if actual.shape != expected.shape:
        return f"{path}.shape: {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    if expected.layout is torch.sparse_coo:
        if actual.is_coalesced() != expected.is_coalesced():
            return f"{path}.is_coalesced(): {actual.is_coalesced()}, expected {expected.is_coalesced()}"
        parts = ("_indices", "_values")
    elif expected.layout in (torch.sparse_csr, torch.sparse_bsr):
        parts = ("crow_indices", "col_indices", "values")
    elif expected.layout in (torch.sparse_csc, torch.sparse_bsc):
        parts = ("ccol_indices", "row_indices", "values")
    else:
        parts = ()
    if parts:
        for part in parts:
            found_part = difference(getattr(actual, part)(), getattr(expected, part)(), f"{path}.{part}()")
            if found_part:
                return found_part
        return None
    # The stride of a dimension of length one or zero means nothing.
    strides = [
        tuple(step for step, length in zip(tensor.stride(), tensor.shape, strict=True) if length > 1)
        for tensor in (actual, expected)
    ]
    if expected.numel() and strides[0] != strides[1]:
        return f"{path}.stride(): {actual.stride()}, expected {expected.stride()} for shape {tuple(expected.shape)}"
    if actual.is_pinned() != expected.is_pinned():
        return f"{path}.is_pinned(): {actual.is_pinned()}, expected {expected.is_pinned()}"
    if expected.is_meta:
        return None
    if _bits(actual) != _bits(expected):
        return f"{path}: values {actual!r:.300}, expected {expected!r:.300}"
    return _attribute_difference(actual, expected, path)


def _bits(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg().cpu()
    if plain.is_quantized:
        plain = plain.int_repr()
    # A copy of its own: a tensor of one element counts as contiguous whatever its stride, and then has no byte view.
    copied = torch.empty(plain.numel(), dtype=plain.dtype).copy_(plain.reshape(-1))
    return copied.view(torch.uint8).numpy().tobytes()


def _value_bytes(array: np.ndarray | np.generic) -> bytes:
    if array.dtype.kind in "fc" and array.dtype.itemsize in (16, 32) and np.finfo(np.longdouble).nmant == 63:
        # x86's long double: ten bytes, and six that may be anything.
        size = np.dtype(np.longdouble).itemsize
        if array.dtype in (np.longdouble, np.clongdouble):
            return np.frombuffer(array.tobytes(), np.uint8).reshape(-1, size)[:, :10].tobytes()
    return array.tobytes()


def _array_difference(actual: np.ndarray, expected: np.ndarray, path: str) -> str | None:
    if actual.dtype != expected.dtype or actual.dtype.str != expected.dtype.str:
        return f"{path}.dtype: {actual.dtype.str}, expected {expected.dtype.str}"
    if actual.shape != expected.shape:
        return f"{path}.shape: {actual.shape}, expected {expected.shape}"
    strides = [
        tuple(step for step, length in zip(a.strides, a.shape, strict=True) if length > 1) for a in (actual, expected)
    ]
    if expected.size and strides[0] != strides[1]:
        return f"{path}.strides: {actual.strides}, expected {expected.strides}"
    if actual.flags.writeable != expected.flags.writeable:
        return f"{path}.flags.writeable: {actual.flags.writeable}, expected {expected.flags.writeable}"
    if expected.dtype.hasobject:
        return difference(list(actual.flat), list(expected.flat), f"{path}.flat")
    if _value_bytes(actual) != _value_bytes(expected):
        return f"{path}: values {actual!r:.300}, expected {expected!r:.300}"
    if isinstance(expected, np.ma.MaskedArray):
        return difference(np.asarray(np.ma.getmaskarray(actual)), np.asarray(np.ma.getmaskarray(expected)), path)
    return None


def _mapping_difference(actual: Any, expected: Any, path: str) -> str | None:
    actual_keys, expected_keys = list(actual), list(expected)
    found = difference(actual_keys, expected_keys, f"{path} (keys in order)")
    if found:
        return found
    for actual_key, expected_key in zip(actual_keys, expected_keys, strict=True):
        found = difference(actual[actual_key], expected[expected_key], f"{path}[{expected_key!r}]")
        if found:
            return found
    if isinstance(expected, collections.defaultdict) and actual.default_factory is not expected.default_factory:
        return f"{path}.default_factory: {actual.default_factory}, expected {expected.default_factory}"
    return _attribute_difference(actual, expected, path)


def _sequence_difference(actual: Any, expected: Any, path: str) -> str | None:
    for place, (found_item, wanted_item) in enumerate(zip(actual, expected, strict=False)):
        found = difference(found_item, wanted_item, f"{path}[{place}]")
        if found:
            return found
    if len(actual) != len(expected):
        return f"{path}: length {len(actual)}, expected {len(expected)} ({actual!r:.300}, expected {expected!r:.300})"
    if isinstance(expected, collections.deque) and actual.maxlen != expected.maxlen:
        return f"{path}.maxlen: {actual.maxlen}, expected {expected.maxlen}"
    return _attribute_difference(actual, expected, path)


def _attribute_difference(actual: Any, expected: Any, path: str) -> str | None:
    """Compare what the user's class keeps beside its items."""
    found, wanted = getattr(actual, "__dict__", None), getattr(expected, "__dict__", None)
    if not found and not wanted:
        return None
    return difference(found, wanted, f"{path}.__dict__")
