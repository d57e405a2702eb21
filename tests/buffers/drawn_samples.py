"""Samples of any kind that has a layout, drawn by hypothesis."""

from __future__ import annotations

import math
import random
from collections import namedtuple
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st


class Point(NamedTuple):
    x: Any
    y: Any


Single = namedtuple("Single", ["only"])
Empty = namedtuple("Empty", [])

TENSOR_DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
TENSOR_DTYPES += [torch.uint16, torch.uint32, torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64]
TENSOR_DTYPES += [torch.complex32, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2]
ARRAY_DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]
SCALARS = [np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8]
SCALARS += [np.float16, np.float32, np.float64, np.complex64, np.complex128]

Make = Callable[[random.Random], Any]


def tensor_of(dtype: torch.dtype, shape: tuple[int, ...], rng: random.Random) -> torch.Tensor:
    """Return a tensor of random bytes: NaNs of all kinds, infinities, negative zeros."""
    size = math.prod(shape) * dtype.itemsize
    data = bytearray(rng.randbytes(size))
    if dtype is torch.bool:
        data = bytearray(byte & 1 for byte in data)
    if size == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).reshape(shape)


def array_of(dtype: str, shape: tuple[int, ...], rng: random.Random) -> np.ndarray[Any, Any]:
    size = math.prod(shape) * np.dtype(dtype).itemsize
    data = bytearray(byte & 1 for byte in rng.randbytes(size)) if dtype == "?" else bytearray(rng.randbytes(size))
    return np.frombuffer(data, dtype=dtype).reshape(shape)


shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)


@st.composite
def tensors(draw: Any) -> Make:
    dtype, shape = draw(st.sampled_from(TENSOR_DTYPES)), draw(shapes)
    form = draw(st.sampled_from(["plain", "transposed", "expanded", "sliced", "strided"]))

    def make(rng: random.Random) -> torch.Tensor:
        if form == "transposed":
            return tensor_of(dtype, shape[::-1], rng).permute(tuple(reversed(range(len(shape)))))
        if form == "expanded":
            return tensor_of(dtype, (), rng).expand(shape)
        if form == "sliced":
            return tensor_of(dtype, (3, *shape), rng)[1]
        if form == "strided":
            return tensor_of(dtype, (*shape, 3), rng)[..., 1]
        return tensor_of(dtype, shape, rng)

    return make


@st.composite
def arrays(draw: Any) -> Make:
    dtype, shape, transposed = draw(st.sampled_from(ARRAY_DTYPES)), draw(shapes), draw(st.booleans())
    if transposed:
        return lambda rng: array_of(dtype, shape[::-1], rng).T
    return lambda rng: array_of(dtype, shape, rng)


@st.composite
def scalars(draw: Any) -> Make:
    kind = draw(st.sampled_from(SCALARS))
    return lambda rng: kind(array_of(np.dtype(kind).str[1:].replace("b1", "?"), (), rng)[()])


numbers = st.sampled_from(
    [
        lambda rng: rng.random() < 0.5,
        lambda rng: rng.randrange(-(2**63), 2**63),
        lambda rng: rng.randrange(-3, 3),
        lambda rng: rng.uniform(-1e300, 1e300),
        lambda rng: rng.choice([math.inf, -math.inf, math.nan, -0.0, 5e-324]),
    ]
)
texts = st.sampled_from(
    [
        lambda rng: "".join(rng.choices("aä\0\U0001f600", k=rng.randrange(4))),
        lambda rng: rng.randbytes(rng.randrange(4)),
    ]
)
keys = st.one_of(
    st.text(max_size=3), st.integers(-3, 3), st.none(), st.tuples(st.integers(0, 2)), st.binary(max_size=2)
)


def _containers(children: st.SearchStrategy[Make]) -> st.SearchStrategy[Make]:
    some = st.lists(children, max_size=3)
    return st.one_of(
        some.map(lambda makes: lambda rng: [make(rng) for make in makes]),
        some.map(lambda makes: lambda rng: tuple(make(rng) for make in makes)),
        st.dictionaries(keys, children, max_size=3).map(
            lambda makes: lambda rng: {key: make(rng) for key, make in makes.items()}
        ),
        st.tuples(children, children).map(lambda makes: lambda rng: Point(*(make(rng) for make in makes))),
        children.map(lambda make: lambda rng: Single(make(rng))),
        st.just(lambda rng: Empty()),
    )


leaves = st.one_of(tensors(), arrays(), scalars(), numbers, texts)
sample_makers = st.recursive(leaves, _containers, max_leaves=8)
