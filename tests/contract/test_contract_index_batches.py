"""Batch samplers may give anything that can be iterated over; datasets with ``__getitems__`` take anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import contract_ways as ways
import pytest
import torch
from contract_datasets import Squares
from contract_harness import as_in_torch, assert_same_as_torch, consume, epochs
from kit.datasets import Made, Sized
from torch.utils.data import Dataset

# Made for each loader: torch's workers move tensors into shared memory for as long as they live.
INDEX_BATCHES: dict[str, Callable[[], Any]] = {
    "tuples": lambda: [(0, 1), (2, 3)],
    "sets": lambda: [{0, 1}, {2, 3}],
    "keys": lambda: [{0: "a", 1: "b"}, {2: "c"}],
    "ranges": lambda: [range(3), range(3, 5)],
    "tensors": lambda: [torch.tensor([0, 1]), torch.tensor([2])],
    "repeated": lambda: [[0, 0, 1], [1, 1]],
}
INLINE_ONLY = {
    "generators": lambda: ((index for index in pair) for pair in ((0, 1), (2, 3))),
    "maps": lambda: (map(int, pair) for pair in ("01", "23")),
}


@as_in_torch(ways.each_kind)
@pytest.mark.parametrize("collate_fn", [None, list], ids=["default collate", "own collate"])
@pytest.mark.parametrize("name", INDEX_BATCHES)
def test_batches_of_indices_of_many_kinds(load, name, collate_fn):
    return epochs(load(Squares(6), batch_sampler=INDEX_BATCHES[name](), collate_fn=collate_fn))


@as_in_torch
@pytest.mark.parametrize("name", INLINE_ONLY)
def test_batches_of_indices_that_can_be_read_once(load, name):
    return epochs(load(Squares(6), batch_sampler=INLINE_ONLY[name]()))


class _TakesAnything(Sized):
    def __getitems__(self, asked: Any) -> list[Any]:
        if isinstance(asked, slice):
            return [torch.tensor(index) for index in range(10)[asked]]
        return [torch.tensor(index) for index in (range(asked) if isinstance(asked, int) else sorted(asked))]


@as_in_torch(ways.each_kind)
@pytest.mark.parametrize(
    "asked", [[slice(0, 5), slice(5, 7)], [3, 2], [{1, 2}, {3}]], ids=["slices", "numbers", "sets"]
)
def test_a_dataset_that_loads_batches_is_given_what_the_batch_sampler_gave(load, asked):
    return epochs(load(_TakesAnything(10), batch_sampler=asked))


class _OneList:
    """Uses one list for all its batches."""

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        for index in range(12):
            batch.append(index)
            if len(batch) == 3:
                yield batch
                batch.clear()

    def __len__(self) -> int:
        return 4


@as_in_torch(ways.in_workers, reference=ways.INLINE)
@pytest.mark.parametrize("collate_fn", [None, list], ids=["default collate", "own collate"])
def test_a_batch_sampler_that_uses_its_list_again_gives_what_it_gives_without_workers(load, collate_fn):
    return epochs(load(Squares(12), batch_sampler=_OneList(), collate_fn=collate_fn))


def _with_a_local_class() -> Dataset:
    class Local(torch.Tensor):
        __torch_function__ = torch._C._disabled_torch_function_impl

    def samples(index: int) -> Any:
        return torch.Tensor._make_subclass(Local, torch.full((3,), float(index)))

    return Made(8, samples)


@ways.each_kind
@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("chunk_size", [None, "batch"])
def test_tensors_of_a_class_that_is_defined_in_a_function(chunk_size, batch_size, workers):
    def case(load):
        return epochs(load(_with_a_local_class(), batch_size=batch_size))

    assert_same_as_torch(case, workers, chunk_size=chunk_size)


def _parameters(index: int) -> Any:
    return torch.nn.Parameter(torch.full((2,), float(index)))


@as_in_torch(ways.with_workers(ways.Workers(count=1), ways.Workers(count=2, persistent=True)))
def test_parameters_are_refused_from_the_first_batch_to_the_last(load):
    return consume(iter(load(Made(40, _parameters), batch_size=4)))
