"""Without a seed every batch is torch's, bit for bit: many pipelines, ways of loading, and loops left early."""

import dataclasses
import importlib.util
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import contract_pipelines as pipelines
import contract_ways as ways
import numpy as np
import pytest
import torch
from contract_datasets import GlobalDrawSampler, init_that_draws, init_that_seeds
from contract_harness import Ended, as_in_torch, generator, outcome, random_states
from contract_ways import Workers
from kit.datasets import Made
from torch.utils.data import BatchSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler, get_worker_info

LEFT = 3
"""Batches after which a loop is left."""
WHOLE_LEFT_WHOLE = (None, LEFT, None)
"""Epochs: None is a whole one."""
LEFT_TWICE = (LEFT, LEFT, None)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    pipelines.write_files(folder)
    return folder


def epoch(loader: Any, stop: int | None) -> list[Any]:
    """Iterate once, going on after errors; the loop draws between the batches, as training does."""
    seen: list[Any] = []
    iterator = iter(loader)
    while stop is None or len(seen) < stop:
        batch = outcome(next, iterator)
        seen.append((batch, random.random(), np.random.rand(), torch.rand(1)))
        if isinstance(batch, Ended):
            break
    return seen


def epochs(loader: Any, stops: tuple[int | None, ...], own: torch.Generator | None = None) -> list[Any]:
    """Iterate several times; note the states of the generators after each."""
    return [(epoch(loader, stop), random_states(own)) for stop in stops]


def each_pipeline(*names: str) -> pytest.MarkDecorator:
    """Run a test with each pipeline, or those of these names."""

    def skip(name: str) -> list[pytest.MarkDecorator]:
        needed = pipelines.NEEDED.get(name)
        missing = needed is not None and importlib.util.find_spec(needed) is None
        return [pytest.mark.skip(reason=f"{needed} is not installed")] if missing else []

    cases = [
        pytest.param(pipelines.PIPELINES[name], id=name, marks=skip(name)) for name in names or pipelines.PIPELINES
    ]
    return pytest.mark.parametrize("make", cases)


@as_in_torch(ways.TWO_PERSISTENT)
@each_pipeline()
def test_batches_of_workers_that_persist_are_torchs_also_after_a_loop_left_early(load, make, files):
    dataset, arguments = make(files)
    return epochs(load(dataset, **arguments), WHOLE_LEFT_WHOLE)


@as_in_torch(ways.INLINE)
@each_pipeline()
def test_batches_without_workers_are_torchs(load, make, files):
    dataset, arguments = make(files)
    return epochs(load(dataset, **arguments), WHOLE_LEFT_WHOLE)


COUNTS = (1, 2, 3, 5)
WAYS = [Workers(count=count, persistent=persistent) for count in COUNTS for persistent in (False, True)]


@pytest.mark.slow
@as_in_torch(ways.with_workers(*WAYS))
@each_pipeline()
def test_batches_are_torchs_with_any_number_of_workers(load, make, files):
    dataset, arguments = make(files)
    stops = WHOLE_LEFT_WHOLE if load.workers.persistent else (LEFT, None)
    return epochs(load(dataset, **arguments), stops)


FORKSERVER = [Workers(count=count, persistent=True, start_method="forkserver") for count in (1, 2)]
SPAWN = Workers(count=2, persistent=True, start_method="spawn")


@pytest.mark.thorough
@as_in_torch(ways.with_workers(*FORKSERVER))
@each_pipeline("pillow_v1", "detection", "yolo", "text", "own_generators", "stream", "errors_of_samples", "monai")
def test_batches_are_torchs_with_workers_of_a_fork_server(load, make, files):
    dataset, arguments = make(files)
    return epochs(load(dataset, **arguments), LEFT_TWICE)


@pytest.mark.thorough
@as_in_torch(ways.with_workers(SPAWN))
@each_pipeline("pillow_v2", "memmap", "long_stream")
def test_batches_are_torchs_with_spawned_workers(load, make, files):
    dataset, arguments = make(files)
    return epochs(load(dataset, **arguments), LEFT_TWICE)


def drawing(length: int = 23) -> Made:
    """Return a dataset that draws from all generators for each sample."""
    return Made(length, pipelines.noise)


class RandomBatches:
    """Batches of sizes and indices that it draws from the global generators as it goes."""

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(9):
            yield [int(torch.randint(23, ())) for _ in range(random.randrange(1, 4))]

    def __len__(self) -> int:
        return 9


def init_from_initial_seed(worker_id: int) -> None:
    """Seed all generators from torch's seed, another for each worker."""
    seed = torch.initial_seed() % 2**31 + worker_id
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def init_with_fixed_seed(worker_id: int) -> None:
    """Seed as some scripts do: all workers alike."""
    np.random.seed(7)
    random.seed(get_worker_info().seed)


def _uneven_batches() -> list[list[int]]:
    return [[0], [1, 2, 3], [4, 5], [6, 7, 8, 9], [10], [11, 12], [13, 14, 15], [16, 17], [18]]


def _weighted() -> WeightedRandomSampler:
    return WeightedRandomSampler([1.0 + index % 3 for index in range(23)], 20)


ARGUMENTS: dict[str, Callable[[torch.Generator], dict[str, Any]]] = {
    "generator": lambda own: {"batch_size": 4, "shuffle": True, "generator": own},
    "generator, in sequence": lambda own: {"batch_size": 4, "generator": own},
    "generator of the sampler": lambda own: {"batch_size": 4, "sampler": RandomSampler(drawing(), generator=own)},
    "drawn with replacement": lambda own: {"batch_size": 3, "sampler": RandomSampler(drawing(), True, 30)},
    "weights": lambda own: {"batch_size": 3, "sampler": _weighted()},
    "subset at random": lambda own: {"batch_size": 2, "sampler": SubsetRandomSampler(range(3, 21), generator=own)},
    "batch sampler": lambda own: {"batch_sampler": BatchSampler(RandomSampler(drawing()), 4, drop_last=True)},
    "batches of many sizes": lambda own: {"batch_sampler": _uneven_batches()},
    "batches that are drawn": lambda own: {"batch_sampler": RandomBatches()},
    "sampler that draws from torch": lambda own: {"batch_size": 2, "sampler": GlobalDrawSampler(23, "torch")},
    "sampler that draws from NumPy": lambda own: {"batch_size": 2, "sampler": GlobalDrawSampler(23, "numpy")},
    "sampler that draws from Python": lambda own: {"batch_size": 2, "sampler": GlobalDrawSampler(23, "python")},
    "sampler without batches": lambda own: {"batch_size": None, "sampler": GlobalDrawSampler(23, "torch")},
    "no last batch": lambda own: {"batch_size": 5, "drop_last": True, "shuffle": True},
    "worker_init_fn that draws": lambda own: {"batch_size": 2, "worker_init_fn": init_that_draws},
    "worker_init_fn that seeds": lambda own: {"batch_size": 2, "worker_init_fn": init_that_seeds},
    "worker_init_fn with the initial seed": lambda own: {"batch_size": 2, "worker_init_fn": init_from_initial_seed},
    "worker_init_fn with a fixed seed": lambda own: {"batch_size": 2, "worker_init_fn": init_with_fixed_seed},
    "many batches ahead": lambda own: {"batch_size": 1, "shuffle": True, "prefetch_factor": 5},
    "one batch ahead": lambda own: {"batch_size": 2, "shuffle": True, "prefetch_factor": 1},
    "pinned memory": lambda own: {"batch_size": 4, "pin_memory": torch.cuda.is_available()},
}


@as_in_torch(ways.with_workers(ways.INLINE, ways.TWO_PERSISTENT, ways.THREE))
@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.parametrize("stops", [WHOLE_LEFT_WHOLE, LEFT_TWICE], ids=["whole first", "left twice"])
def test_batches_are_torchs_with_any_arguments(load, name, stops):
    own = generator()
    arguments = ARGUMENTS[name](own)
    if not load.workers.count:
        arguments.pop("prefetch_factor", None)
    return epochs(load(drawing(), **arguments), stops, own)


@as_in_torch(ways.with_workers(ways.INLINE, ways.TWO_PERSISTENT, ways.THREE), seeding="torch", chunk_size="batch")
def test_what_is_so_without_a_seed_can_be_asked_for(load):
    return epochs(load(drawing(), batch_size=2, shuffle=True), WHOLE_LEFT_WHOLE)


@as_in_torch(ways.with_workers(ways.ONE, ways.TWO, ways.THREE))
def test_batches_come_from_the_workers_in_turn_also_when_one_of_them_is_slow(load):
    def slow(index):
        """Every index that worker 0 would get takes long."""
        total = sum(range(400_000)) if index % load.workers.count == 0 else 0
        return get_worker_info().id, index, total * 0

    return epochs(load(Made(12, slow), batch_size=1), (None,))


@as_in_torch(ways.with_workers(ways.INLINE, ways.ONE, ways.TWO, ways.TWO_PERSISTENT, ways.THREE))
@pytest.mark.parametrize("style", ["map", "stream"])
@pytest.mark.parametrize("stop", [None, LEFT], ids=["whole", "left early"])
def test_training_and_validation_in_turns_are_torchs(load, style, stop):
    train = load(drawing() if style == "map" else pipelines.Shards(40), batch_size=2, shuffle=style == "map" or None)
    validation = load(drawing(11), batch_size=4)
    seen = []
    for _ in range(3):
        seen.append(epochs(train, (stop,)))
        seen.append(epochs(validation, (stop, None)))
    return seen


@as_in_torch(ways.with_workers(ways.INLINE, ways.TWO, ways.TWO_PERSISTENT))
def test_two_iterators_over_one_loader_in_turns_are_torchs(load):
    loader = load(drawing(), batch_size=4, shuffle=True)
    if load.workers.persistent:
        return epochs(loader, (1, 2, None))
    return [batches for pair in zip(loader, loader, strict=True) for batches in pair], random_states()


ONE_PERSISTENT = dataclasses.replace(ways.ONE, persistent=True)


@as_in_torch(ways.with_workers(ways.ONE, ONE_PERSISTENT))
@each_pipeline("counted", "stream", "errors_of_samples")
@pytest.mark.parametrize("stops", [WHOLE_LEFT_WHOLE, LEFT_TWICE], ids=["whole first", "left twice"])
def test_batches_of_one_worker_without_order_are_torchs(load, make, stops, files):
    dataset, arguments = make(files)
    return epochs(load(dataset, **arguments, in_order=False), stops)


class UnevenStream(pipelines.Shards):
    """Worker ``i`` has a stream of ``i`` times as many samples, and one more."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        for _ in range(1 + self.length * (0 if info is None else info.id)):
            self.count += 1
            yield pipelines.noise(self.count), self.count


@as_in_torch(ways.with_workers(ways.INLINE, ways.TWO_PERSISTENT, dataclasses.replace(ways.THREE, persistent=True)))
@pytest.mark.parametrize("stops", [(None, None), (None, 5, None)], ids=["whole", "left early"])
def test_streams_of_uneven_length_are_torchs(load, stops):
    return epochs(load(UnevenStream(20), batch_size=1), stops)
