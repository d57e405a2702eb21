"""What a worker finds around it, and what it is told of itself."""

import itertools
import multiprocessing
import os
from collections.abc import Iterator
from typing import Any

import contract_datasets as data
import contract_ways as ways
import pytest
import torch
from contract_harness import as_in_torch, epochs, generator, outcome, random_states
from kit.datasets import Made, Sized
from torch.utils.data import ConcatDataset, Subset, get_worker_info


class _Environment(Sized):
    """Each sample tells in what surroundings it is made."""

    def __repr__(self) -> str:
        return "<the dataset>"

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        process = multiprocessing.current_process()
        seen: dict[str, Any] = {
            "index": index,
            "daemon": process.daemon,
            "is main process": process.name == "MainProcess",
            "has a parent": multiprocessing.parent_process() is not None,
            "parent": os.getppid() if multiprocessing.parent_process() is not None else os.getpid(),
            "threads": torch.get_num_threads(),
            "gradients": torch.is_grad_enabled(),
            "dtype": torch.get_default_dtype(),
            "variable": os.environ["CONTRACT_SUITE"],
            "folder": os.getcwd(),
            "has info": info is not None,
        }
        if info is not None:
            seen |= {
                "type": f"{type(info).__module__}.{type(info).__qualname__}",
                "id is in range": 0 <= info.id < info.num_workers,
                "num_workers": info.num_workers,
                "base seed": info.seed - info.id,
                "dataset is this one": info.dataset is self,
                # Neither is in the older releases of torch.
                "rng": getattr(info, "rng", None) is None,
                "worker_method": getattr(info, "worker_method", None),
                "repr": _without_number(info),
                "can be changed": _changeable(info),
                "types": [type(value).__name__ for value in (info.id, info.num_workers, info.seed)],
            }
        return seen


def _without_number(info: Any) -> str:
    text = repr(info).replace(f"id={info.id}", "id=i").replace(f"seed={info.seed}", "seed=base+i")
    # torch's threads, when there are any, have something to tell from here on.
    return text.partition(", rng=")[0]


def _changeable(info: Any) -> str:
    try:
        info.id = 7
    except Exception as error:
        return type(error).__name__
    return "changed"


_OF_PROCESSES = ("daemon", "is main process", "has a parent", "parent", "dataset is this one", "rng", "worker_method")


@pytest.fixture
def _double() -> Iterator[None]:
    previous = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(previous)


@as_in_torch(ways.with_workers(ways.INLINE, ways.ONE, ways.TWO, ways.TWO_PERSISTENT, ways.TWO_THREADS))
@pytest.mark.usefixtures("_double")
@pytest.mark.parametrize(("batch_size", "collate_fn"), [(3, list), (None, None)])
def test_a_worker_has_the_surroundings_and_the_info_of_torchs(load, batch_size, collate_fn, monkeypatch, tmp_path):
    monkeypatch.setenv("CONTRACT_SUITE", "a value")
    monkeypatch.chdir(tmp_path)
    before = torch.get_num_threads()
    loader = load(
        _Environment(8), generator=generator(), batch_size=batch_size, collate_fn=list if batch_size else None
    )
    seen: list[Any] = []
    for batch in itertools.chain(loader, loader):
        for sample in batch if batch_size else [batch]:
            if "worker_method" in load.own_arguments:
                assert sample["parent"] == os.getpid()
                assert sample["worker_method"] in (None, "thread")  # older releases of torch have no such field
            if load.workers.threads:
                # A thread tells of itself what a process would, but for what it is.
                sample = {name: value for name, value in sample.items() if name not in _OF_PROCESSES}
            seen.append([*sample.items()])
    return seen, get_worker_info(), torch.get_num_threads() == before, random_states(), torch.initial_seed()


def _info(index: int) -> Any:
    info = get_worker_info()
    return index, type(info.dataset).__name__ if info is not None else "no worker"


@as_in_torch(ways.each_kind)
@pytest.mark.parametrize(
    "make",
    [
        lambda: Made(6, _info),
        lambda: Subset(Subset(Made(6, _info), [3, 1, 0]), [2, 1]),
        lambda: ConcatDataset([Made(6, _info), Made(6, _info)]),
    ],
    ids=["itself", "subset of a subset", "concatenation"],
)
def test_the_info_names_the_loaders_dataset_also_from_inside_of_it(load, make):
    return epochs(load(make(), batch_size=2))


class _Marked(Sized):
    """Yields a mark that a worker_init_fn may set."""

    mark = 0

    def __getitem__(self, index: int) -> Any:
        return index + self.mark


@as_in_torch(ways.several)
def test_the_init_function_is_called_once_for_every_worker_with_its_number_and_info_before_the_first_sample(load):
    calls = torch.zeros(3, 4, dtype=torch.int64).share_memory_()

    def init(worker: int) -> None:
        # A worker that got no work may have been slow to begin, but begin it must.
        info = get_worker_info()
        calls[worker] += torch.tensor([1, info.id, info.num_workers, (info.seed - info.id) % 2**31])
        info.dataset.mark = 100

    dataset = _Marked(12)
    # It is looked up when the iterator is made.
    loader = load(dataset, batch_size=2, worker_init_fn=data.init_that_fails, generator=generator())
    loader.worker_init_fn = init
    return epochs(loader, 2), calls, dataset.mark


@as_in_torch(ways.in_processes)
@pytest.mark.parametrize("what", ["process", "loader"])
def test_a_worker_process_may_not_have_children(load, what):
    def parent(index: int) -> Any:
        if what == "loader":
            return [int(batch) for batch in load.loader_class([1, 2], num_workers=1)]
        return outcome(multiprocessing.get_context("fork").Process(target=int).start)

    return epochs(load(Made(2, parent), collate_fn=data.identity))


@as_in_torch(ways.each_kind)
def test_a_loader_without_workers_works_inside_a_dataset(load):
    def inner(index: int) -> Any:
        return list(load.loader_class(data.Images(4, 2), batch_size=2))[index % 2]

    return epochs(load(Made(3, inner), batch_size=None))
