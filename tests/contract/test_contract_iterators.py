"""Several iterators, iterators left early, loops in threads, delivery without order, and arguments changed later."""

import gc
import itertools
import threading
from typing import Any

import pytest
import torch
from contract_datasets import Images, Indices, Squares, identity, note_worker_in
from contract_harness import (
    INLINE,
    THREE,
    TWO,
    TWO_PERSISTENT,
    TWO_PERSISTENT_THREADS,
    TWO_THREADS,
    Raised,
    assert_same_as_torch,
    consume,
    each_kind,
    epochs,
    generator,
    in_workers,
    outcome,
    recorded,
    several,
    with_workers,
)
from contract_samples import SamplesOfKind
from torch.utils.data import Dataset

not_persistent = with_workers(INLINE, TWO, THREE, TWO_THREADS)


@not_persistent
def test_several_iterators_of_one_loader_are_independent(workers):
    def case(load):
        loader = load(Squares(10), batch_size=2, shuffle=True, generator=generator())
        iterators = [iter(loader) for _ in range(3)]
        seen = [next(iterator) for _ in range(2) for iterator in iterators]
        iterators.insert(0, iter(loader))
        return seen + [consume(iterator) for iterator in iterators]

    assert_same_as_torch(case, workers)


@not_persistent
def test_zip_of_a_loader_with_itself(workers):
    def case(load):
        loader = load(Squares(10), batch_size=3, shuffle=True, generator=generator())
        return [list(zip(loader, loader, strict=True)) for _ in range(2)]

    assert_same_as_torch(case, workers)


@several
def test_zip_of_two_loaders_of_different_lengths(workers):
    def case(load):
        short = load(Squares(6), batch_size=2)
        long = load(Squares(20), batch_size=3, shuffle=True, generator=generator())
        return [list(zip(short, long, strict=False)) for _ in range(2)], list(zip(long, short, strict=False))

    assert_same_as_torch(case, workers)


@several
def test_two_loaders_in_turn(workers):
    def case(load):
        training = load(Squares(10), batch_size=3, shuffle=True, generator=generator())
        validation = load(SamplesOfKind("dict_plain"), batch_size=4)
        return [epochs(loader) for _ in range(2) for loader in (training, validation)]

    assert_same_as_torch(case, workers)


@not_persistent
def test_a_loop_inside_a_loop_over_the_same_loader(workers):
    def case(load):
        loader = load(Indices(4), batch_size=2)
        return [(outer, inner) for outer in loader for inner in loader]

    assert_same_as_torch(case, workers)


@several
def test_a_validation_loop_inside_a_training_loop(workers):
    def case(load):
        training = load(Squares(8), batch_size=2, shuffle=True, generator=generator())
        validation = load(Squares(6), batch_size=3)
        seen: list[Any] = []
        for _ in range(2):
            for step, batch in enumerate(training):
                seen.append(batch)
                if step % 2:
                    seen += list(validation)
        return seen

    assert_same_as_torch(case, workers)


@several
@pytest.mark.parametrize("taken", [0, 1, 3])
def test_a_loop_left_early_and_whole_epochs_after_it(taken, workers):
    def case(load):
        loader = load(Squares(20), batch_size=2, shuffle=True, generator=generator())
        seen: list[Any] = [list(itertools.islice(loader, taken)) for _ in range(2)]
        seen += epochs(loader, 2)
        return [*seen, list(itertools.islice(loader, taken)), epochs(loader)]

    assert_same_as_torch(case, workers)


@several
def test_a_loop_left_by_an_exception_of_the_user(workers):
    def case(load):
        loader = load(Squares(12), batch_size=2, shuffle=True, generator=generator())
        seen: list[Any] = []
        for _ in range(2):
            try:
                for batch in loader:
                    seen.append(batch)
                    if len(seen) % 3 == 2:
                        raise KeyError("the user's own")
            except KeyError:
                seen.append("left")
        return seen, epochs(loader)

    assert_same_as_torch(case, workers)


def test_a_persistent_loader_has_one_iterator():
    def case(load):
        loader = load(Squares(6), batch_size=2)
        first = iter(loader)
        seen = [next(first), iter(loader) is first, consume(first)]
        return [*seen, iter(loader) is first, loader._iterator is first, consume(first)]

    assert_same_as_torch(case, TWO_PERSISTENT)
    assert_same_as_torch(case, TWO)


@not_persistent
def test_an_iterator_outlives_its_loader(workers):
    def case(load):
        loader = load(Squares(10), batch_size=2)
        iterator = iter(loader)
        seen = [next(iterator)]
        del loader
        gc.collect()
        return seen + consume(iterator)

    assert_same_as_torch(case, workers)


@several
def test_next_of_iter_alone(workers):
    def case(load):
        loader = load(Squares(10), batch_size=2, shuffle=True, generator=generator())
        return [next(iter(loader)) for _ in range(4)], epochs(loader)

    assert_same_as_torch(case, workers)


@several
def test_an_iterator_made_and_never_used(workers):
    def case(load):
        loader = load(Squares(10), batch_size=2, shuffle=True, generator=generator())
        for _ in range(3):
            iter(loader)
        return epochs(loader)

    assert_same_as_torch(case, workers)


# Without order.


@with_workers(INLINE, TWO_PERSISTENT, THREE, TWO_PERSISTENT_THREADS)
@pytest.mark.parametrize("batch_size", [None, 1, 3])
def test_without_order_every_batch_comes_once(batch_size, workers):
    def case(load):
        loader = load(Indices(23), batch_size=batch_size, shuffle=True, generator=generator(), in_order=False)
        seen = []
        for _ in range(2):
            batches = consume(iter(loader))
            seen.append([sorted(torch.as_tensor(batch).tolist() if batch_size else [batch] for batch in batches[:-1])])
        return seen

    assert_same_as_torch(case, workers)


@in_workers
def test_without_order_every_error_comes_once(workers):
    class Failing(Dataset):
        def __len__(self):
            return 12

        def __getitem__(self, index):
            if index % 5 == 2:
                raise ValueError(f"no sample {index}")
            return index

    def case(load):
        batches = consume(iter(load(Failing(), in_order=False)))
        return sorted(str(batch) for batch in batches)

    assert_same_as_torch(case, workers)


# In threads.


def _in_thread(function: Any) -> Any:
    result: list[Any] = []

    def run() -> None:
        try:
            result.append(function())
        except BaseException as error:
            result.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(50)
    assert result, "the thread did not end"
    if isinstance(result[0], BaseException):
        raise result[0]
    return result[0]


@several
def test_a_loop_in_a_thread(workers):
    def case(load):
        loader = load(Squares(10), batch_size=3, shuffle=True, generator=generator())
        return [_in_thread(lambda: epochs(loader)) for _ in range(2)], epochs(loader)

    assert_same_as_torch(case, workers)


@several
def test_an_iterator_made_in_one_thread_and_read_in_others(workers):
    def case(load):
        iterator = iter(load(Squares(10), batch_size=2))
        seen = [next(iterator)]
        seen.append(_in_thread(lambda: next(iterator)))
        seen.append(_in_thread(lambda: next(iterator)))
        return seen + consume(iterator)

    assert_same_as_torch(case, workers)


@several
def test_two_loaders_in_two_threads(workers):
    def case(load):
        loaders = [load(Squares(30), batch_size=2), load(Images(12, 3, 16, 16), batch_size=3)]
        results: list[Any] = [None, None]
        # Where two of torch's loaders fork at once, each waits five seconds for a pipe that the other's worker holds.
        at_once = load.loader_class is not torch.utils.data.DataLoader
        start = threading.Barrier(2 if at_once else 1)

        def run(place: int) -> None:
            start.wait()
            results[place] = epochs(loaders[place], 2)

        threads = [threading.Thread(target=run, args=(place,)) for place in (0, 1)]
        for thread in threads:
            thread.start()
            if not at_once:
                thread.join()
        for thread in threads:
            thread.join()
        return results

    assert_same_as_torch(case, workers)


# Arguments changed between epochs.


def test_the_number_of_workers_may_change():
    def case(load):
        loader = load(Squares(10), batch_size=3, shuffle=True, generator=generator())
        seen = [epochs(loader)]
        for count in (2, 1, 0, 3):
            loader.num_workers = count
            loader.prefetch_factor = 2 if count else None
            seen.append(epochs(loader))
        return seen

    assert_same_as_torch(case, INLINE)


@with_workers(TWO, TWO_PERSISTENT)
def test_the_number_of_workers_may_become_zero(workers):
    def case(load):
        loader = load(Squares(10), batch_size=3, shuffle=True, generator=generator())
        seen = [epochs(loader)]
        loader.num_workers = 0
        seen.append(epochs(loader, 2))
        loader.num_workers = 2
        return [*seen, epochs(loader, 2)]

    assert_same_as_torch(case, workers)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # torch's half-made iterators
def test_a_number_of_workers_without_a_prefetch_factor_fails_as_in_torch():
    def case(load):
        loader = load(Squares(10), batch_size=3)
        loader.num_workers = 1
        # torch's error is an accident, a comparison with None.
        return isinstance(outcome(lambda: next(iter(loader))), Raised)

    assert_same_as_torch(case, INLINE)


@several
def test_the_collate_function_may_change(workers):
    def case(load):
        loader = load(Indices(6), batch_size=2)
        seen = [epochs(loader)]
        loader.collate_fn = identity
        return [*seen, epochs(loader, 2)]

    assert_same_as_torch(case, workers)


@several
def test_the_collate_function_may_change_while_an_iterator_lives(workers):
    def case(load):
        loader = load(Indices(40), batch_size=2)
        iterator = iter(loader)
        seen = [next(iterator)]
        loader.collate_fn = identity
        return seen + consume(iterator)

    assert_same_as_torch(case, workers)


@several
def test_the_generator_may_change(workers):
    def case(load):
        loader = load(Indices(8), batch_size=2, shuffle=True, generator=generator(1))
        seen = [epochs(loader)]
        # The sampler keeps the old one; the base seed comes from the new one.
        loader.generator = generator(2)
        seen.append([epochs(loader), loader.generator.get_state(), loader.sampler.generator.get_state()])
        loader.generator = None
        loader.sampler.generator = None
        return [*seen, epochs(loader), torch.get_rng_state()]

    assert_same_as_torch(case, workers)


def test_the_init_function_may_change():
    def case(load):
        calls = [torch.zeros(2, dtype=torch.int64).share_memory_() for _ in range(2)]
        loader = load(Indices(6), worker_init_fn=note_worker_in(calls[0]))
        seen = epochs(loader)
        loader.worker_init_fn = note_worker_in(calls[1])
        seen += epochs(loader)
        del loader
        return seen, calls

    assert_same_as_torch(case, TWO)
    assert_same_as_torch(case, TWO_PERSISTENT)


@with_workers(INLINE, TWO, TWO_THREADS)
def test_pinning_may_be_turned_on_and_warns(workers):
    def case(load):
        loader = load(Squares(4), batch_size=2)
        seen: list[Any] = [recorded(lambda: consume(iter(loader)))]
        loader.pin_memory = True
        return [*seen, recorded(lambda: consume(iter(loader))), loader.pin_memory]

    assert_same_as_torch(case, workers)


@with_workers(TWO, THREE, TWO_THREADS)
def test_prefetch_factor_timeout_and_order_may_change(workers):
    def case(load):
        loader = load(Squares(20), batch_size=2)
        seen = [epochs(loader)]
        loader.prefetch_factor = 5
        loader.timeout = 40
        loader.in_order = False
        batches = consume(iter(loader))[:-1]
        seen.append([sorted(batch[1].tolist() for batch in batches)])
        loader.in_order = True
        return [*seen, epochs(loader)]

    assert_same_as_torch(case, workers)


def test_the_start_method_may_change():
    def case(load):
        loader = load(Squares(6), batch_size=2)
        seen = [epochs(loader)]
        loader.multiprocessing_context = "fork"
        return [*seen, epochs(loader), type(loader.multiprocessing_context).__name__]

    assert_same_as_torch(case, TWO)


@each_kind
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # torch's half-made iterators
def test_a_prefetch_factor_of_zero_set_later_fails_when_the_iterator_is_made(workers):
    def case(load):
        loader = load(Squares(6), batch_size=2)
        loader.prefetch_factor = 0
        return outcome(lambda: next(iter(loader)))

    assert_same_as_torch(case, workers)
