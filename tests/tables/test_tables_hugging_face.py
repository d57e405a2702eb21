"""Batches of Hugging Face datasets are those of `datasets` and torch's DataLoader, bit for bit."""

from __future__ import annotations

import warnings
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import torch
from hypothesis import event, given, note
from hypothesis import strategies as st
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Subset

import fastload

NUMBERS = {
    "int8": st.integers(-(2**7), 2**7 - 1),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint8": st.integers(0, 2**8 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "uint64": st.integers(0, 2**64 - 1),
    "float16": st.floats(width=16),
    "float32": st.floats(width=32),
    "float64": st.floats(width=64),
}
KINDS = ["number", "list", "equal lists", "large list", "equal large lists", "fixed list"]


@st.composite
def columns(draw: Any, length: int) -> pa.ChunkedArray:
    """Draw a column in any chunks, some of which are slices of others."""
    if draw(st.integers(0, 7)) == 0:
        kind, values = pa.string(), [f"text {row}" for row in range(length)]
    elif draw(st.integers(0, 9)) == 0:
        kind, values = pa.bool_(), [row % 3 == 0 for row in range(length)]
    else:
        name = draw(st.sampled_from(sorted(NUMBERS)))
        number = pa.float16() if name == "float16" else pa.type_for_alias(name)
        element = NUMBERS[name].map(np.float16) if name == "float16" else NUMBERS[name]
        shape = draw(st.sampled_from(KINDS))
        size = draw(st.integers(0 if shape != "fixed list" else 1, 3))
        if shape == "number":
            kind, values = number, draw(st.lists(element, min_size=length, max_size=length))
        else:
            most = 3 if shape in ("list", "large list") else size
            least = 0 if shape in ("list", "large list") else size
            row = st.lists(element, min_size=least, max_size=most)
            values = draw(st.lists(row, min_size=length, max_size=length))
            kind = pa.list_(number, size) if shape == "fixed list" else pa.list_(number)
            kind = pa.large_list(number) if "large" in shape else kind
        if draw(st.integers(0, 4)) == 0:
            values[draw(st.integers(0, length - 1))] = None
    chunks, start = [], 0
    while start < length:
        stop = draw(st.integers(start, length))
        before, behind = draw(st.integers(0, 1)), draw(st.integers(0, 1))
        whole = pa.array(values[:before] + values[start:stop] + values[:behind], type=kind)
        chunks.append(whole.slice(before, stop - start))
        start = max(stop, start)
        if len(chunks) > 2:
            chunks.append(pa.array(values[start:], type=kind))
            break
    return pa.chunked_array(chunks, type=kind)


@st.composite
def tables(draw: Any) -> Any:
    """Draw a dataset: its columns, order, subset and format."""
    length = draw(st.integers(1, 7))
    names = ["a", "b", "c"][: draw(st.integers(1, 3))]
    dataset = datasets.Dataset(pa.table({name: draw(columns(length)) for name in names}))
    if draw(st.booleans()):
        rows = draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=9))
        dataset = dataset.select(rows)
    wanted = draw(st.one_of(st.none(), st.lists(st.sampled_from(names), min_size=1, unique=True)))
    form = draw(st.sampled_from(["python", "numpy", "torch"]))
    dataset.set_format(form, columns=wanted, output_all_columns=draw(st.booleans()))
    event(form)
    if draw(st.integers(0, 5)) == 0:
        return Subset(dataset, draw(st.lists(st.integers(0, len(dataset) - 1), min_size=1, max_size=9)))
    return dataset


def described(value: Any) -> Any:
    """Return what a batch is made of: types, shapes, and bits."""
    if isinstance(value, torch.Tensor):
        return "tensor", value.dtype, value.shape, value.is_contiguous(), value.numpy().tobytes()
    if isinstance(value, np.ndarray) and value.dtype != object:
        return "array", value.dtype, value.shape, value.tobytes()
    if isinstance(value, np.generic):
        return type(value), value.tobytes()
    if isinstance(value, dict):
        return type(value), [(key, described(part)) for key, part in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [described(part) for part in value]
    if isinstance(value, float):
        return float, np.float64(value).tobytes()
    return type(value), value


def as_they_are(samples: Any) -> Any:
    return samples


def outcomes(loader: Any) -> list[Any]:
    """Return each batch, or the type and first line of its error."""
    found: list[Any] = []
    batches = iter(loader)
    while True:
        try:
            found.append(described(next(batches)))
        except StopIteration:
            return found
        except Exception as error:
            found.append((type(error), str(error).splitlines()[-1]))


def both(dataset: Any, **settings: Any) -> tuple[list[Any], list[Any]]:
    note(f"{dataset} {getattr(dataset, '_data', None)} {getattr(dataset, 'format', None)}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy tells of floats that overflow, where `datasets` converts them too
        with_torch = outcomes(TorchDataLoader(dataset, **settings))
        return outcomes(fastload.DataLoader(dataset, **settings)), with_torch


@given(tables(), st.integers(1, 4), st.sampled_from([None, as_they_are]))
def test_batches_are_those_of_torchs_loader(dataset, batch_size, collate_fn):
    ours, theirs = both(dataset, batch_size=batch_size, collate_fn=collate_fn)
    assert ours == theirs, (ours, theirs)


@given(tables(), st.lists(st.integers(-9, 9), min_size=1, max_size=4))
def test_any_indices_give_the_same_batch_or_the_same_error(dataset, indices):
    ours, theirs = both(dataset, batch_sampler=[indices])
    assert ours == theirs, (ours, theirs)
