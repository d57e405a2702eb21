"""Errors: their class, what their message says, at which batch they are raised, and that iteration goes on."""

import pickle
import warnings
from typing import Any

import pytest
import torch
from contract_datasets import (
    FAILURES,
    CustomError,
    EndlessSampler,
    Exiting,
    Failing,
    FailingByIndex,
    FailingSampler,
    FailingStream,
    FailingStreamStart,
    FailingToIterate,
    Indices,
    Shards,
    Squares,
    init_that_fails,
)
from contract_harness import (
    INLINE,
    ONE,
    SUBJECT_IS_TORCH,
    THREE,
    TWO,
    TWO_PERSISTENT,
    TWO_PERSISTENT_THREADS,
    TWO_THREADS,
    Ended,
    Raised,
    assert_same_as_torch,
    consume,
    each_kind,
    each_kind_kept,
    epochs,
    everywhere,
    generator,
    in_workers,
    outcome,
    raised,
    run_case,
    several,
    subject_class,
    with_workers,
)
from torch.utils.data import Dataset


@pytest.mark.parametrize("failure", FAILURES)
def test_an_exception_of_the_dataset_keeps_its_class_and_text(failure):
    def case(load):
        return epochs(load(Failing(at=[4], failure=failure), batch_size=3))

    assert_same_as_torch(case)


class _FailingInTurn(Dataset):
    """Every fourth sample fails, each in another way."""

    def __len__(self):
        return 4 * len(FAILURES)

    def __getitem__(self, index):
        if index % 4 == 3:
            list(FAILURES.values())[index // 4]()
        return torch.tensor([index])


@several
def test_exceptions_of_the_dataset_of_every_class_in_turn(workers):
    assert_same_as_torch(lambda load: epochs(load(_FailingInTurn(), batch_size=2)), workers)


@several
@pytest.mark.parametrize(
    "at", [[0], [11], [5], [4, 5], [0, 3, 6, 9], range(12), [2, 3]], ids=lambda at: "-".join(map(str, at))
)
def test_an_exception_stands_in_the_place_of_its_batch_and_iteration_goes_on(at, workers):
    def case(load):
        return epochs(load(Failing(at=at), batch_size=3), 2)

    assert_same_as_torch(case, workers)


@each_kind_kept
@pytest.mark.parametrize("at", [[3, 5], [4, 5], [3, 4, 5], [1, 2, 7, 8, 9, 10, 11]], ids=str)
def test_of_several_failing_samples_of_a_batch_the_first_is_reported(at, workers):
    def case(load):
        return epochs(load(FailingByIndex(at=at), batch_size=6), 2)

    assert_same_as_torch(case, workers)


@several
def test_a_sample_that_cannot_be_read_is_reported_before_samples_that_cannot_be_collated(workers):
    # FailingByIndex makes ragged samples: none of its batches can be collated.
    def case(load):
        return epochs(load(FailingByIndex(at=[5, 11]), batch_size=6, shuffle=True, generator=generator()))

    assert_same_as_torch(case, workers)


@everywhere
def test_errors_without_batches(workers):
    def case(load):
        return epochs(load(Failing(at=[0, 4, 5, 11]), batch_size=None), 2)

    assert_same_as_torch(case, workers)


@several
def test_errors_with_a_shuffled_order(workers):
    def case(load):
        return epochs(load(Failing(at=[0, 4, 5, 11]), batch_size=2, shuffle=True, generator=generator()), 3)

    assert_same_as_torch(case, workers)


@several
def test_a_loop_that_an_error_ends_can_be_started_again(workers):
    def case(load):
        loader = load(Failing(at=[7], length=30), batch_size=2)
        seen: list[Any] = []
        for _ in range(3):
            try:
                for batch in loader:
                    seen.append(batch)
            except ValueError as error:
                seen.append(raised(error))
        return seen

    assert_same_as_torch(case, workers)


@several
def test_list_of_a_loader_raises(workers):
    def case(load):
        loader = load(Failing(at=[7]), batch_size=2)
        return [outcome(list, loader) for _ in range(2)]

    assert_same_as_torch(case, workers)


class _CollateFailing:
    """Raises for the batch that holds an index."""

    def __init__(self, at: int, failure: str = "custom") -> None:
        self.at = at
        self.failure = failure

    def __call__(self, batch: Any) -> Any:
        if self.at in (batch if isinstance(batch, list) else [batch]):
            FAILURES[self.failure]()
        return batch


@pytest.mark.parametrize("failure", FAILURES)
def test_an_exception_of_the_collate_function_keeps_its_class_and_text(failure):
    def case(load):
        return epochs(load(Indices(9), batch_size=2, collate_fn=_CollateFailing(4, failure)))

    assert_same_as_torch(case)


@each_kind
def test_exceptions_of_the_collate_function_of_every_class_in_turn(workers):
    def collate(batch):
        if batch[0] % 4 == 0:
            list(FAILURES.values())[batch[0] // 4]()
        return batch

    def case(load):
        return epochs(load(Indices(4 * len(FAILURES)), batch_size=2, collate_fn=collate))

    assert_same_as_torch(case, workers)


@several
@pytest.mark.parametrize("batch_size", [None, 2])
def test_an_exception_of_the_collate_function_stands_in_the_place_of_its_batch(batch_size, workers):
    def case(load):
        return epochs(load(Indices(9), batch_size=batch_size, collate_fn=_CollateFailing(5)), 2)

    assert_same_as_torch(case, workers)


class _FirstArgument(Exception):
    """Takes anything as its first argument, and makes its text of it."""

    def __init__(self, what: Any) -> None:
        super().__init__(f"<{what}>")


class _Unraisable(Exception):
    """Cannot be made at all a second time."""

    def __init__(self) -> None:
        super().__init__("made without arguments")


class _Pathological(Dataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        if index == 1:
            raise _FirstArgument("a text")
        if index == 2:
            raise _Unraisable
        return index


@several
def test_exceptions_whose_constructors_are_unusual(workers):
    def case(load):
        return epochs(load(_Pathological()))

    assert_same_as_torch(case, workers)


@each_kind
def test_an_exception_that_a_worker_raises_has_the_attributes_of_its_class_only(workers):
    def case(load):
        try:
            list(load(Failing(at=[1], failure="custom")))
        except CustomError as error:
            raised(error)
            return type(error), len(error.args), type(error.args[0]), type(error.__cause__), "Traceback" in str(error)
        return "nothing raised"

    assert_same_as_torch(case, workers)


@each_kind
def test_the_message_of_a_worker_holds_the_original_traceback(workers):
    def case(load):
        try:
            list(load(Failing(at=[1], failure="chained")))
        except RuntimeError as error:
            raised(error)
            text = str(error)
            wanted = ["Traceback (most recent call last)", "in __getitem__", "in _chained", "ValueError: a bad sample"]
            wanted += ["The above exception was the direct cause", "RuntimeError: in consequence", "DataLoader worker "]
            return [(part, part in text) for part in wanted]
        return "nothing raised"

    assert_same_as_torch(case, workers)


@each_kind
def test_a_key_error_of_a_worker_prints_its_lines(workers):
    def case(load):
        try:
            list(load(Failing(at=[1], failure="key_error")))
        except KeyError as error:
            raised(error)
            return type(error.args[0]).__name__, str(error).count("\n") > 2, "\\n" in str(error)
        return "nothing raised"

    assert_same_as_torch(case, workers)


def test_leaving_the_program_from_the_main_process():
    def case(load):
        iterator = iter(load(Exiting()))
        seen = [next(iterator), next(iterator)]
        try:
            next(iterator)
        except SystemExit as error:
            raised(error)
            seen.append(error.code)
        return seen, consume(iterator)

    assert_same_as_torch(case, INLINE)


# The sampler.


@several
@pytest.mark.parametrize("recovers", [False, True], ids=["generator", "recovering"])
@pytest.mark.parametrize("at", [[0], [5, 6], [9]], ids=str)
@pytest.mark.parametrize("batch_size", [1, 3, None])
def test_an_error_of_the_sampler_is_raised_in_its_place(batch_size, at, recovers, workers):
    # In its place is where it would be without workers: torch's own workers raise it too early, by what is read ahead.
    def case(load):
        sampler = FailingSampler(10, at, recovers)
        return consume(iter(load(Indices(10), sampler=sampler, batch_size=batch_size)), 20)

    assert_same_as_torch(case, workers if not SUBJECT_IS_TORCH else INLINE, reference=INLINE)


@with_workers(INLINE, TWO, TWO_PERSISTENT, TWO_THREADS, TWO_PERSISTENT_THREADS)
def test_after_an_error_of_the_sampler_the_next_epoch_is_whole(workers):
    def case(load):
        sampler = FailingSampler(10, [3], recovers=False)
        loader = load(Indices(10), sampler=sampler, batch_size=2)
        seen = [consume(iter(loader), 20)]
        sampler.at = set()
        return [*seen, consume(iter(loader), 20)]

    assert_same_as_torch(case, workers if not SUBJECT_IS_TORCH else INLINE, reference=INLINE)


@several
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # torch's half-made iterators
@pytest.mark.parametrize("batch_size", [2, None])
def test_an_error_when_the_sampler_is_asked_for_an_iterator(batch_size, workers):
    def case(load):
        loader = load(Indices(4), sampler=FailingToIterate(), batch_size=batch_size)
        # With workers a lazy batch sampler fails when torch reads ahead, inside iter(); both places are in reach.
        return outcome(lambda: next(iter(loader)))

    assert_same_as_torch(case, workers)


@several
def test_indices_that_the_dataset_does_not_have(workers):
    def case(load):
        return epochs(load([1, 2, 3], sampler=[0, 7, 2, -5, "a", None], batch_size=1))

    assert_same_as_torch(case, workers)


@several
def test_batches_that_are_no_sequences(workers):
    def case(load):
        return epochs(load(Squares(4), batch_sampler=[[0, 1], 2, None, [3]]))

    assert_same_as_torch(case, workers)


@several
def test_a_batch_sampler_that_is_read_to_its_error(workers):
    def batches():
        yield [0, 1]
        yield [2]
        raise CustomError("no more batches")

    def case(load):
        return consume(iter(load(Squares(4), batch_sampler=batches())), 10)

    assert_same_as_torch(case, workers if not SUBJECT_IS_TORCH else INLINE, reference=INLINE)


# The initialisation of workers.


@with_workers(ONE, TWO, TWO_THREADS)
def test_an_error_of_the_worker_init_function_is_raised_by_the_first_next(workers):
    # torch's later batches fail for a name that was never set; only the first error is worth keeping.
    def case(load):
        iterator = iter(load(Squares(6), batch_size=2, worker_init_fn=init_that_fails))
        return outcome(next, iterator)

    assert_same_as_torch(case, workers)


def test_the_worker_init_function_is_not_called_without_workers():
    def case(load):
        return epochs(load(Squares(6), worker_init_fn=init_that_fails))

    assert_same_as_torch(case, INLINE)


# Streams.


@with_workers(INLINE, TWO_PERSISTENT, THREE, TWO_PERSISTENT_THREADS)
@pytest.mark.parametrize("recovers", [False, True], ids=["generator", "recovering"])
@pytest.mark.parametrize("batch_size", [None, 1, 3])
def test_an_error_of_a_stream_stands_in_its_place(batch_size, recovers, workers):
    def case(load):
        return epochs(load(FailingStream(10, [4, 7], recovers), batch_size=batch_size), 2)

    assert_same_as_torch(case, workers)


@with_workers(INLINE, ONE, TWO_THREADS)
def test_a_stream_that_cannot_begin(workers):
    def case(load):
        return outcome(lambda: next(iter(load(FailingStreamStart(), batch_size=2))))

    assert_same_as_torch(case, workers)


@several
def test_an_error_of_the_collate_function_of_a_stream(workers):
    def case(load):
        def collate(batch):
            if any(int(sample[0]) == 6 for sample in batch):
                raise CustomError("not 6")
            return batch

        return epochs(load(Shards(20), batch_size=2, collate_fn=collate), 2)

    assert_same_as_torch(case, workers)


# Where ours is an error and torch hangs or loses data silently.


class _StopsAt(Dataset):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        if index == 3:
            raise StopIteration
        return index


own_only = pytest.mark.skipif(SUBJECT_IS_TORCH, reason="torch hangs or loses data")


@own_only
@pytest.mark.parametrize("workers", [INLINE, ONE, TWO, TWO_THREADS], ids=str)
@pytest.mark.parametrize("batch_size", [1, 2, None])
def test_stop_iteration_from_a_map_style_dataset_is_an_error_in_its_place(batch_size, workers):
    def case(load):
        return consume(iter(load(_StopsAt(), batch_size=batch_size)), 20)

    own = {"worker_method": "thread"} if workers.threads else {}
    outcomes = run_case(case, subject_class(), workers, own)
    place = 3 // (batch_size or 1)
    assert isinstance(outcomes[place], Raised), outcomes
    assert isinstance(outcomes[-1], Ended)
    assert len(outcomes) == 6 // (batch_size or 1) + 1


@own_only
@pytest.mark.parametrize("batch_size", [2, None])
def test_a_result_that_cannot_be_pickled_is_an_error_in_its_place(batch_size):
    def case(load):
        def collate(batch):
            index = batch[0] if isinstance(batch, list) else batch
            return (lambda: index) if index == 4 else batch

        return consume(iter(load(list(range(8)), batch_size=batch_size, collate_fn=collate)), 20)

    outcomes = run_case(case, subject_class(), TWO)
    place = 4 // (batch_size or 1)
    assert [at for at, seen in enumerate(outcomes) if isinstance(seen, Raised)] == [place]
    assert len(outcomes) == 8 // (batch_size or 1) + 1


@own_only
def test_an_exception_of_a_local_class_is_an_error_in_its_place():
    class LocalError(Exception):
        pass

    class Local(Dataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            if index == 2:
                raise LocalError("nobody can import me")
            return index

    outcomes = run_case(lambda load: consume(iter(load(Local())), 20), subject_class(), TWO)
    assert [isinstance(seen, Raised) for seen in outcomes] == [False, False, True, False, False]
    assert "nobody can import me" in outcomes[2].first_line + outcomes[2].last_line


# Arguments of iteration.


@in_workers
def test_a_timeout_that_is_not_reached_changes_nothing(workers):
    def case(load):
        return epochs(load(Squares(10), batch_size=3, timeout=50), 2)

    assert_same_as_torch(case, workers)


@in_workers
def test_warnings_that_are_errors_do_not_reach_a_worker_by_themselves(workers):
    class Warning_(Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                warnings.warn("now an error", UserWarning, stacklevel=1)

    def case(load):
        return epochs(load(Warning_()))

    assert_same_as_torch(case, workers)


@several
def test_an_endless_sampler_of_failing_samples(workers):
    def case(load):
        iterator = iter(load(Failing(at=range(5), length=5), sampler=EndlessSampler(5), batch_size=2))
        return [outcome(next, iterator) for _ in range(20)]

    assert_same_as_torch(case, workers)


def test_an_exception_of_ours_survives_pickling():
    # Errors cross process boundaries in training frameworks.
    error = raised(ValueError("a"))
    assert pickle.loads(pickle.dumps(error)) == error
