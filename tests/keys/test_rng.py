"""``fastload.rng()``: one generator for each sample, the same whoever loads it."""

from __future__ import annotations

import itertools
import multiprocessing
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from determinism_fakes import RngDrawing, drawn
from kit.datasets import Made, Stream
from kit.resuming import assert_resumes
from ranks import run_ranks
from torch.utils.data import IterableDataset

import fastload
from fastload import DataLoader
from fastload.keys import rng as rng_module
from fastload.keys import seeding
from fastload.testing import assert_deterministic

FORK = {"multiprocessing_context": "fork"}
WAYS: dict[str, dict[str, Any]] = {
    "two processes": {"num_workers": 2, **FORK},
    "three processes": {"num_workers": 3, "prefetch_factor": 1, **FORK},
    "forkserver": {"num_workers": 2, "multiprocessing_context": "forkserver"},
    "threads": {"num_workers": 3, "worker_method": "thread"},
    "threads in processes": {"num_workers": 2, "worker_threads": 2, **FORK},
    "threads alone": {"worker_threads": 3},
    "chunks of three": {"num_workers": 2, "chunk_size": 3, **FORK},
    "whole batches": {"num_workers": 2, "chunk_size": "batch", **FORK},
    "device": {"device": "cpu"},
}
RAY = pytest.param({"num_workers": 2, "worker_method": "ray"}, marks=[pytest.mark.slow, pytest.mark.ray], id="ray")
SEEDS = pytest.mark.parametrize("seed", [None, 1], ids=["no seed", "seed"])

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


@pytest.fixture(autouse=True)
def nobody_loads_afterwards() -> Iterator[None]:
    seeding.place.set(None)  # other tests load samples by parts of a loader
    yield
    place = seeding.place.get()
    assert place is None or place[1] is None


class AtOnce(RngDrawing):
    """Draws for a whole batch."""

    def __getitems__(self, indices: list[int]) -> list[tuple[float, ...]]:
        return [self[index] for index in indices]


class Endless(IterableDataset[Any]):
    """A stream of the draws of each worker; the first is made before the first sample is asked for."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[Any]:
        before = fastload.rng().random()
        return ((before, *drawn()) for _ in range(self.length))


def collated(samples: list[Any]) -> tuple[list[Any], tuple[float, ...]]:
    """Return the samples, and draws."""
    return samples, drawn()


def collated_array(samples: list[Any]) -> torch.Tensor:
    return torch.tensor([(one, drawn()[0]) for one in samples], dtype=torch.float64)


def epochs(dataset: Any, seed: int | None, number: int = 2, **arguments: Any) -> list[Any]:
    """Return the rows of all batches of some epochs."""
    torch.manual_seed(3)
    loader = DataLoader(dataset, **{"batch_size": 4, "seed": seed, **arguments})
    found = [batch for _ in range(number) for batch in loader]
    loader.close()
    return [torch.stack(batch).T.tolist() if isinstance(batch, list) else batch for batch in found]


def keyed(seed: int, epoch: int, identity: int, domain: int = seeding.RNG) -> tuple[float, float, float]:
    """Return the draws that a key stands for."""
    key = seeding.Keys(seed, epoch, domain).key(identity)
    first = np.random.Generator(np.random.Philox(int.from_bytes(key, "little")))
    second = torch.Generator().manual_seed(int.from_bytes(key[12:], "little"))
    return first.random(), first.random(), torch.rand((), dtype=torch.float64, generator=second).item()


def by_sample(batches: list[Any]) -> dict[float, tuple[float, ...]]:
    return {row[0]: tuple(row[1:]) for batch in batches for row in batch}


def test_draws_are_those_of_the_key_of_seed_epoch_and_sample_and_stay_in_later_versions():
    first, second = (by_sample([batch]) for batch in epochs(RngDrawing(8), 5, batch_size=8, shuffle=True))
    assert first == {float(index): keyed(5, 0, index) for index in range(8)}
    assert second == {float(index): keyed(5, 1, index) for index in range(8)}
    expected = (0.944177102038247, 0.6576709704238287, 0.9973795231284617)
    assert first[3.0] == pytest.approx(expected, abs=1e-15)


# A fork server imports torch for seconds.
OF_THIS_MACHINE = [
    pytest.param(way, id=name, marks=[pytest.mark.slow] if name == "forkserver" else []) for name, way in WAYS.items()
]


@SEEDS
@pytest.mark.parametrize("way", [*OF_THIS_MACHINE, RAY])
def test_samples_have_the_same_generators_whoever_loads_them(way, seed, request):
    if way.get("worker_method") == "ray":
        request.getfixturevalue("cluster")
    expected = epochs(RngDrawing(23), seed, shuffle=True)
    assert len({row[1] for batch in expected for row in batch}) == 2 * 23
    assert epochs(RngDrawing(23), seed, shuffle=True, **way) == expected


@pytest.mark.parametrize("way", [{**FORK}, {"worker_method": "thread"}], ids=["processes", "threads"])
def test_workers_that_stay_have_other_generators_in_the_next_epoch(way):
    kept = {"num_workers": 2, "persistent_workers": True, "shuffle": True, **way}
    assert epochs(RngDrawing(23), 1, **kept) == epochs(RngDrawing(23), 1, shuffle=True)
    without = epochs(RngDrawing(23), None, **kept)
    assert without[:6] == epochs(RngDrawing(23), None, 1, shuffle=True)
    assert len({row[1] for batch in without for row in batch}) == 2 * 23


@pytest.mark.parametrize("kind", [list, torch.tensor, iter, set])
def test_index_batches_of_any_kind(kind):
    for seed in (None, 7):
        batches = [kind([0, 1]), kind([1, 2])]
        found = [
            float(draw) for batch in DataLoader(RngDrawing(3), batch_sampler=batches, seed=seed) for draw in batch[1]
        ]
        assert len(set(found)) == 4, "one for each position, since an index may come again"


def globals_drawn(index: int) -> tuple[float, ...]:
    return index, random.random(), float(np.random.rand()), torch.rand(()).item()


def globals_and_own(index: int) -> tuple[float, ...]:
    drawn()
    return globals_drawn(index)


@SEEDS
@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_global_generators_draw_what_they_draw_without_it(seed, num_workers):
    def all_of(kind: Any, make: Callable[[int], Any], **arguments: Any) -> list[Any]:
        random.seed(1)
        np.random.seed(2)
        torch.manual_seed(3)
        loader = kind(Made(14, make), 4, shuffle=True, num_workers=num_workers, **arguments)
        found = [[part.tolist() for part in batch] for _ in range(2) for batch in loader]
        return [found, random.random(), np.random.rand(), torch.rand(()).item()]

    ours = all_of(DataLoader, globals_and_own, seed=seed)
    assert ours == all_of(DataLoader, globals_drawn, seed=seed)
    if seed is None:
        assert ours == all_of(torch.utils.data.DataLoader, globals_drawn)


# Batches.


@SEEDS
@pytest.mark.parametrize("way", [WAYS["two processes"], WAYS["threads"], WAYS["threads in processes"]])
def test_getitems_and_collate_fn_have_the_batchs(seed, way):
    expected = epochs(AtOnce(23), seed, shuffle=True, collate_fn=collated)
    assert epochs(AtOnce(23), seed, shuffle=True, collate_fn=collated, **way) == expected
    per_sample = epochs(RngDrawing(23), seed, shuffle=True, collate_fn=collated)
    assert [own for _, own in per_sample] == [own for _, own in expected], "whatever the samples draw"
    if seed is not None:
        samples, own = expected[0]
        first = int(samples[0][0])
        assert own == keyed(1, 0, first, seeding.RNG_BATCH)
        assert samples[0][1:] == keyed(1, 0, first)
        assert samples[1][1] != keyed(1, 0, int(samples[1][0]))[0], "it goes on"


@SEEDS
def test_collate_fn_is_known_to_draw_where_the_dataset_draws_nothing(seed):
    expected = epochs(list(range(9)), seed, 1, collate_fn=collated_array, batch_size=3)
    assert len({row[1] for batch in expected for row in batch.tolist()}) == 9
    found = epochs(list(range(9)), seed, 1, collate_fn=collated_array, batch_size=3, **WAYS["two processes"])
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@SEEDS
@pytest.mark.parametrize("way", [WAYS["two processes"], WAYS["threads"]])
def test_datasets_that_make_their_batches(seed, way):
    def all_of(**arguments: Any) -> list[Any]:
        torch.manual_seed(3)
        return list(DataLoader(RngDrawing(7), batch_size=None, seed=seed, shuffle=True, **arguments))

    expected = all_of()
    assert all_of(**way) == expected
    if seed is not None:
        assert {tuple(row) for row in expected} == {(index, *keyed(1, 0, index)) for index in range(7)}


# Streams.


@SEEDS
@pytest.mark.parametrize("way", [FORK, {"worker_method": "thread"}], ids=["processes", "threads"])
def test_each_worker_of_a_stream_has_one_generator(seed, way):
    two = epochs(Endless(6), seed, num_workers=2, batch_size=3, **way)
    rows = [row for batch in two for row in batch]
    assert len({row[0] for row in rows}) == 4, "workers, epochs"
    assert len({row[1] for row in rows}) == 24
    first = [*two[0], *two[2]]  # of worker 0
    alone = [row for batch in epochs(Endless(6), seed, 1, batch_size=3) for row in batch]
    assert alone == first
    if seed is not None:
        stream = np.random.Generator(np.random.Philox(_number(seed, 0, 1)))
        assert two[1][0][:3] == [stream.random() for _ in range(3)]


def _number(seed: int, epoch: int, worker: int) -> int:
    return int.from_bytes(seeding.Keys(seed, epoch, seeding.RNG_WORKER).key(worker), "little")


@SEEDS
def test_workers_of_a_stream_that_stay_begin_another_generator_in_each_epoch(seed):
    rows = [row for batch in epochs(Endless(4), seed, num_workers=1, persistent_workers=True, **FORK) for row in batch]
    assert len({row[0] for row in rows}) == 2
    assert len({row[1] for row in rows}) == 8
    if seed is not None:
        assert rows == [row for batch in epochs(Endless(4), seed) for row in batch]


def test_streams_of_ranks_differ(tmp_path):
    def body(rank: int) -> list[float]:
        torch.manual_seed(3)
        return [float(row[1]) for row in DataLoader(Endless(4), batch_size=None, seed=1)]

    one, other = run_ranks(body, tmp_path)
    assert not {*one} & {*other}


# Ranks, resuming, replaying.


def rows_of(loader: Any) -> list[list[list[float]]]:
    return [torch.stack(batch).T.tolist() for batch in loader]


def test_any_workers_chunks_and_ranks_and_a_resumed_loader_give_a_sample_the_same_generators():
    report = assert_deterministic(DataLoader(RngDrawing(23), 4, shuffle=True, seed=1), batches=3, methods=["thread"])
    assert {"workers", "world size", "resume"} <= {check.name for check in report.checks}


@pytest.mark.filterwarnings("ignore:.*drawn anew")
def test_with_torchs_seeding_a_samples_generators_are_those_of_its_position():
    def make() -> Any:
        sampler = fastload.DistributedSampler(RngDrawing(23), num_replicas=1, rank=0, seed=1)
        return DataLoader(RngDrawing(23), 4, sampler=sampler, seeding="torch")

    rows = [row for batch in rows_of(make()) for row in batch]
    assert [tuple(row[1:]) for row in rows] == [keyed(1, 0, place) for place in range(23)]
    assert_resumes(make, [(0, 2)], view=rows_of)


@pytest.mark.filterwarnings("ignore:.*drawn anew")
@pytest.mark.parametrize(
    ("way", "is_same"), [({}, False), (WAYS["two processes"], False), (WAYS["threads"], True)], ids=str
)
def test_without_a_seed_a_resumed_epoch_draws_anew_but_where_samples_have_keys(way, is_same):
    torch.manual_seed(3)
    loader = DataLoader(RngDrawing(23), 4, **way)
    iterator = iter(loader)
    before = rows_of(itertools.islice(iterator, 2))
    state = loader.state_dict()
    rest = rows_of(iterator)
    resumed = DataLoader(RngDrawing(23), 4, **way)
    resumed.load_state_dict(state)
    again = rows_of(resumed)
    assert [[row[0] for row in batch] for batch in again] == [[row[0] for row in batch] for batch in rest]
    assert (again == rest) == is_same
    assert not {row[1] for batch in before for row in batch} & {row[1] for batch in again for row in batch}


@pytest.mark.parametrize("kind", [RngDrawing, AtOnce])
def test_replay_gives_the_sample_with_its_draws(kind):
    loader = DataLoader(kind(12), 4, shuffle=True, seed=1)
    row = rows_of(loader)[1][2]
    outside = fastload.rng()
    assert list(fastload.replay(loader, 0, int(row[0]))) == row
    assert fastload.rng() is outside


# Errors.


class Failing(RngDrawing):
    """Sample 2 fails in its first tries, after it has drawn."""

    def __init__(self, failures: int, length: int = 8) -> None:
        super().__init__(length)
        self.failures = failures

    def __getitem__(self, index: int) -> tuple[float, ...]:
        sample = super().__getitem__(index)
        if index == 2 and self.failures:
            self.failures -= 1
            raise OSError("not now")
        return sample


@SEEDS
@pytest.mark.parametrize("worker", [{}, {"num_workers": 1, **FORK}], ids=["inline", "process"])
def test_another_try_begins_the_generator_anew(seed, worker):
    policy = fastload.retry(attempts=3, wait=0.001)
    expected = epochs(RngDrawing(8), seed, 1)
    assert epochs(Failing(2), seed, 1, on_error=policy, **worker) == expected


@SEEDS
def test_samples_beside_one_that_is_left_out_keep_theirs(seed):
    found = by_sample(epochs(Failing(1), seed, 1, on_error="skip"))
    expected = by_sample(epochs(RngDrawing(8), seed, 1))
    del expected[2.0]
    assert found == expected


# Places beside.


def test_a_loader_inside_of_a_sample_has_its_own_and_the_samples_goes_on():
    def make(index: int) -> tuple[float, ...]:
        outer = fastload.rng()
        inner = by_sample(epochs(RngDrawing(2), 9, 1))
        assert inner == {0.0: keyed(9, 0, 0), 1.0: keyed(9, 0, 1)}
        assert fastload.rng() is outer
        return float(index), *drawn()

    assert by_sample(epochs(Made(3, make), 1, 1)) == {float(index): keyed(1, 0, index) for index in range(3)}


@pytest.fixture
def fresh(monkeypatch) -> Callable[[int], None]:
    """Return what seeds torch, as at the start of a process."""

    def begin(seed: int) -> None:
        torch.manual_seed(seed)
        monkeypatch.setattr(rng_module, "_of_process", None)

    return begin


def test_outside_of_loaders_it_is_the_processs_own_seeded_by_torch(fresh):
    fresh(1)
    state = torch.get_rng_state()
    one = [RngDrawing()[0], RngDrawing()[1]]
    assert torch.equal(torch.get_rng_state(), state)
    assert one[0][1] != one[1][1]
    fresh(1)
    assert [RngDrawing()[0], RngDrawing()[1]] == one
    fresh(2)
    assert RngDrawing()[0] != one[0]


def test_after_a_loader_it_is_the_processs_own_again(fresh):
    fresh(1)
    own = fastload.rng()
    iterator = iter(DataLoader(RngDrawing(8), 4, seed=1))
    next(iterator)
    assert fastload.rng() is own
    for stream in (DataLoader(Endless(3)), DataLoader(Stream(lambda: iter([drawn()])))):
        next(iter(stream))
        assert fastload.rng() is own
    with pytest.raises(OSError, match="not now"):
        list(DataLoader(Failing(1), 8, seed=1))
    assert fastload.rng() is own


def test_workers_of_torchs_loader_differ_from_each_other_and_from_the_parent(fresh):
    def rows() -> list[list[float]]:
        fresh(1)
        parent = [drawn(), drawn()]
        loader = torch.utils.data.DataLoader(RngDrawing(8), 2, num_workers=2, **FORK)
        found = [torch.stack(batch).T.tolist() for batch in loader]
        return [*map(list, parent), *(row[1:] for batch in found for row in batch)]

    found = rows()
    assert len({row[0] for row in found}) == 10
    assert rows() == found


def test_a_process_that_is_forked_in_a_sample_has_not_the_samples_generator():
    def make(index: int) -> int:
        own = fastload.rng()
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        child = context.Process(target=lambda: theirs.send(fastload.rng() is own))
        child.start()
        assert ours.recv() is False
        child.join()
        ours.close()
        theirs.close()
        return index

    list(DataLoader(Made(1, make), seed=1))


def test_worker_init_fn_may_draw(fresh):
    fresh(1)
    loader = DataLoader(
        RngDrawing(4), 2, num_workers=2, worker_init_fn=lambda _: drawn(), worker_method="thread", seed=1
    )
    assert by_sample([torch.stack(batch).T.tolist() for batch in loader])[2.0] == keyed(1, 0, 2)
