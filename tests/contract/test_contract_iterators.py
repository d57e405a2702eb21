"""Several iterators, iterators left early, loops in threads, delivery without order, and arguments changed later."""

import gc
import itertools
import threading
from typing import Any

import contract_ways as ways
import pytest
import torch
from contract_datasets import Images, Indices, Squares, identity, note_worker_in
from contract_harness import Raised, as_in_torch, consume, epochs, generator, outcome, recorded
from kit.datasets import Made

not_persistent = ways.with_workers(ways.INLINE, ways.TWO, ways.THREE, ways.TWO_THREADS)


@as_in_torch(not_persistent)
def test_several_iterators_of_one_loader_are_independent(load):
    loader = load(Squares(10), batch_size=2, shuffle=True, generator=generator())
    iterators = [iter(loader) for _ in range(3)]
    seen = [next(iterator) for _ in range(2) for iterator in iterators]
    iterators.insert(0, iter(loader))
    return seen + [consume(iterator) for iterator in iterators]


@as_in_torch(ways.several)
def test_a_validation_loop_inside_a_training_loop(load):
    training = load(Squares(8), batch_size=2, shuffle=True, generator=generator())
    validation = load(Squares(6), batch_size=3)
    seen: list[Any] = []
    for _ in range(2):
        for step, batch in enumerate(training):
            seen.append(batch)
            if step % 2:
                seen += list(validation)
    return seen


@as_in_torch(ways.several_alone)
@pytest.mark.parametrize("taken", [0, 1, 3])
def test_a_loop_left_early_and_whole_epochs_after_it(load, taken):
    loader = load(Squares(20), batch_size=2, shuffle=True, generator=generator())
    seen: list[Any] = [list(itertools.islice(loader, taken)) for _ in range(2)]
    seen += epochs(loader, 2)
    return [*seen, list(itertools.islice(loader, taken)), epochs(loader)]


@pytest.mark.slow
@as_in_torch(ways.TWO_OF_FOUR)
@pytest.mark.parametrize("taken", [0, 1, 3])
def test_a_loop_left_early_with_worker_threads_which_read_further_ahead(load, taken):
    # torch's sampler draws once more behind its last index. Eight batches are under way here, as in torch with a
    # prefetch_factor of 4; so the end is met as early as there, and the next epoch has the same order.
    ahead = {} if load.own_arguments else {"prefetch_factor": 4}
    loader = load(Squares(20), batch_size=2, shuffle=True, generator=generator(), **ahead)
    return [list(itertools.islice(loader, taken)), *epochs(loader, 2)]


@as_in_torch(ways.with_workers(ways.TWO, ways.TWO_PERSISTENT))
def test_a_persistent_loader_has_one_iterator(load):
    loader = load(Squares(6), batch_size=2)
    first = iter(loader)
    seen = [next(first), iter(loader) is first, consume(first)]
    return [*seen, iter(loader) is first, loader._iterator is first, consume(first)]


@as_in_torch(not_persistent)
def test_an_iterator_outlives_its_loader(load):
    loader = load(Squares(10), batch_size=2)
    iterator = iter(loader)
    seen = [next(iterator)]
    del loader
    gc.collect()
    return seen + consume(iterator)


# Without order.


@as_in_torch(ways.with_workers(ways.INLINE, ways.TWO_PERSISTENT, ways.THREE, ways.TWO_PERSISTENT_THREADS))
@pytest.mark.parametrize("batch_size", [None, 1, 3])
def test_without_order_every_batch_comes_once(load, batch_size):
    loader = load(Indices(23), batch_size=batch_size, shuffle=True, generator=generator(), in_order=False)
    seen = []
    for _ in range(2):
        batches = consume(iter(loader))
        seen.append([sorted(torch.as_tensor(batch).tolist() if batch_size else [batch] for batch in batches[:-1])])
    return seen


@as_in_torch(ways.in_workers)
def test_without_order_every_error_comes_once(load):
    def failing(index):
        if index % 5 == 2:
            raise ValueError(f"no sample {index}")
        return index

    batches = consume(iter(load(Made(12, failing), in_order=False)))
    return sorted(str(batch) for batch in batches)


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


@as_in_torch(ways.several)
def test_a_loop_in_a_thread(load):
    loader = load(Squares(10), batch_size=3, shuffle=True, generator=generator())
    return [_in_thread(lambda: epochs(loader)) for _ in range(2)], epochs(loader)


@as_in_torch(ways.several)
def test_an_iterator_made_in_one_thread_and_read_in_others(load):
    iterator = iter(load(Squares(10), batch_size=2))
    seen = [next(iterator)]
    seen.append(_in_thread(lambda: next(iterator)))
    seen.append(_in_thread(lambda: next(iterator)))
    return seen + consume(iterator)


@as_in_torch(ways.several)
def test_two_loaders_in_two_threads(load):
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


# Arguments changed between epochs.


@as_in_torch
def test_the_number_of_workers_may_change(load):
    loader = load(Squares(10), batch_size=3, shuffle=True, generator=generator())
    seen = [epochs(loader)]
    for count in (2, 1, 0, 3):
        loader.num_workers = count
        loader.prefetch_factor = 2 if count else None
        seen.append(epochs(loader))
    return seen


@as_in_torch
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # torch's half-made iterators
def test_a_number_of_workers_without_a_prefetch_factor_fails_as_in_torch(load):
    loader = load(Squares(10), batch_size=3)
    loader.num_workers = 1
    # torch's error is an accident, a comparison with None.
    return isinstance(outcome(lambda: next(iter(loader))), Raised)


@as_in_torch(ways.several)
def test_the_collate_function_may_change_while_an_iterator_lives(load):
    loader = load(Indices(40), batch_size=2)
    iterator = iter(loader)
    seen = [next(iterator)]
    loader.collate_fn = identity
    return seen + consume(iterator)


@as_in_torch(ways.several)
def test_the_generator_may_change(load):
    loader = load(Indices(8), batch_size=2, shuffle=True, generator=generator(1))
    seen = [epochs(loader)]
    # The sampler keeps the old one; the base seed comes from the new one.
    loader.generator = generator(2)
    seen.append([epochs(loader), loader.generator.get_state(), loader.sampler.generator.get_state()])
    loader.generator = None
    loader.sampler.generator = None
    return [*seen, epochs(loader), torch.get_rng_state()]


@as_in_torch(ways.with_workers(ways.TWO, ways.TWO_PERSISTENT))
def test_the_init_function_may_change(load):
    calls = [torch.zeros(2, dtype=torch.int64).share_memory_() for _ in range(2)]
    loader = load(Indices(6), worker_init_fn=note_worker_in(calls[0]))
    seen = epochs(loader)
    loader.worker_init_fn = note_worker_in(calls[1])
    return seen + epochs(loader), calls


@as_in_torch(ways.with_workers(ways.INLINE, ways.TWO, ways.TWO_THREADS))
def test_pinning_may_be_turned_on_and_warns(load):
    loader = load(Squares(4), batch_size=2)
    seen: list[Any] = [recorded(lambda: consume(iter(loader)))]
    loader.pin_memory = True
    return [*seen, recorded(lambda: consume(iter(loader))), loader.pin_memory]


@as_in_torch(ways.with_workers(ways.TWO, ways.TWO_PERSISTENT, ways.THREE, ways.TWO_THREADS))
@pytest.mark.parametrize(
    "changed",
    [
        {"collate_fn": identity},
        {"num_workers": 0, "prefetch_factor": None},
        {"prefetch_factor": 5, "timeout": 40},
        {"multiprocessing_context": "fork"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_arguments_may_change_and_change_back(load, changed):
    loader = load(Squares(20), batch_size=2, shuffle=True, generator=generator())
    before = {name: getattr(loader, name) for name in changed}
    seen = [epochs(loader)]
    for values in (changed, before):
        for name, value in values.items():
            setattr(loader, name, value)
        seen.append(epochs(loader))
    return [*seen, type(loader.multiprocessing_context).__name__]


@as_in_torch(ways.each_kind)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # torch's half-made iterators
def test_a_prefetch_factor_of_zero_set_later_fails_when_the_iterator_is_made(load):
    loader = load(Squares(6), batch_size=2)
    loader.prefetch_factor = 0
    return outcome(lambda: next(iter(loader)))
