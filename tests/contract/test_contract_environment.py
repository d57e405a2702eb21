"""What a worker finds around it, and what it is told of itself."""

import multiprocessing
import os
from typing import Any

import contract_datasets as data
import contract_ways as ways
import pytest
import torch
from contract_harness import (
    as_in_torch,
    assert_same_as_torch,
    epochs,
    generator,
    random_states,
    run_case,
    subject_class,
)
from kit.datasets import Made
from torch.utils.data import ConcatDataset, Subset, get_worker_info


@as_in_torch(ways.without_threads)
@pytest.mark.parametrize("arguments", [{"batch_size": 3}, {"batch_size": None}], ids=str)
def test_a_worker_process_has_the_surroundings_and_the_info_of_torchs(load, arguments):
    collate = {} if arguments["batch_size"] is None else {"collate_fn": list}
    return epochs(load(data.Environment(), generator=generator(), **arguments, **collate), 2)


@pytest.mark.skipif(ways.SUBJECT_IS_TORCH, reason="torch has no threads")
@pytest.mark.parametrize("workers", [ways.TWO_THREADS, ways.THREE_THREADS], ids=str)
def test_a_worker_thread_is_told_of_itself_as_a_process_would_be(workers):
    def case(load):
        return epochs(load(data.Environment(), generator=generator(), batch_size=2, collate_fn=list), 2)

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


@as_in_torch(ways.everywhere)
def test_the_main_process_has_no_worker_info(load):
    seen: list[Any] = [get_worker_info()]
    iterator = iter(load(data.Indices(6), batch_size=2))
    seen.append(get_worker_info())
    for _ in iterator:
        seen.append(get_worker_info())
    return [*seen, get_worker_info()]


@as_in_torch(ways.each_kind)
@pytest.mark.parametrize(
    "make",
    [
        lambda: data.InfoDataset(),
        lambda: Subset(data.InfoDataset(), [3, 1, 0]),
        lambda: Subset(Subset(data.InfoDataset(), [3, 1, 0]), [2, 1]),
        lambda: ConcatDataset([data.InfoDataset(), data.InfoDataset()]),
    ],
    ids=["itself", "subset", "subset of a subset", "concatenation"],
)
def test_the_info_names_the_loaders_dataset_also_from_inside_of_it(load, make):
    return epochs(load(make(), batch_size=2))


@as_in_torch(
    ways.with_workers(
        ways.INLINE,
        ways.TWO,
        ways.THREE,
        ways.TWO_PERSISTENT,
        ways.TWO_THREADS,
        ways.TWO_PERSISTENT_THREADS,
        ways.THREE_THREADS,
    )
)
def test_the_init_function_is_called_once_for_every_worker_with_its_number(load):
    calls = torch.zeros(4, dtype=torch.int64).share_memory_()
    loader = load(data.Indices(12), batch_size=2, worker_init_fn=data.note_worker_in(calls))
    seen = epochs(loader, 2)
    del loader
    # A worker that got no work may have been slow to begin, but begin it must.
    return seen, calls


@as_in_torch(ways.in_workers)
def test_the_init_function_comes_before_the_first_sample_and_can_change_the_workers_dataset(load):
    dataset = data.Marked()
    return epochs(load(dataset, batch_size=2, worker_init_fn=data.init_that_marks_dataset), 2), dataset.mark


@as_in_torch(ways.in_workers)
def test_the_init_function_has_the_workers_info(load):
    seen = torch.zeros(4, 3, dtype=torch.int64).share_memory_()

    def init(worker_id):
        info = get_worker_info()
        seen[worker_id] = torch.tensor([info.id, info.num_workers, (info.seed - info.id) % 2**31])

    epochs(load(data.Indices(12), batch_size=2, worker_init_fn=init, generator=generator()))
    return seen


@as_in_torch(ways.in_processes)
def test_a_worker_process_may_not_have_children(load):
    def parent(index):
        process = multiprocessing.get_context("fork").Process(target=int)
        try:
            process.start()
        except AssertionError as error:
            return str(error)
        process.join()
        return "had a child"

    return epochs(load(Made(2, parent)))


@as_in_torch(ways.in_processes)
def test_a_loader_with_workers_inside_a_worker_fails_as_in_torch(load):
    def nested(index):
        return [int(batch) for batch in load.loader_class([1, 2], num_workers=1)]

    return epochs(load(Made(1, nested)))


@as_in_torch(ways.in_processes)
def test_the_environment_and_the_working_directory_are_those_of_the_main_process(load, monkeypatch, tmp_path):
    monkeypatch.setenv("CONTRACT_SUITE", "a value")
    monkeypatch.chdir(tmp_path)
    # Not the directory's name, which is another in each test: what torch gave in one is recalled in the next.
    there = os.getcwd()
    return epochs(load(Made(2, lambda index: (os.environ["CONTRACT_SUITE"], os.getcwd() == there))))


@as_in_torch(ways.in_processes)
def test_gradients_and_default_dtype_are_those_of_the_main_process(load):
    def modes(index):
        return [torch.is_grad_enabled(), torch.get_default_dtype() == torch.float64, torch.zeros(2)]

    previous = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return epochs(load(Made(2, modes), batch_size=2))
    finally:
        torch.set_default_dtype(previous)


@as_in_torch(ways.in_workers)
def test_the_main_process_keeps_its_number_of_threads_and_its_generators(load):
    before = torch.get_num_threads()
    epochs(load(data.Indices(6), batch_size=2))
    return torch.get_num_threads() == before, random_states(), torch.initial_seed()


@as_in_torch(ways.TWO)
def test_the_init_function_is_looked_up_when_the_iterator_is_made(load):
    calls = torch.zeros(4, dtype=torch.int64).share_memory_()
    loader = load(data.Indices(6), worker_init_fn=data.init_that_fails)
    loader.worker_init_fn = data.note_worker_in(calls)
    return epochs(loader), calls
