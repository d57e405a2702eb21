"""Any object as one run of bytes, its tensors and arrays outside of the pickle."""

from __future__ import annotations

import gc
import multiprocessing
import pickle
import random
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from drawn_samples import Make, arrays, sample_makers, tensors
from hypothesis import given
from hypothesis import strategies as st
from kit.comparison import difference

from fastload.buffers import packing
from fastload.buffers.layout import ALIGNMENT
from fastload.buffers.packing import join, pack, unpack

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")


class Image(torch.Tensor):
    """A subclass as torchvision's."""


def aligned(packed: Any) -> np.ndarray[Any, Any]:
    """Copy bytes to an aligned place, as slots are."""
    raw = np.empty(len(packed) + ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    raw[start : start + len(packed)] = packed
    return raw[start : start + len(packed)]


def memory_of(obj: Any, **options: Any) -> np.ndarray[Any, Any]:
    """Return the packed object in aligned memory."""
    pieces, length = pack(obj, **options)
    packed = join(pieces)
    assert len(packed) == length
    return aligned(packed)


def through(obj: Any, **options: Any) -> Any:
    return unpack(memory_of(obj, **options))


def lies_in(tensor: torch.Tensor, memory: np.ndarray[Any, Any]) -> bool:
    storage, start = tensor.untyped_storage(), memory.ctypes.data
    return start <= storage.data_ptr() and storage.data_ptr() + storage.nbytes() <= start + memory.nbytes


@dataclass
class Sample:
    image: torch.Tensor
    name: str


def made(makers: st.SearchStrategy[Make]) -> st.SearchStrategy[Any]:
    return st.builds(lambda make, seed: make(random.Random(seed)), makers, st.integers(0, 99))


things = made(st.one_of(tensors(), arrays()))
values = st.recursive(
    st.one_of(
        made(sample_makers),
        st.sampled_from([None, np.array(["a", "bc"]), np.arange(3, dtype=">f4"), np.array([None, 1], dtype=object)]),
        st.sets(st.integers(), max_size=3),
        st.builds(Sample, made(tensors()), st.text(max_size=2)),
    ),
    lambda children: st.dictionaries(st.text(max_size=3), children, max_size=3).map(OrderedDict),
    max_leaves=4,
)


@given(obj=values, for_all=st.booleans())
def test_any_object_comes_back(obj, for_all):
    assert difference(through(obj, for_all=for_all), obj) is None


@pytest.mark.parametrize("protocol", [4, 5])  # Python's default up to 3.13, and later
def test_whether_a_read_only_array_can_be_written_afterwards_depends_on_the_default_protocol(protocol, monkeypatch):
    monkeypatch.setattr(packing, "_BY_VALUE", protocol < 5)
    array = np.arange(3)
    array.flags.writeable = False
    found, expected = through(array), pickle.loads(pickle.dumps(array, protocol))
    assert difference(found, expected) is None
    assert found.flags.writeable == expected.flags.writeable


@given(st.lists(things, max_size=5))
def test_all_storages_lie_aligned_in_the_memory_and_can_be_written(things):
    memory = memory_of(things)
    for thing in unpack(memory):
        if isinstance(thing, np.ndarray):
            assert thing.flags.writeable
            assert np.shares_memory(thing, memory) == (thing.size > 0 and not thing.dtype.hasobject)
        elif thing.numel():
            assert lies_in(thing, memory)
            assert thing.untyped_storage().data_ptr() % ALIGNMENT == 0
            thing.untyped_storage().fill_(0)


def test_what_was_packed_goes_as_soon_as_its_bytes_are_written():
    array = np.arange(1000)
    tensor = torch.arange(1000)
    watches = weakref.ref(array), weakref.ref(tensor)
    gc.disable()
    try:
        pieces, _ = pack([tensor, array, tensor[::3]])
        del array, tensor, pieces
        assert all(watch() is None for watch in watches)
    finally:
        gc.enable()


def table_of(x: torch.Tensor) -> torch.Tensor:
    """Return a column-major table, whose rows are gathered."""
    return x.view(8, -1).t()


@pytest.mark.parametrize(
    "views",
    [
        lambda x: (x, x),
        lambda x: (x[:600_000], x[3:]),
        lambda x: (x.view(2, -1).T, x.view(-1, 2)),
        lambda x: (x, x.view(torch.int32)),
        lambda x: (x.untyped_storage(), x),
        lambda x: (x, x[5:6]),
        lambda x: (table_of(x), table_of(x)[5]),
    ],
)
def test_tensors_that_share_a_storage_share_it_still(views):
    first, second = through(views(torch.arange(800_000)))
    storage = first if isinstance(first, torch.UntypedStorage) else first.untyped_storage()
    assert storage.data_ptr() == second.untyped_storage().data_ptr()


SCATTERED = {
    "overlapping windows": lambda: torch.arange(800_000).view(8, -1).unfold(1, 20, 2)[:, 50:60],
    "expanded": lambda: torch.arange(800_000).view(8, -1).t()[5].expand(10_000, 8),
    "lazy conjugate": lambda: torch.zeros(8, 100_000, dtype=torch.complex64).t()[5].conj(),
    "lazy negative": lambda: torch.zeros(8, 100_000, dtype=torch.complex64).t()[5].conj().imag,
    "of a subclass": lambda: torch.arange(800_000).view(8, -1).t()[5].as_subclass(Image),
    "compact, of a subclass": lambda: torch.arange(800_000)[5:10].as_subclass(Image),
}


@pytest.mark.parametrize("make", SCATTERED.values(), ids=SCATTERED)
@pytest.mark.parametrize("for_all", [False, True])
def test_a_view_whose_elements_lie_far_apart_takes_only_these_along(make, for_all):
    view = make()
    pieces, length = pack(view, for_all=for_all)
    assert length < 20_000
    again = unpack(aligned(join(pieces)))
    assert type(again) is type(view)
    assert torch.equal(again, view)


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.lists(st.sampled_from([0, 1, 3, 500, 1501, 20_000]), min_size=3, max_size=3),
    st.sampled_from([torch.bool, torch.uint8, torch.bfloat16, torch.float32, torch.complex128]),
)
def test_a_view_of_any_strides_comes_back_in_at_most_twice_its_bytes_and_a_page(shape, strides, dtype):
    storage = (torch.arange(250_000) % 2).to(dtype)
    view = storage.as_strided(shape, strides[: len(shape)], 100)
    pieces, length = pack(view)
    again = unpack(aligned(join(pieces)))
    assert (again.dtype, again.shape) == (dtype, view.shape)
    assert torch.equal(again, view)
    assert length < 2 * view.numel() * view.itemsize + 4096 + 1000


def test_a_large_tensor_is_not_copied_when_it_is_packed():
    tensor = torch.zeros(1_000_000)
    pieces, length = pack([tensor])
    assert length > 4_000_000
    tensor.fill_(1)
    assert unpack(join(pieces))[0].equal(tensor)


def test_a_shared_tensor_is_copied():
    shared = torch.arange(5).share_memory_()
    again = through(shared)
    shared.zero_()
    assert again.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "make",
    [
        lambda: [{"deep": (torch.arange(5).share_memory_(),)}],
        lambda: torch.arange(5).share_memory_().untyped_storage(),
        lambda: torch.arange(5.0).share_memory_().requires_grad_(),
        multiprocessing.Lock,
        multiprocessing.Event,
        multiprocessing.SimpleQueue,
        lambda: multiprocessing.Pipe()[0],
    ],
)
def test_what_only_one_process_can_take_is_refused_for_all(make):
    with pytest.raises((pickle.PicklingError, RuntimeError)):
        pack(make(), for_all=True)


def test_two_things_that_were_freed_and_made_anew_while_packing_are_not_mixed_up():
    class Making:
        """Gives another temporary tensor each time, perhaps at the same address."""

        def __init__(self, value: int) -> None:
            self.value = value

        def __reduce__(self) -> Any:
            return list, ([torch.full((50,), self.value)],)

    again = through([Making(value) for value in range(20)])
    assert [tensor[0].unique().tolist() for tensor in again] == [[value] for value in range(20)]
