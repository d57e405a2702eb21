"""With ``seeding="torch"``: torch's own random streams, bit for bit, and batch i from worker i % num_workers."""

import random
from typing import Any

import contract_datasets as data
import contract_ways as ways
import numpy as np
import pytest
import torch
from contract_harness import as_in_torch, consume, epochs, generator, random_states
from kit.datasets import Made, Sized
from torch.utils.data import Subset, get_worker_info


def _collate_with_draws(batch: Any) -> Any:
    # Like mixing within a batch, which draws in the worker as well.
    share = np.random.beta(0.3, 0.3)
    return [batch[place] for place in torch.randperm(len(batch)).tolist()], share, random.random()


class _FailsAfterDrawing(data.Drawing):
    """Draws, and then raises for some indices: the next samples continue the stream."""

    def __getitem__(self, index: int) -> Any:
        sample = super().__getitem__(index)
        if index % 5 == 3:
            raise ValueError(f"no sample {index}")
        return sample


def _draws_by_index(index: int) -> Any:
    """Draws a number of times that depends on the index."""
    return [random.random() for _ in range(index % 4)], torch.rand(index % 3 + 1), np.random.rand(1)


class _FromWorker(Sized):
    """Keeps a generator of its own, seeded as the documentation says, from the worker's seed."""

    def __init__(self) -> None:
        super().__init__(12)
        self.generator: torch.Generator | None = None

    def __getitem__(self, index: int) -> Any:
        if self.generator is None:
            info = get_worker_info()
            self.generator = torch.Generator().manual_seed(5 if info is None else info.seed)
        return index, torch.rand(2, generator=self.generator)


@as_in_torch(ways.with_workers(ways.INLINE, ways.ONE, ways.TWO, ways.TWO_PERSISTENT, ways.THREE), seeding="torch")
@pytest.mark.parametrize("own", [False, True], ids=["global generator", "own generator"])
def test_the_random_streams_of_samples_are_torchs(load, own):
    drawn = generator() if own else None
    loader = load(data.Drawing(13), batch_size=2, shuffle=True, generator=drawn)
    return epochs(loader, 3), random_states(drawn)


@as_in_torch(ways.with_workers(ways.INLINE, ways.TWO_PERSISTENT), seeding="torch", chunk_size="batch")
def test_a_batch_is_one_unit_of_work_also_when_that_is_asked_for(load):
    return epochs(load(data.Drawing(13), batch_size=4), 2)


DRAWING: dict[str, Any] = {
    "batched": lambda: (data.DrawingBatched(12), {"batch_size": 3}),
    "subset": lambda: (Subset(data.Drawing(20), [3, 1, 4, 15, 9, 2]), {"batch_size": 2}),
    "without batches": lambda: (data.Drawing(9), {"batch_size": None}),
    "collate function that draws": lambda: (data.Drawing(12), {"batch_size": 3, "collate_fn": _collate_with_draws}),
    "init function that draws": lambda: (data.Drawing(12), {"batch_size": 2, "worker_init_fn": data.init_that_draws}),
    "init function that seeds": lambda: (data.Drawing(12), {"batch_size": 2, "worker_init_fn": data.init_that_seeds}),
    "errors between": lambda: (_FailsAfterDrawing(20), {"batch_size": 2}),
    "draws by index": lambda: (Made(20, _draws_by_index), {"batch_size": 1}),
    "draws by index, no collation": lambda: (Made(20, _draws_by_index), {"batch_size": 3, "collate_fn": list}),
    "generator from the worker's seed": lambda: (_FromWorker(), {"batch_size": 2}),
    "stream": lambda: (data.DrawingStream(7), {"batch_size": 2}),
    "stream without batches": lambda: (data.DrawingStream(4), {"batch_size": None}),
    "surroundings": lambda: (data.Environment(), {"batch_size": 2, "collate_fn": list}),
    "batches of many sizes": lambda: (
        data.Drawing(12),
        {"batch_sampler": [[0], [1, 2, 3], [4, 5], [6, 7, 8, 9], [10]]},
    ),
    "prefetch factor": lambda: (data.Drawing(20), {"batch_size": 1, "prefetch": 4}),
}


@as_in_torch(ways.with_workers(ways.INLINE, ways.TWO_PERSISTENT, ways.THREE), seeding="torch")
@pytest.mark.parametrize("name", DRAWING)
def test_the_random_streams_of_a_worker_are_torchs(load, name):
    dataset, arguments = DRAWING[name]()
    prefetch = arguments.pop("prefetch", None)
    if prefetch and load.workers.count:
        arguments["prefetch_factor"] = prefetch
    return epochs(load(dataset, **arguments), 2), random_states()


@as_in_torch(ways.with_workers(ways.ONE, ways.TWO, ways.TWO_PERSISTENT, ways.THREE), seeding="torch")
def test_batch_i_comes_from_worker_i_modulo_their_number(load):
    loader = load(data.Drawing(24), batch_size=2)
    return [[batch["worker"] for batch in consume(iter(loader))[:-1]] for _ in range(2)]


@as_in_torch(ways.with_workers(ways.ONE, ways.TWO, ways.THREE), seeding="torch")
def test_batches_come_from_the_workers_in_turn_also_when_one_of_them_is_slow(load):
    def slow(index):
        """Every index that worker 0 would get takes long."""
        total = sum(range(400_000)) if index % load.workers.count == 0 else 0
        return get_worker_info().id, index, total * 0

    return epochs(load(Made(12, slow), batch_size=1))


@as_in_torch(ways.without_threads, seeding="torch")
def test_the_main_process_draws_between_batches_as_with_torch(load):
    seen = []
    for batch in load(data.Drawing(10), batch_size=2, shuffle=True):
        seen.append((batch, random.random(), np.random.rand(), torch.rand(1)))
    return seen, random_states()


@as_in_torch(ways.without_threads, seeding="torch")
def test_a_dataset_that_draws_nothing_is_the_same_too(load):
    return [
        epochs(load(data.Squares(10), batch_size=3, shuffle=True, generator=generator()), 2),
        epochs(load(data.Indices(10), batch_size=None)),
        epochs(load(data.Failing(at=[3, 7]), batch_size=2)),
        random_states(),
    ]


@as_in_torch(ways.with_workers(ways.TWO, ways.TWO_PERSISTENT), seeding="torch")
def test_after_a_loop_left_early(load):
    loader = load(data.Drawing(20), batch_size=2, shuffle=True, generator=generator())
    seen = []
    for _ in range(2):
        iterator = iter(loader)
        seen.append([next(iterator), next(iterator)])
        # All that was read ahead is made, in torch, before persistent workers go on: let it end the same.
        seen.append(consume(iterator))
        del iterator
    return seen
