"""Rows in a buffer: the batch is default_collate's, exactly; the samples come back as they were, exactly."""

from __future__ import annotations

import itertools
import pickle
import random
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from drawn_samples import Point, Single, sample_makers
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.comparison import difference
from torch.utils import _pytree
from torch.utils.data import default_collate

from fastload.buffers.layout import ALIGNMENT, Layout, LayoutMismatch, learn
from fastload.buffers.rows import copy_rows, samples_in

# complex32 warns of being experimental, once, wherever it is first used.
pytestmark = [
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning"),
    # NumPy before 2, wherever torch makes a tensor of its scalars.
    pytest.mark.filterwarnings("ignore:In future, it will be an error for 'np.bool_' scalars:DeprecationWarning"),
]


seeds = st.integers(0, 2**32)


def same(found: Any, expected: Any) -> bool:
    """Whether two things are equal in types, dtypes, shapes and every bit; how they lie in memory does not matter."""
    return difference(*(_pytree.tree_map(laid_out, one) for one in (found, expected))) is None


def laid_out(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.contiguous()
    if isinstance(leaf, np.ndarray):
        return np.array(leaf, order="C")
    return (type(leaf), repr(leaf)) if isinstance(leaf, float | np.inexact) else leaf  # which NaN does not matter


def buffer_for(layout: Layout, num_rows: int) -> np.ndarray[Any, Any]:
    """Return a buffer full of garbage, aligned as slots are."""
    _, num_bytes = layout.offsets(num_rows)
    raw = np.full(num_bytes + ALIGNMENT, 0xA5, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + num_bytes]


def learnt(sample: Any) -> Layout:
    layout = learn(sample)
    assert isinstance(layout, Layout), layout
    return layout


def built(samples: list[Any]) -> Any:
    """Return the batch of the samples, written in one piece."""
    layout = learnt(samples[0])
    buffer = buffer_for(layout, len(samples))
    return layout.build(buffer, len(samples), layout.write(samples, buffer, len(samples), 0))


def cut(num_rows: int, rng: random.Random) -> list[tuple[int, int]]:
    """Cut the rows into chunks, in any order."""
    edges = sorted({0, num_rows, *(rng.randrange(num_rows + 1) for _ in range(rng.randrange(4)))})
    chunks = list(itertools.pairwise(edges))
    rng.shuffle(chunks)
    return chunks


def joined(chunks: dict[tuple[int, int], list[Any]]) -> list[list[Any]]:
    """Join the objects that stand beside the rows, in the order of the rows."""
    columns = zip(*(chunks[bounds] for bounds in sorted(chunks)), strict=True)
    return [[value for part in column for value in part] for column in columns]


@settings(max_examples=150)
@given(make=sample_makers, num_rows=st.integers(1, 7), seed=seeds, copied=st.booleans())
def test_rows_written_in_any_order_are_the_samples_still_and_build_what_default_collate_gives(
    make, num_rows, seed, copied
):
    rng = random.Random(seed)
    samples = [make(rng) for _ in range(num_rows)]
    layout = learnt(samples[0])
    buffer = buffer_for(layout, num_rows)
    objects = {}
    for start, stop in cut(num_rows, rng):
        some, count = samples[start:stop], stop - start
        if copied:  # they came in a buffer of their own
            rows = buffer_for(layout, count)
            beside = layout.write(some, rows, count, 0)
            copy_rows(layout, rows, count, buffer, num_rows, start)
        else:
            beside = layout.write(some, buffer, num_rows, start)
        assert same(samples_in(layout, buffer, num_rows, start, count, beside), some)
        objects[start, stop] = beside
    assert same(layout.build(buffer, num_rows, joined(objects)), default_collate(samples))


@given(make=sample_makers, seed=seeds)
def test_layouts_of_equal_samples_are_equal_and_survive_pickling(make, seed):
    rng = random.Random(seed)
    one, other = learnt(make(rng)), learnt(make(rng))
    assert one == other
    assert hash(one) == hash(other)
    again = pickle.loads(pickle.dumps(one, 5))
    assert again == one
    starts, end = again.offsets(5)
    assert (starts, end) == one.offsets(5)
    for leaf, start, after in zip(one.leaves, starts, [*starts, end][1:], strict=True):
        assert start % ALIGNMENT == 0
        assert after - start == -(-leaf.row_bytes * 5 // ALIGNMENT) * ALIGNMENT


ALL_DIFFERENT = [
    *(torch.zeros(2), torch.zeros(3), torch.zeros(2, 1), torch.zeros(2, dtype=torch.float64)),
    *(np.zeros(2, dtype=np.float32), np.float32(0), np.int64(1), np.int32(1), 0, 0.0, False, "", b""),
    *([torch.zeros(2)], (torch.zeros(2),), Single(torch.zeros(2)), Point(torch.zeros(2), 0), (torch.zeros(2), 0)),
    *({"a": torch.zeros(2)}, {"b": torch.zeros(2)}, {"a": torch.zeros(2), "b": 0}, {"b": 0, "a": torch.zeros(2)}),
    *([], (), {}),
]
# Samples and what does not fit them, though it has no layout or looks the same.
MISFITS = [
    (torch.zeros(3), torch.zeros(3, requires_grad=True)),
    (torch.zeros(3), torch.zeros(3).to_sparse()),
    (torch.zeros(3), torch.nn.Parameter(torch.zeros(3), requires_grad=False)),
    (np.zeros(3), [0.0, 0.0, 0.0]),
    (1, 2**63),
    (1, -(2**63) - 1),
    (1.0, np.float64(1.0)),
    ("a", np.str_("a")),
    ({"a": 1}, OrderedDict(a=1)),
    (1, None),
]


@pytest.mark.parametrize("sample", [*ALL_DIFFERENT, *(first for first, _ in MISFITS)], ids=repr)
def test_only_samples_of_the_layout_fit(sample):
    layout = learnt(sample)
    buffer = buffer_for(layout, 3)
    layout.write([sample, sample], buffer, 3, 1)
    assert layout == learnt(sample)
    assert layout != sample
    others = [other for first, other in MISFITS if first is sample]
    if not others:
        others = [other for other in ALL_DIFFERENT if other is not sample]
        assert all(layout != learnt(other) for other in others)
    for other in others:
        for column in ([other], [sample, other], [other, sample], [sample, sample, other]):
            with pytest.raises(LayoutMismatch):
                layout.write(column, buffer, 3, 0)


# What torch makes of samples without a layout is what comes out: tests/contract has every kind.
@pytest.mark.parametrize(
    ("sample", "said"),
    [
        ([1, {"a": (2, None)}], "NoneType"),
        (np.array([None]), "dtype object"),
        (np.zeros(4)[::-1], "does not take"),
        (Point(1, torch.zeros(2, requires_grad=True)), "grad"),
    ],
    ids=["none", "objects", "backwards", "gradient"],
)
def test_what_has_no_layout_has_a_reason(sample, said):
    reason = learn(sample)
    assert isinstance(reason, str)
    assert said in reason


class Image(torch.Tensor):
    """A subclass as torchvision's: operations on it give plain tensors."""

    __torch_function__ = torch._C._disabled_torch_function_impl


def test_tensors_of_a_subclass_that_stack_to_plain_ones_collate_as_torch_does():
    image = torch.arange(12, dtype=torch.uint8).reshape(3, 2, 2).as_subclass(Image)
    samples = [{"image": image, "label": 1}] * 3
    assert same(built(samples), default_collate(samples))
    assert type(built(samples)["image"]) is torch.Tensor
    layout = learnt(samples[0])
    buffer = buffer_for(layout, 3)
    layout.write(samples, buffer, 3, 0)
    for back in samples_in(layout, buffer, 3, 0, 3, []):
        assert type(back["image"]) is Image
        assert torch.equal(back["image"], image)
    with pytest.raises(LayoutMismatch):
        layout.write([{"image": image.as_subclass(torch.Tensor), "label": 1}], buffer, 3, 0)
