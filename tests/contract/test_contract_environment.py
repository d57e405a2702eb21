"""What a worker finds around it, and what it is told of itself."""

import os
from typing import Any

import pytest
import torch
from contract_datasets import (
    Environment,
    Indices,
    InfoDataset,
    Marked,
    Shards,
    init_that_fails,
    init_that_marks_dataset,
    note_worker_in,
)
from contract_harness import (
    INLINE,
    SUBJECT_IS_TORCH,
    THREE,
    THREE_THREADS,
    TWO,
    TWO_PERSISTENT,
    TWO_PERSISTENT_THREADS,
    TWO_THREADS,
    assert_same_as_torch,
    consume,
    each_kind,
    epochs,
    everywhere,
    generator,
    in_processes,
    in_workers,
    random_states,
    recorded,
    run_case,
    subject_class,
    with_workers,
    without_threads,
)
from torch.utils.data import ConcatDataset, Dataset, Subset, get_worker_info
from torch.utils.data._utils.worker import WorkerInfo


@without_threads
@pytest.mark.parametrize("arguments", [{"batch_size": 3}, {"batch_size": None}], ids=str)
def test_a_worker_process_has_the_surroundings_and_the_info_of_torchs(arguments, workers):
    def case(load):
        collate = {} if arguments["batch_size"] is None else {"collate_fn": list}
        return epochs(load(Environment(), generator=generator(), **arguments, **collate), 2)

    assert_same_as_torch(case, workers)


@pytest.mark.skipif(SUBJECT_IS_TORCH, reason="torch has no threads")
@pytest.mark.parametrize("workers", [TWO_THREADS, THREE_THREADS], ids=str)
def test_a_worker_thread_is_told_of_itself_as_a_process_would_be(workers):
    def case(load):
        return epochs(load(Environment(), generator=generator(), batch_size=2, collate_fn=list), 2)

    fields = ["index", "has info", "type", "id is in range", "num_workers", "base seed", "repr", "can be changed"]

    def view(observation: Any) -> Any:
        return [
            [{field: sample[field] for field in fields} for batch in epoch[:-1] for sample in batch]
            for epoch in observation
        ]

    assert_same_as_torch(case, workers, view=view)
    for epoch in run_case(case, subject_class(), workers, {"worker_method": "thread"}):
        for batch in epoch[:-1]:
            for sample in batch:
                if sample["worker_method"] is not None:  # older releases of torch have no such field
                    assert sample["worker_method"] == "thread"
                assert sample["parent"] == os.getpid()


@everywhere
def test_the_main_process_has_no_worker_info(workers):
    def case(load):
        seen: list[Any] = [get_worker_info()]
        iterator = iter(load(Indices(6), batch_size=2))
        seen.append(get_worker_info())
        for _ in iterator:
            seen.append(get_worker_info())
        return [*seen, get_worker_info()]

    assert_same_as_torch(case, workers)


def _without_number(info: Any) -> str:
    text = repr(info).replace(f"id={info.id}", "id=i").replace(f"seed={info.seed}", "seed=base+i")
    # torch's threads, when there are any, have something to tell from here on.
    return text.partition(", rng=")[0]


class _Told(Dataset):
    """Tells everything of the worker's info but the worker's number."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        if info is None:
            return "no worker"
        return [
            isinstance(info, WorkerInfo),
            _without_number(info),
            [name for name in ("id=", "num_workers=", "seed=", "dataset=", "rng=") if name not in repr(info)],
            info.dataset is self,
        ]

    def __repr__(self) -> str:
        return "<the dataset>"


@everywhere
def test_the_info_is_printed_as_torchs(workers):
    def case(load):
        return epochs(load(_Told(), batch_size=2, collate_fn=list))

    assert_same_as_torch(case, workers)


@each_kind
@pytest.mark.parametrize(
    "make",
    [
        lambda: InfoDataset(),
        lambda: Subset(InfoDataset(), [3, 1, 0]),
        lambda: Subset(Subset(InfoDataset(), [3, 1, 0]), [2, 1]),
        lambda: ConcatDataset([InfoDataset(), InfoDataset()]),
    ],
    ids=["itself", "subset", "subset of a subset", "concatenation"],
)
def test_the_info_names_the_loaders_dataset_also_from_inside_of_it(make, workers):
    def case(load):
        return epochs(load(make(), batch_size=2))

    assert_same_as_torch(case, workers)


@in_processes
def test_a_workers_seed_is_the_loaders_base_seed_and_the_workers_number(workers):
    class Seeds(Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, index):
            return get_worker_info().seed - get_worker_info().id

    def case(load):
        drawn = generator()
        return epochs(load(Seeds(), generator=drawn), 3), epochs(load(Seeds()), 2), random_states(drawn)

    assert_same_as_torch(case, workers)


@with_workers(INLINE, TWO, THREE, TWO_PERSISTENT, TWO_THREADS, TWO_PERSISTENT_THREADS, THREE_THREADS)
def test_the_init_function_is_called_once_for_every_worker_with_its_number(workers):
    def case(load):
        calls = torch.zeros(4, dtype=torch.int64).share_memory_()
        loader = load(Indices(12), batch_size=2, worker_init_fn=note_worker_in(calls))
        seen = epochs(loader, 2)
        del loader
        # A worker that got no work may have been slow to begin, but begin it must.
        return seen, calls

    assert_same_as_torch(case, workers)


@in_processes
def test_the_init_function_comes_before_the_first_sample_and_can_change_the_workers_dataset(workers):
    def case(load):
        dataset = Marked()
        return epochs(load(dataset, batch_size=2, worker_init_fn=init_that_marks_dataset), 2), dataset.mark

    assert_same_as_torch(case, workers)


@in_workers
def test_the_init_function_has_the_workers_info(workers):
    def case(load):
        seen = torch.zeros(4, 3, dtype=torch.int64).share_memory_()

        def init(worker_id):
            info = get_worker_info()
            seen[worker_id] = torch.tensor([info.id, info.num_workers, (info.seed - info.id) % 2**31])

        epochs(load(Indices(12), batch_size=2, worker_init_fn=init, generator=generator()))
        return seen

    assert_same_as_torch(case, workers)


@in_workers
def test_an_init_function_may_be_a_lambda(workers):
    def case(load):
        return epochs(load(Indices(5), worker_init_fn=lambda worker_id: None), 2)

    assert_same_as_torch(case, workers)


@in_processes
def test_a_worker_process_may_not_have_children(workers):
    class Parent(Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            import multiprocessing

            process = multiprocessing.get_context("fork").Process(target=int)
            try:
                process.start()
            except AssertionError as error:
                return str(error)
            process.join()
            return "had a child"

    def case(load):
        return epochs(load(Parent()))

    assert_same_as_torch(case, workers)


@in_processes
def test_a_loader_with_workers_inside_a_worker_fails_as_in_torch(workers):
    class Nested(Dataset):
        def __init__(self, loader_class):
            self.loader_class = loader_class

        def __len__(self):
            return 1

        def __getitem__(self, index):
            return [int(batch) for batch in self.loader_class([1, 2], num_workers=1)]

    def case(load):
        return epochs(load(Nested(load.loader_class)))

    assert_same_as_torch(case, workers)


@in_processes
def test_the_environment_and_the_working_directory_are_those_of_the_main_process(workers, monkeypatch, tmp_path):
    monkeypatch.setenv("CONTRACT_SUITE", "a value")
    monkeypatch.chdir(tmp_path)

    class Around(Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return os.environ["CONTRACT_SUITE"], os.getcwd()

    def case(load):
        return epochs(load(Around()))

    assert_same_as_torch(case, workers)


@in_processes
def test_gradients_and_default_dtype_are_those_of_the_main_process(workers):
    class Modes(Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return [torch.is_grad_enabled(), torch.get_default_dtype() == torch.float64, torch.zeros(2)]

    def case(load):
        previous = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            return epochs(load(Modes(), batch_size=2))
        finally:
            torch.set_default_dtype(previous)

    assert_same_as_torch(case, workers)


@in_workers
def test_the_main_process_keeps_its_number_of_threads_and_its_generators(workers):
    def case(load):
        before = torch.get_num_threads()
        epochs(load(Indices(6), batch_size=2))
        return torch.get_num_threads() == before, random_states(), torch.initial_seed()

    assert_same_as_torch(case, workers)


@with_workers(TWO, TWO_PERSISTENT)
def test_a_stream_is_told_of_its_worker(workers):
    def case(load):
        return epochs(load(Shards(10), batch_size=2), 2)

    assert_same_as_torch(case, workers)


@with_workers(INLINE, TWO, TWO_THREADS)
def test_no_warning_is_given_for_an_ordinary_loader(workers):
    def case(load):
        return recorded(lambda: consume(iter(load(Indices(6), batch_size=2))))

    assert_same_as_torch(case, workers)


def test_the_init_function_is_looked_up_when_the_iterator_is_made():
    def case(load):
        calls = torch.zeros(4, dtype=torch.int64).share_memory_()
        loader = load(Indices(6), worker_init_fn=init_that_fails)
        loader.worker_init_fn = note_worker_in(calls)
        return epochs(loader), calls

    assert_same_as_torch(case, TWO)
