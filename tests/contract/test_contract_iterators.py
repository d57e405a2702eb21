"""Several iterators, iterators left early, loops in threads, delivery without order, and arguments changed later."""

import gc
import itertools
import threading
from typing import Any

import contract_datasets as data
import contract_ways as ways
import pytest
import torch
from contract_datasets import Squares, identity
from contract_harness import Raised, as_in_torch, consume, epochs, generator, outcome, random_states, recorded
from contract_loaders import drawing
from kit.datasets import Sized, Stream
from torch.utils.data import DistributedSampler

not_persistent = ways.with_workers(ways.INLINE, ways.TWO, ways.TWO_THREADS)


@as_in_torch(not_persistent)
def test_several_iterators_of_one_loader_are_independent_and_outlive_it(load):
    loader = load(Squares(10), batch_size=2, shuffle=True, generator=generator())
    iterators = [iter(loader) for _ in range(3)]
    seen = [next(iterator) for _ in range(2) for iterator in iterators]
    iterators.insert(0, iter(loader))
    del loader
    gc.collect()
    return seen + [consume(iterator) for iterator in iterators]


@as_in_torch(ways.with_workers(ways.INLINE, ways.TWO))
def test_two_iterators_over_one_loader_in_turns_draw_what_torchs_draw(load):
    loader = load(drawing(), batch_size=4, shuffle=True)
    return [batches for pair in zip(loader, loader, strict=True) for batches in pair], random_states()


@as_in_torch(ways.several)
@pytest.mark.parametrize("taken", [0, 1, 3])
def test_a_loop_left_early_and_whole_epochs_after_it(load, taken):
    # torch's sampler draws once more behind its last index. Where worker processes have threads, eight batches are
    # under way, as in torch with a prefetch_factor of 4; so the end is met as early, and the next order is the same.
    further = {"prefetch_factor": 4} if load.workers.worker_threads > 1 and not load.own_arguments else {}
    loader = load(Squares(20), batch_size=2, shuffle=True, generator=generator(), **further)
    return [list(itertools.islice(loader, taken)) for _ in range(2)] + epochs(loader, 2)


@as_in_torch(ways.TWO_PERSISTENT)
def test_a_persistent_loader_has_one_iterator(load):
    loader = load(Squares(6), batch_size=2)
    first = iter(loader)
    seen = [next(first), iter(loader) is first, consume(first)]
    return [*seen, iter(loader) is first, loader._iterator is first, consume(first)]


@as_in_torch(ways.several_alone)
@pytest.mark.parametrize("dataset", [Sized(3), data.Shards(3)], ids=["map", "stream"])
def test_the_end_of_an_epoch_can_be_asked_for_again(load, dataset):
    iterator = iter(load(dataset))
    return [consume(iterator), consume(iterator), next(iterator, "end")]


def _endless() -> Any:
    return itertools.count()


class _EndlessBatches(Sized):
    """Repeats batches without an end, as training scripts do to keep workers."""

    def __iter__(self) -> Any:
        return itertools.cycle([[3, 1], [2], [0, 4]])


_ENDLESS: dict[str, Any] = {
    "samples": lambda: {"dataset": Sized(5), "sampler": Stream(lambda: itertools.cycle(range(5))), "batch_size": None},
    "batches": lambda: {"dataset": Sized(5), "sampler": Stream(lambda: itertools.cycle(range(5))), "batch_size": 3},
    "a batch sampler": lambda: {"dataset": Squares(5), "batch_sampler": _EndlessBatches(3)},
    "a stream": lambda: {"dataset": Stream(_endless), "batch_size": 3},
}


@as_in_torch(ways.with_workers(ways.INLINE, ways.TWO_PERSISTENT, ways.TWO_PERSISTENT_THREADS, ways.TWO))
@pytest.mark.parametrize("name", _ENDLESS)
def test_what_never_ends_can_be_left_and_begins_again(load, name):
    loader = load(**_ENDLESS[name]())
    return [list(itertools.islice(loader, taken)) for taken in (10, 1, 7)]


# How often samples and samplers are asked.


class _Asked(Sized):
    """Counts how often each sample is asked for, in memory that all workers share; later samples are larger."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.counts = torch.zeros(length, dtype=torch.int64).share_memory_()

    def __getitem__(self, index: int) -> Any:
        self.counts[index] += 1
        return torch.full((2 + index // 8,), index)


@as_in_torch(ways.several)
@pytest.mark.parametrize(
    "arguments",
    [{"batch_size": 4}, {"batch_size": None, "shuffle": True}, {"batch_size": 4, "collate_fn": list, "shuffle": True}],
    ids=["collated", "samples", "as they are"],
)
def test_every_sample_is_asked_for_exactly_once_an_epoch(load, arguments):
    # What was learnt from the first samples must not cost a second reading of those that differ.
    dataset = _Asked(30)
    loader = load(dataset, **arguments, generator=generator())
    return [[epochs(loader), dataset.counts.clone()] for _ in range(3)]


@as_in_torch(ways.several)
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: data.EagerSampler(6), "sampler"),
        (lambda: data.DrawSampler(6), "sampler"),
        (lambda: data.EagerSampler(6, batch_size=2), "batch_sampler"),
    ],
    ids=["eager", "lazy", "batches"],
)
def test_a_sampler_is_asked_for_an_iterator_as_often_as_by_torch(load, make, name):
    sampler = make()
    loader = load(Sized(6), **{name: sampler})
    seen = []
    for _ in range(3):
        iterator = iter(loader)
        if name == "batch_sampler":  # an eager one; a lazy one may begin at the first next()
            seen.append(sampler.iterations)
        seen += [consume(iterator), sampler.iterations, random_states()]
    return seen


# Without order.


@as_in_torch(ways.several_alone)
@pytest.mark.parametrize(
    "dataset",
    [Sized(23), data.Failing([2, 7, 8], ragged=True), data.UnevenShards(9, 2)],
    ids=["map", "errors", "stream"],
)
def test_without_order_every_batch_and_every_error_comes_once(load, dataset):
    loader = load(dataset, batch_size=2, in_order=False, collate_fn=str)
    return [sorted(map(str, consume(iter(loader)))) for _ in range(2)]


# In threads.


def _in_thread(function: Any) -> Any:
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(outcome(function)))
    thread.start()
    thread.join(50)
    return result[0]


@as_in_torch(ways.several)
def test_an_iterator_may_be_made_in_one_thread_and_read_in_others(load):
    loader = load(Squares(10), batch_size=2, shuffle=True, generator=generator())
    seen = [_in_thread(lambda: epochs(loader)) for _ in range(2)]
    iterator = iter(loader)
    seen += [next(iterator), _in_thread(lambda: next(iterator)), _in_thread(lambda: next(iterator))]
    return seen + consume(iterator)


@as_in_torch(ways.several)
def test_two_loaders_in_two_threads(load):
    loaders = [load(Squares(30), batch_size=2), load(data.Images(12, 3, 16, 16), batch_size=3)]
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


# What is changed between epochs.


@as_in_torch(ways.several)
@pytest.mark.parametrize("own", [False, True], ids=["global generator", "own generator"])
def test_a_generator_may_be_seeded_again_or_exchanged(load, own):
    drawn = generator() if own else None
    loader = load(Sized(8), batch_size=2, shuffle=True, generator=drawn)
    seen: list[Any] = []
    for seed in (5, 6, 5):
        (drawn or torch).manual_seed(seed)
        seen.append(epochs(loader))
    # The sampler keeps the old one; the base seed comes from the new one.
    loader.generator = generator(2)
    return [*seen, epochs(loader), loader.generator.get_state(), random_states(drawn)]


@as_in_torch(ways.with_workers(ways.INLINE, ways.TWO_PERSISTENT, ways.TWO_PERSISTENT_THREADS), reference=ways.INLINE)
def test_a_distributed_sampler_with_set_epoch(load):
    sampler = DistributedSampler(Sized(11), 3, 2, seed=4)
    loader = load(Sized(11), batch_size=2, sampler=sampler)
    seen = []
    for epoch in (0, 1, 1):
        sampler.set_epoch(epoch)
        seen.append([epochs(loader), len(loader)])
    return seen


@as_in_torch(ways.with_workers(ways.INLINE, ways.TWO, ways.TWO_PERSISTENT))
def test_changes_of_the_dataset_between_epochs_are_seen_by_new_workers_and_not_by_persistent_ones(load):
    items = [1, 2, 3, 4]
    loader = load(items, batch_size=2)
    seen = epochs(loader)
    items[1] = 100
    items.append(5)
    return seen, epochs(loader), len(loader)


_CHANGES: dict[str, dict[str, Any]] = {
    "collate_fn": {"collate_fn": identity},
    "no workers": {"num_workers": 0, "prefetch_factor": None},
    "another number of workers": {"num_workers": 3, "prefetch_factor": 2},
    "workers without a prefetch factor": {"num_workers": 1, "prefetch_factor": None},
    "prefetch factor of zero": {"num_workers": 1, "prefetch_factor": 0},
    "prefetch factor and timeout": {"num_workers": 1, "prefetch_factor": 5, "timeout": 40},
    "start method": {"num_workers": 1, "prefetch_factor": 2, "multiprocessing_context": "fork"},
    "pinning": {"pin_memory": True},
}


@as_in_torch(ways.with_workers(ways.INLINE, ways.TWO_PERSISTENT, ways.TWO, ways.TWO_THREADS))
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # torch's half-made iterators
@pytest.mark.parametrize("name", _CHANGES)
def test_arguments_may_change_and_change_back(load, name):
    loader = load(Squares(20), batch_size=2, shuffle=True, generator=generator())
    changes = _CHANGES[name]
    before = {name: getattr(loader, name) for name in changes}
    seen: list[Any] = [epochs(loader)]
    for values in (changes, before):
        for argument, value in values.items():
            setattr(loader, argument, value)
        result, warned = recorded(lambda: consume(iter(loader), 20))
        # torch's error is an accident, a comparison with None.
        seen += ["an error"] if isinstance(result, Raised) else [result, warned]
    return [*seen, type(loader.multiprocessing_context).__name__]


@as_in_torch(ways.several)
def test_the_collate_function_may_change_while_an_iterator_lives(load):
    loader = load(Sized(40), batch_size=2)
    iterator = iter(loader)
    seen = [next(iterator)]
    loader.collate_fn = identity
    return seen + consume(iterator)
