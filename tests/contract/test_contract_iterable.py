"""Iterable-style datasets: every worker has a copy of its own, and their batches come in turn."""

import itertools
from collections.abc import Callable
from typing import Any

import contract_datasets as data
import contract_ways as ways
import pytest
from contract_harness import as_in_torch, consume, epochs, outcome, random_states
from contract_samples import SAMPLES
from kit.datasets import Stream
from torch.utils.data import ChainDataset, IterableDataset

varied = ways.with_workers(
    ways.INLINE, ways.TWO_PERSISTENT, ways.THREE, ways.THREE_THREADS, ways.TWO_PERSISTENT_THREADS
)
"""Two and three workers, with their own number of shards."""


@as_in_torch(ways.with_workers(ways.INLINE, ways.TWO_PERSISTENT, ways.THREE, ways.TWO_PERSISTENT_THREADS))
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", [1, 3, 20])
def test_a_sharded_stream_comes_in_turn(load, batch_size, drop_last):
    return epochs(load(data.Shards(17), batch_size=batch_size, drop_last=drop_last), 2)


class _Counting(IterableDataset):
    """Tells how often this copy was asked for an iterator."""

    def __init__(self) -> None:
        self.iterations = 0

    def __iter__(self) -> Any:
        self.iterations += 1
        return iter([self.iterations] * 4)


STREAMS: dict[str, Callable[[], dict[str, Any]]] = {
    "without batches": lambda: {"dataset": data.Shards(7), "batch_size": None},
    "in batches": lambda: {"dataset": data.Shards(5), "batch_size": 2},
    "not sharded": lambda: {"dataset": data.Everything(range(7)), "batch_size": 2},
    "as in the documentation": lambda: {
        "dataset": data.Range(3, 17),
        "batch_size": 2,
        "worker_init_fn": data.divide_range,
    },
    # Without workers, and with persistent ones, nothing is left for the second epoch.
    "its own iterator": lambda: {"dataset": data.OneShot(7), "batch_size": 2},
    "made anew": lambda: {"dataset": _Counting(), "batch_size": 2},
    "chained": lambda: {"dataset": ChainDataset([data.Shards(4), data.Shards(3)]), "batch_size": 3},
}


@as_in_torch(ways.everywhere_alone)
@pytest.mark.parametrize("name", STREAMS)
def test_three_epochs_of_a_stream_and_the_generators_after_each(load, name):
    loader = load(**STREAMS[name]())
    return [[consume(iter(loader)), random_states()] for _ in range(3)]


@as_in_torch(varied)
@pytest.mark.parametrize(("batch_size", "drop_last"), [(2, False), (2, True), (None, False)])
@pytest.mark.parametrize("sizes", [(9, 2, 5), (0, 6, 3), (6, 0, 0), (0, 0, 0), (2, 30, 2), (3, 6, 9)], ids=str)
def test_uneven_and_empty_shards(load, sizes, batch_size, drop_last):
    return epochs(load(data.UnevenShards(*sizes), batch_size=batch_size, drop_last=drop_last), 2)


@as_in_torch(ways.several_alone)
@pytest.mark.parametrize("batch_size", [None, 3])
def test_an_endless_stream_can_be_left_and_begins_again(load, batch_size):
    loader = load(data.Endless(), batch_size=batch_size)
    return [list(itertools.islice(loader, taken)) for taken in (10, 1, 7)]


@as_in_torch(varied)
@pytest.mark.parametrize("told", [0, 3, 10, 100])
def test_the_told_length_of_a_stream_does_not_bound_it(load, told):
    loader = load(data.SizedShards(10, told), batch_size=2)
    return len(loader), epochs(loader, 2)


@as_in_torch(ways.with_workers(ways.INLINE, ways.TWO, ways.TWO_THREADS))
@pytest.mark.parametrize(
    "arguments",
    [{"batch_size": 3}, {"batch_size": None}, {"collate_fn": data.identity}],
    ids=["collated", "samples", "as they are"],
)
def test_samples_of_many_kinds_from_a_stream(load, arguments):
    names = ["tuple_of_two", "dict_plain", "nested_deeply", "named_tuple", "scalar_float", "text", "array_int16"]
    names += ["ragged_tensor", "scalar_none", "tensor_bfloat16", "dict_ordered", "mixed_int_float"]
    samples = [SAMPLES[name](index) for name in names for index in range(3)]
    return epochs(load(data.Everything(samples), **arguments))


@as_in_torch(ways.with_workers(ways.TWO, ways.TWO_PERSISTENT, ways.TWO_THREADS, ways.TWO_PERSISTENT_THREADS))
def test_order_in_a_stream_is_kept_when_one_worker_is_much_slower(load):
    def slow():
        """Worker 0 computes long for each value."""
        from torch.utils.data import get_worker_info

        worker = get_worker_info().id
        for value in range(6):
            yield worker, value, sum(range(300_000 if worker == 0 else 10))

    return epochs(load(Stream(slow), batch_size=1), 2)


@as_in_torch(ways.with_workers(ways.ONE, ways.TWO_PERSISTENT, ways.THREE, ways.TWO_PERSISTENT_THREADS))
@pytest.mark.parametrize("prefetch_factor", [1, 4])
def test_the_prefetch_factor_changes_nothing_for_a_stream(load, prefetch_factor):
    return epochs(load(data.UnevenShards(9, 2, 5), batch_size=2, prefetch_factor=prefetch_factor), 2)


@as_in_torch(
    ways.with_workers(
        ways.ONE, ways.TWO, ways.TWO_PERSISTENT, ways.THREE, ways.TWO_THREADS, ways.TWO_PERSISTENT_THREADS
    )
)
def test_without_order_the_same_batches_come(load):
    batches = consume(iter(load(data.UnevenShards(9, 2, 5), batch_size=2, in_order=False)))[:-1]
    return sorted((sorted(batch["worker"].tolist()), batch["value"].tolist()) for batch in batches)


@as_in_torch(ways.several_alone)
def test_a_stream_has_ended_when_it_has_ended(load):
    iterator = iter(load(data.Shards(5), batch_size=2))
    return [consume(iterator), consume(iterator)]


@as_in_torch(ways.several_alone)
def test_a_stream_whose_iterator_cannot_be_made(load):
    class NoIterator(IterableDataset):
        def __iter__(self) -> Any:
            return 5

    return outcome(lambda: next(iter(load(NoIterator()))))
