"""Iterable-style datasets: every worker has a copy of its own, and their batches come in turn."""

import itertools
from typing import Any

import pytest
from contract_datasets import (
    Endless,
    Everything,
    OneShot,
    Range,
    Shards,
    SizedShards,
    UnevenShards,
    divide_range,
    identity,
)
from contract_harness import (
    INLINE,
    ONE,
    THREE,
    THREE_THREADS,
    TWO,
    TWO_PERSISTENT,
    TWO_PERSISTENT_THREADS,
    TWO_THREADS,
    assert_same_as_torch,
    consume,
    epochs,
    everywhere,
    in_workers,
    outcome,
    random_states,
    several,
    with_workers,
)
from contract_samples import SAMPLES
from torch.utils.data import IterableDataset

varied = with_workers(INLINE, TWO_PERSISTENT, THREE, THREE_THREADS, TWO_PERSISTENT_THREADS)
"""Two and three workers, with their own number of shards."""


@with_workers(INLINE, TWO_PERSISTENT, THREE, TWO_PERSISTENT_THREADS)
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", [1, 3, 20])
def test_a_sharded_stream_comes_in_turn(batch_size, drop_last, workers):
    def case(load):
        return epochs(load(Shards(17), batch_size=batch_size, drop_last=drop_last), 2)

    assert_same_as_torch(case, workers)


@everywhere
def test_a_stream_without_batches(workers):
    def case(load):
        return epochs(load(Shards(7), batch_size=None), 2)

    assert_same_as_torch(case, workers)


@varied
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("sizes", [(9, 2, 5), (0, 6, 3), (6, 0, 0), (0, 0, 0), (2, 30, 2), (3, 6, 9)], ids=str)
def test_uneven_and_empty_shards(sizes, drop_last, workers):
    def case(load):
        return epochs(load(UnevenShards(*sizes), batch_size=2, drop_last=drop_last), 2)

    assert_same_as_torch(case, workers)


@varied
@pytest.mark.parametrize("sizes", [(9, 2, 5), (0, 6, 3), (0, 0, 0)], ids=str)
def test_uneven_shards_without_batches(sizes, workers):
    def case(load):
        return epochs(load(UnevenShards(*sizes), batch_size=None), 2)

    assert_same_as_torch(case, workers)


@varied
def test_a_stream_that_is_not_sharded_comes_from_every_worker(workers):
    def case(load):
        return epochs(load(Everything(range(7)), batch_size=2), 2)

    assert_same_as_torch(case, workers)


@several
@pytest.mark.parametrize("batch_size", [None, 3])
def test_an_endless_stream_can_be_left_and_begins_again(batch_size, workers):
    def case(load):
        loader = load(Endless(), batch_size=batch_size)
        return [list(itertools.islice(loader, taken)) for taken in (10, 1, 7)]

    assert_same_as_torch(case, workers)


@everywhere
def test_a_range_divided_by_the_init_function_as_in_the_documentation(workers):
    if workers.threads:
        pytest.skip("threads share the dataset that the function changes")

    def case(load):
        return epochs(load(Range(3, 17), batch_size=2, worker_init_fn=divide_range), 2)

    assert_same_as_torch(case, workers)


@with_workers(INLINE, ONE, TWO, TWO_PERSISTENT)
def test_a_stream_that_is_its_own_iterator(workers):
    # Without workers, and with persistent ones, nothing is left for the second epoch.
    def case(load):
        return epochs(load(OneShot(7), batch_size=2), 3)

    assert_same_as_torch(case, workers)


@varied
@pytest.mark.parametrize("told", [0, 3, 10, 100])
def test_the_told_length_of_a_stream_does_not_bound_it(told, workers):
    def case(load):
        loader = load(SizedShards(10, told), batch_size=2)
        return len(loader), epochs(loader, 2)

    assert_same_as_torch(case, workers)


@with_workers(INLINE, TWO, TWO_THREADS)
@pytest.mark.parametrize(
    "arguments",
    [{"batch_size": 3}, {"batch_size": None}, {"collate_fn": identity}],
    ids=["collated", "samples", "as they are"],
)
def test_samples_of_many_kinds_from_a_stream(arguments, workers):
    names = ["tuple_of_two", "dict_plain", "nested_deeply", "named_tuple", "scalar_float", "text", "array_int16"]
    names += ["ragged_tensor", "scalar_none", "tensor_bfloat16", "dict_ordered", "mixed_int_float"]

    def case(load):
        samples = [SAMPLES[name](index) for name in names for index in range(3)]
        return epochs(load(Everything(samples), **arguments))

    assert_same_as_torch(case, workers)


@with_workers(TWO, TWO_PERSISTENT, TWO_THREADS, TWO_PERSISTENT_THREADS)
def test_order_in_a_stream_is_kept_when_one_worker_is_much_slower(workers):
    class Slow(IterableDataset):
        """Worker 0 computes long for each value."""

        def __iter__(self):
            from torch.utils.data import get_worker_info

            worker = get_worker_info().id
            for value in range(6):
                yield worker, value, sum(range(300_000 if worker == 0 else 10))

    def case(load):
        return epochs(load(Slow(), batch_size=1), 2)

    assert_same_as_torch(case, workers)


@with_workers(ONE, TWO_PERSISTENT, THREE, TWO_PERSISTENT_THREADS)
@pytest.mark.parametrize("prefetch_factor", [1, 4])
def test_the_prefetch_factor_changes_nothing_for_a_stream(prefetch_factor, workers):
    def case(load):
        return epochs(load(UnevenShards(9, 2, 5), batch_size=2, prefetch_factor=prefetch_factor), 2)

    assert_same_as_torch(case, workers)


@in_workers
def test_without_order_the_same_batches_come(workers):
    def case(load):
        batches = consume(iter(load(UnevenShards(9, 2, 5), batch_size=2, in_order=False)))[:-1]
        return sorted((sorted(batch["worker"].tolist()), batch["value"].tolist()) for batch in batches)

    assert_same_as_torch(case, workers)


@several
def test_the_generators_after_an_epoch_of_a_stream(workers):
    def case(load):
        loader = load(Shards(5), batch_size=2)
        return [[consume(iter(loader)), random_states()] for _ in range(2)]

    assert_same_as_torch(case, workers)


@several
def test_a_stream_has_ended_when_it_has_ended(workers):
    def case(load):
        iterator = iter(load(Shards(5), batch_size=2))
        return [consume(iterator), consume(iterator)]

    assert_same_as_torch(case, workers)


@several
def test_a_stream_whose_iterator_cannot_be_made(workers):
    class NoIterator(IterableDataset):
        def __iter__(self) -> Any:
            return 5

    def case(load):
        return outcome(lambda: next(iter(load(NoIterator()))))

    assert_same_as_torch(case, workers)


@with_workers(INLINE, TWO, TWO_PERSISTENT)
def test_the_iterator_of_a_stream_is_made_anew_in_every_epoch(workers):
    class Counting(IterableDataset):
        """Tells how often this copy was asked for an iterator."""

        def __init__(self):
            self.iterations = 0

        def __iter__(self):
            self.iterations += 1
            return iter([self.iterations] * 4)

    def case(load):
        dataset = Counting()
        return epochs(load(dataset, batch_size=2), 3), dataset.iterations

    assert_same_as_torch(case, workers)
