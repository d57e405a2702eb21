"""Errors: their class, what their message says, at which batch they are raised, and that iteration goes on."""

import warnings
from typing import Any

import contract_datasets as data
import contract_ways as ways
import pytest
import torch
from contract_harness import as_in_torch, consume, epochs, generator, outcome, raised
from kit.datasets import Made


def _failing_in_turn(index):
    """Every fourth sample fails, each in another way."""
    if index % 4 == 3:
        list(data.FAILURES.values())[index // 4]()
    return torch.tensor([index])


@as_in_torch(ways.several)
def test_exceptions_of_the_dataset_of_every_class_in_turn(load):
    return epochs(load(Made(4 * len(data.FAILURES), _failing_in_turn), batch_size=2))


@as_in_torch(ways.several)
@pytest.mark.parametrize(
    "at", [[0], [11], [5], [4, 5], [0, 3, 6, 9], range(12), [2, 3]], ids=lambda at: "-".join(map(str, at))
)
def test_an_exception_stands_in_the_place_of_its_batch_and_iteration_goes_on(load, at):
    return epochs(load(data.Failing(at=at), batch_size=3), 2)


@as_in_torch(ways.each_kind_kept)
@pytest.mark.parametrize("at", [[3, 5], [4, 5], [3, 4, 5], [1, 2, 7, 8, 9, 10, 11]], ids=str)
def test_of_several_failing_samples_of_a_batch_the_first_is_reported(load, at):
    return epochs(load(data.FailingByIndex(at=at), batch_size=6), 2)


@as_in_torch(ways.several)
def test_a_sample_that_cannot_be_read_is_reported_before_samples_that_cannot_be_collated(load):
    # FailingByIndex makes ragged samples: none of its batches can be collated.

    return epochs(load(data.FailingByIndex(at=[5, 11]), batch_size=6, shuffle=True, generator=generator()))


@as_in_torch(ways.everywhere)
def test_errors_without_batches(load):
    return epochs(load(data.Failing(at=[0, 4, 5, 11]), batch_size=None), 2)


@as_in_torch(ways.several)
def test_a_loop_that_an_error_ends_can_be_started_again(load):
    loader = load(data.Failing(at=[7], length=30), batch_size=2)
    seen: list[Any] = []
    for _ in range(3):
        try:
            for batch in loader:
                seen.append(batch)
        except ValueError as error:
            seen.append(raised(error))
    return seen


class _CollateFailing:
    """Raises for the batch that holds an index."""

    def __init__(self, at: int) -> None:
        self.at = at

    def __call__(self, batch: Any) -> Any:
        if self.at in (batch if isinstance(batch, list) else [batch]):
            data.FAILURES["custom"]()
        return batch


@as_in_torch(ways.each_kind)
def test_exceptions_of_the_collate_function_of_every_class_in_turn(load):
    def collate(batch):
        if batch[0] % 4 == 0:
            list(data.FAILURES.values())[batch[0] // 4]()
        return batch

    return epochs(load(data.Indices(4 * len(data.FAILURES)), batch_size=2, collate_fn=collate))


@as_in_torch(ways.several)
@pytest.mark.parametrize("batch_size", [None, 2])
def test_an_exception_of_the_collate_function_stands_in_the_place_of_its_batch(load, batch_size):
    return epochs(load(data.Indices(9), batch_size=batch_size, collate_fn=_CollateFailing(5)), 2)


@as_in_torch(ways.each_kind)
def test_an_exception_that_a_worker_raises_has_the_attributes_of_its_class_and_the_traceback_as_its_text(load):
    seen = []
    for failure in ("custom", "chained", "key_error"):
        try:
            list(load(data.Failing(at=[1], failure=failure)))
        except Exception as error:
            raised(error)
            text = str(error)
            wanted = ["Traceback (most recent call last)", "in __getitem__", "in _chained", "ValueError: a bad sample"]
            wanted += ["The above exception was the direct cause", "RuntimeError: in consequence", "\\n"]
            seen += [type(error), len(error.args), type(error.args[0]), type(error.__cause__), text.count("\n") > 2]
            seen += [(part, part in text) for part in [*wanted, "DataLoader worker "]]
    return seen


@as_in_torch
def test_leaving_the_program_from_the_main_process(load):
    iterator = iter(load(data.Exiting()))
    seen = [next(iterator), next(iterator)]
    try:
        next(iterator)
    except SystemExit as error:
        raised(error)
        seen.append(error.code)
    return seen, consume(iterator)


# The sampler.


@as_in_torch(ways.several, reference=ways.INLINE)
@pytest.mark.parametrize("recovers", [False, True], ids=["generator", "recovering"])
@pytest.mark.parametrize("at", [[0], [5, 6], [9]], ids=str)
@pytest.mark.parametrize("batch_size", [1, 3, None])
def test_an_error_of_the_sampler_is_raised_in_its_place(load, batch_size, at, recovers):
    # In its place is where it would be without workers: torch's own workers raise it too early, by what is read ahead.

    sampler = data.FailingSampler(10, at, recovers)
    return consume(iter(load(data.Indices(10), sampler=sampler, batch_size=batch_size)), 20)


@as_in_torch(
    ways.with_workers(ways.INLINE, ways.TWO, ways.TWO_PERSISTENT, ways.TWO_THREADS, ways.TWO_PERSISTENT_THREADS),
    reference=ways.INLINE,
)
def test_after_an_error_of_the_sampler_the_next_epoch_is_whole(load):
    sampler = data.FailingSampler(10, [3], recovers=False)
    loader = load(data.Indices(10), sampler=sampler, batch_size=2)
    seen = [consume(iter(loader), 20)]
    sampler.at = set()
    return [*seen, consume(iter(loader), 20)]


@as_in_torch(ways.several)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # torch's half-made iterators
@pytest.mark.parametrize("batch_size", [2, None])
def test_an_error_when_the_sampler_is_asked_for_an_iterator(load, batch_size):
    loader = load(data.Indices(4), sampler=data.FailingToIterate(), batch_size=batch_size)
    # With workers a lazy batch sampler fails when torch reads ahead, inside iter(); both places are in reach.
    return outcome(lambda: next(iter(loader)))


@as_in_torch(ways.several)
def test_indices_that_the_dataset_does_not_have(load):
    return epochs(load([1, 2, 3], sampler=[0, 7, 2, -5, "a", None], batch_size=1))


@as_in_torch(ways.several)
def test_batches_that_are_no_sequences(load):
    return epochs(load(data.Squares(4), batch_sampler=[[0, 1], 2, None, [3]]))


@as_in_torch(ways.several, reference=ways.INLINE)
def test_a_batch_sampler_that_is_read_to_its_error(load):
    def batches():
        yield [0, 1]
        yield [2]
        raise data.CustomError("no more batches")

    return consume(iter(load(data.Squares(4), batch_sampler=batches())), 10)


# The initialisation of workers.


@as_in_torch(ways.with_workers(ways.INLINE, ways.ONE, ways.TWO, ways.TWO_THREADS))
def test_an_error_of_the_worker_init_function_is_raised_by_the_first_next_and_there_is_none_without_workers(load):
    # torch's later batches fail for a name that was never set; only the first error is worth keeping.

    iterator = iter(load(data.Squares(6), batch_size=2, worker_init_fn=data.init_that_fails))
    return outcome(next, iterator)


# Streams.


@as_in_torch(ways.with_workers(ways.INLINE, ways.TWO_PERSISTENT, ways.THREE, ways.TWO_PERSISTENT_THREADS))
@pytest.mark.parametrize("recovers", [False, True], ids=["generator", "recovering"])
@pytest.mark.parametrize("batch_size", [None, 1, 3])
def test_an_error_of_a_stream_stands_in_its_place(load, batch_size, recovers):
    return epochs(load(data.FailingStream(10, [4, 7], recovers), batch_size=batch_size), 2)


@as_in_torch(ways.with_workers(ways.INLINE, ways.ONE, ways.TWO_THREADS))
def test_a_stream_that_cannot_begin(load):
    return outcome(lambda: next(iter(load(data.FailingStreamStart(), batch_size=2))))


@as_in_torch(ways.several_alone)
def test_an_error_of_the_collate_function_of_a_stream(load):
    def collate(batch):
        if any(int(sample[0]) == 6 for sample in batch):
            raise data.CustomError("not 6")
        return batch

    return epochs(load(data.Shards(20), batch_size=2, collate_fn=collate), 2)


# Arguments of iteration.


@as_in_torch(ways.in_workers)
def test_a_timeout_that_is_not_reached_changes_nothing(load):
    return epochs(load(data.Squares(10), batch_size=3, timeout=50), 2)


@as_in_torch(ways.in_workers)
def test_warnings_that_are_errors_do_not_reach_a_worker_by_themselves(load):
    def warning(index):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.warn("now an error", UserWarning, stacklevel=1)

    return epochs(load(Made(2, warning)))


@as_in_torch(ways.several)
def test_an_endless_sampler_of_failing_samples(load):
    iterator = iter(load(data.Failing(at=range(5), length=5), sampler=data.EndlessSampler(5), batch_size=2))
    return [outcome(next, iterator) for _ in range(20)]
