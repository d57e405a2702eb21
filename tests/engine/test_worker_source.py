"""Whatever order the work is completed in, batches come out right, in order, and no slot is lost."""

from __future__ import annotations

import gc
import itertools
import random
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from fakes import FakeClock, FakePool, SampleError, frozen_time
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kit.comparison import difference
from kit.datasets import Made
from torch.utils.data import default_collate

import fastload
import fastload.engine.worker_source
from fastload.buffers.layout import LayoutBook
from fastload.buffers.slots import chunk_offset, slot_offset
from fastload.engine.runtime import LoaderRuntime
from fastload.engine.worker_source import PrefetchLimits
from fastload.errors import LoadTimeout, NotReady
from fastload.measurement.measurement import Measurement
from fastload.sampling.epochs import EpochWork
from fastload.work import MAX_CHUNKS, Counts, Shard
from fastload.workers.fetch import Result

Batches = list[list[int]]


def sample(index: int) -> dict[str, Any]:
    return {"x": torch.full((2,), float(index)), "y": index, "names": (str(index), bytes([index % 256]))}


class RaisingSource(fastload.engine.worker_source.WorkerSource):
    """Gives the data of batches, or raises the errors in their place."""

    def next(self, wait: bool = True) -> Any:
        try:
            return super().next(wait).result()
        finally:
            assert self.num_ready() == sum(batch.missing == 0 for batch in self._epoch.batches)


def deliver(pool: FakePool, **options: Any) -> RaisingSource:
    """Make a source over a pool; by default as a map-style dataset with two workers has it."""
    kept = LoaderRuntime()
    kept.book, kept.counts = options.pop("book", kept.book), options.pop("counts", kept.counts)
    kept.measured = options.pop("measured", kept.measured)
    batches = options.pop("window", options.pop("prefetch", 2) * pool.num_workers)
    plain = {
        "chunk_size": None, "is_cut": True, "collation_reason": None, "iterable": False,
        "auto_collation": True, "assigned": False, "in_order": True, "timeout": 0.0,
        "error_location": "in DataLoader worker process 0",
    }  # fmt: skip
    window = PrefetchLimits(batches=batches, num_workers=pool.num_workers, **{**plain, **options})
    return RaisingSource(pool, window, kept)


def iterate(source: RaisingSource, batches: Iterable[Any], epoch: int = 0) -> None:
    source.begin(EpochWork(number=epoch, index_batches=iter(batches), epoch=epoch, shard=Shard(length=0)))


def outcome(source: RaisingSource) -> Any:
    """Return the next batch, or the error that stands in its place."""
    try:
        return source.next()
    except (StopIteration, AssertionError):
        raise
    except Exception as error:
        return error.with_traceback(None)  # which would keep the batch alive


def outcomes(source: RaisingSource, at_most: int | None = None) -> list[Any]:
    found = []
    try:
        while at_most is None or len(found) < at_most:
            found.append(outcome(source))
    except StopIteration:
        pass
    return found


def assert_outcomes(found: list[Any], batches: Batches, load: Callable[[int], Any] = sample) -> None:
    """Assert that the outcomes are these batches, in this order."""
    for one, indices in zip(found, batches, strict=True):
        assert difference(one, collated(indices, load)) is None


def collated(indices: list[int], load: Callable[[int], Any]) -> Any:
    try:
        return default_collate([load(index) for index in indices])
    except Exception as error:
        return error.with_traceback(None)  # which would keep the caller's batches alive


def assert_all_slots_are_free(source: RaisingSource, pool: FakePool) -> None:
    """Assert it, after what was still under way has been done."""
    pool.do_all()
    with pytest.raises(StopIteration):
        source.next()
    pool.slots.collect()
    book = pool.slots.book
    if book.held:  # errors refer to the frames that they went through, and these to the errors
        gc.collect()
        pool.slots.collect()
    assert not book.in_flight
    assert not book.held
    assert sorted(book.free + book.cold) == list(range(1, book.num_slots + 1))


def numbered(sizes: Iterable[int]) -> Batches:
    """Make batches of these sizes with the indices 0, 1, ..."""
    count = itertools.count()
    return [list(itertools.islice(count, size)) for size in sizes]


sizes = st.lists(st.integers(1, 9), max_size=12)
chunk_sizes = st.sampled_from([None, 1, 2, 3, 100])
shapes = st.fixed_dictionaries(
    {
        "prefetch": st.integers(1, 3),
        "chunk_size": chunk_sizes,
        "assigned": st.booleans(),
        "collation_reason": st.sampled_from([None, None, "custom collate_fn"]),
    }
)
rngs = st.integers(0, 2**32).map(random.Random)


@settings(max_examples=80)
@given(
    epochs=st.lists(st.tuples(sizes, st.integers(0, 12)), max_size=2),
    last=sizes,
    shape=shapes,
    num_workers=st.integers(1, 4),
    kinds=st.lists(st.integers(0, 2), min_size=1, max_size=12),
    bad=st.dictionaries(st.integers(0, 40), st.sampled_from([SampleError, TypeError]), max_size=4),
    unsendable=st.sets(st.integers(0, 40), max_size=6),
    kept=st.sets(st.integers(0, 12)),
    raw=st.sampled_from([0.0, 0.2, 1.0]),
    in_order=st.booleans(),
    rng=rngs,
)
@example(
    epochs=[],
    last=[3, 1],
    shape={"chunk_size": 1, "prefetch": 1},
    num_workers=2,
    kinds=[0],
    bad={0: TypeError},
    unsendable={1},
    kept=set(),
    raw=1.0,
    in_order=True,
    rng=random.Random(0),
)  # of one batch a part cannot be sent there, and another not sent back
def test_each_batch_or_its_error_comes_once_and_in_its_place_whatever_is_completed_first(
    epochs, last, shape, num_workers, kinds, bad, unsendable, kept, raw, in_order, rng
):
    def load(index: int) -> Any:
        if index in bad:
            raise bad[index](f"no {index}")
        kind = kinds[index // 5 % len(kinds)]  # of which each has a layout of its own
        number = [index, float(index), index][kind]
        return {"x": torch.tensor([index] * (1 + kind // 2)), "y": number, "names": (str(index), bytes([index % 256]))}

    def errors_of(indices: list[int]) -> set[type]:
        """Return what may stand in the place of a batch."""
        expected = collated(indices, load)
        first = {type(expected)} if isinstance(expected, Exception) else set()
        return {bad[index] for index in indices if index in bad} or first

    pool = FakePool(num_workers, load, rng, raw_share=raw)
    pool.unsendable = unsendable.__contains__
    pool.unpicklable = lambda indices: any(bad.get(index) is TypeError for index in indices)
    counts, in_flight = Counts(), shape["prefetch"] * num_workers
    source = deliver(pool, counts=counts, in_order=in_order, **shape)
    for epoch, (sizes_of_epoch, taken) in enumerate([*epochs, (last, None)]):
        batches = numbered(sizes_of_epoch)
        index_batches = [*batches]
        iterate(source, in_one_list(batches), epoch)
        begun, held, taken_out = (counts.batches, counts.samples), [], []
        while len(taken_out) != taken:
            try:
                one = outcome(source)
            except StopIteration:
                break
            assert epochs or len(pool.slots.book.in_flight) <= in_flight  # those of an epoch that was left are more
            if isinstance(one, Exception):
                failing = [batches[len(taken_out)]] if in_order else index_batches
                failing = [indices for indices in failing if type(one) in errors_of(indices)]
                indices = min(failing, key=lambda indices: len(errors_of(indices)))
            else:
                indices = next(indices for indices in index_batches if indices[0] == int(one["y"][0]))
                assert difference(one, collated(indices, load)) is None
                if len(taken_out) in kept:
                    held.append((one, indices))
            index_batches.remove(indices)
            taken_out.append(indices)
            one = None
        assert taken_out == batches[: len(taken_out)] or not in_order
        good = [indices for indices in taken_out if not errors_of(indices)]
        assert (counts.batches - begun[0], counts.samples - begun[1]) == (len(good), sum(map(len, good)))
        for one, indices in held:
            assert difference(one, collated(indices, load)) is None, "a batch that was kept was changed"
        one = None
    assert not index_batches
    assert {item.epoch for item in pool.submitted if item.iteration == source.iteration} <= {len(epochs)}
    assert counts.max_in_flight <= in_flight
    assert epochs or pool.most_in_flight <= in_flight
    held.clear()
    assert_all_slots_are_free(source, pool)


def in_one_list(batches: Batches) -> Iterator[list[int]]:
    """Give each batch in the same list, as samplers may."""
    one: list[int] = []
    for indices in batches:
        one[:] = indices
        yield one


def test_no_batch_has_more_chunks_than_a_slot_has_places():
    num_rows = MAX_CHUNKS + 1
    pool = FakePool(2, lambda index: index, random.Random(0))
    source = deliver(pool, chunk_size=1, window=1)
    iterate(source, [range(num_rows)])
    last = max(item.chunk_id for item in pool.submitted)
    assert chunk_offset(1, last + 1) <= slot_offset(2)
    assert source.next().equal(torch.arange(num_rows))


def test_the_work_of_a_new_batch_is_given_out_as_soon_as_one_is_taken():
    pool = FakePool(2, sample, random.Random(0))
    source = deliver(pool, window=3, chunk_size=100)
    iterate(source, numbered([1] * 9))
    for taken in range(6):
        assert {item.batch_id for item in pool.submitted} == set(range(3 + taken))
        source.next()


@given(sizes=sizes, shape=shapes, rng=rngs)
def test_a_batch_without_memory_is_an_error_at_its_place(sizes, shape, rng):
    batches = numbered(sizes)
    pool = FakePool(2, sample, rng)
    source = deliver(pool, **shape)
    acquire, expected = pool.slots.acquire, [dict] * len(batches)

    def acquire_or_fail() -> int:
        if rng.random() < 0.3:
            expected[source._epoch.num_issued] = OSError
            raise OSError("cannot map a batch")
        return acquire()

    pool.slots.acquire = acquire_or_fail  # type: ignore[method-assign]
    iterate(source, batches)
    found = outcomes(source)
    assert [type(one) for one in found] == expected
    assert_outcomes(
        [one for one in found if isinstance(one, dict)],
        [indices for indices, kind in zip(batches, expected, strict=True) if kind is dict],
    )
    pool.slots.acquire = acquire  # type: ignore[method-assign]
    found.clear()
    assert_all_slots_are_free(source, pool)


def test_an_error_is_not_kept_alive_by_itself():
    def batches() -> Iterator[list[int]]:
        yield [0]
        raise SampleError("the sampler is broken")

    source = deliver(FakePool(2, sample, random.Random(0)))
    iterate(source, batches())
    source.next()
    gc.disable()
    try:
        with pytest.raises(SampleError) as caught:
            source.next()
        error = weakref.ref(caught.value)
        del caught
        assert error() is None
    finally:
        gc.enable()


@given(sizes=sizes, shape=shapes, rng=rngs, bad=st.integers(0, 12))
def test_samples_that_cannot_be_unpickled_here_are_an_error_at_their_place(sizes, shape, rng, bad):
    batches = numbered(sizes)
    pool = FakePool(2, sample, rng, raw_share=1.0, own_share=0.0)
    pool.broken_in_parent = lambda item: item.batch_id == bad
    source = deliver(pool, **{**shape, "collation_reason": None})
    iterate(source, batches)
    found = outcomes(source)
    as_samples = any(item.batch_id == bad and item.layout is not None for item in pool.submitted)
    assert [place for place, one in enumerate(found) if type(one) is SampleError] == [bad] * as_samples
    found.clear()
    assert_all_slots_are_free(source, pool)


# Time.


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    monkeypatch.setattr(fastload.engine.worker_source, "time", frozen_time(clock))
    return clock


class Idle(FakePool):
    """Does nothing until it is waited for; then what it is given to do, with the time that it has for it."""

    def __init__(self, num_workers: int, do: Callable[[float | None], None]) -> None:
        super().__init__(num_workers, sample, random.Random(0))
        self.wait = do  # type: ignore[method-assign]

    def poll(self) -> Result | None:
        return self.results.popleft() if self.results else None


@pytest.mark.parametrize(("chunk_size", "overdue"), [(100, False), (1, True)], ids=["batches", "chunks"])
def test_batches_that_are_completed_put_a_timeout_off_and_chunks_alone_do_not(clock, chunk_size, overdue):
    def do_one(timeout: float | None) -> None:
        assert timeout is not None
        clock.advance(min(timeout, 0.7))
        if timeout >= 0.7:
            pool.do_one()

    pool, batches = Idle(1, do_one), numbered([5])
    source = deliver(pool, timeout=1.0, window=1, chunk_size=chunk_size)
    iterate(source, batches * 2)
    if overdue:
        with pytest.raises(LoadTimeout):
            source.next()
        assert clock.now == pytest.approx(1001)
    else:
        assert_outcomes(outcomes(source), batches * 2)
        assert clock.now == pytest.approx(1001.4)


def test_an_overdue_batch_is_told_once_with_what_the_workers_are_at(clock):
    def do_one_if_there_is_no_end(timeout: float | None) -> None:
        if timeout is None:
            pool.do_one()
        else:
            clock.advance(timeout)

    pool = Idle(3, do_one_if_there_is_no_end)
    source = deliver(pool, chunk_size=10)
    batches = numbered([2, 9, 1])
    iterate(source, batches)
    pool.held = {0: pool.submitted[0].task_id, 2: pool.submitted[1].task_id, 1: -7}
    with pytest.warns(UserWarning, match="no batch was completed for 60 seconds") as warned:
        assert_outcomes(outcomes(source), batches)
    assert clock.now == 1060
    assert len(warned) == 1
    assert (
        "60 seconds: worker 0 (pid 100) is loading batch 0 (samples 0, 1); "
        "worker 2 (pid 102) is loading batch 1 (samples 2, 3, 4, 5, 6, 7, 8, 9, ... 9 in all). `py-spy"
    ) in str(warned[0].message)
    assert warned[0].filename == __file__


def test_asking_without_waiting_never_waits():
    def refuse(timeout: float | None) -> None:
        raise AssertionError("waited")

    pool = Idle(2, refuse)
    source = deliver(pool)
    iterate(source, numbered([2, 2]))
    with pytest.raises(NotReady):
        source.next(wait=False)
    pool.do_all()
    found = [source.next(wait=False), source.next(wait=False)]
    assert_outcomes(found, numbered([2, 2]))
    with pytest.raises(NotReady):
        source.next(wait=False)
    with pytest.raises(StopIteration):
        source.next()


def test_the_time_spent_waiting_is_counted(clock):
    def do_one(timeout: float | None) -> None:
        clock.advance(0.25)
        pool.do_one()

    measured, pool = Measurement(), Idle(1, do_one)
    source = deliver(pool, measured=measured, chunk_size=100)
    iterate(source, numbered([1, 1, 1]))
    clock.advance(100)
    outcomes(source)
    assert measured.waited_ns == 750_000_000


# Layouts.


LAYOUTS: dict[str, tuple[Callable[[int], Any], str | None, Callable[[int], range]]] = {
    "one": (sample, None, lambda window: range(1)),
    "none": (
        lambda index: OrderedDict(x=index),
        "a sample has collections.OrderedDict",
        lambda window: range(100, 101),
    ),
    "changed for good": (
        lambda index: (torch.full((3 if index < 200 else 5,), index), index),
        None,
        lambda window: range(window + 2),
    ),
    "one odd sample": (lambda index: float(index) if index == 82 else index, None, lambda window: range(1, 2)),
    "changed all the time": (
        lambda index: torch.full((1 + index // 4 % 3,), index),
        "samples change their shape, type or keys too often",
        lambda window: range(20, 101),
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("window", [1, 4, 32])
@pytest.mark.parametrize("epochs", [1, 2])
def test_a_layout_is_learnt_again_after_a_change_and_given_up_where_there_is_none(name, window, epochs):
    load, reason, without = LAYOUTS[name]
    counts, book, batches = Counts(), LayoutBook(), numbered([4] * 100)
    for part in (batches,) if epochs == 1 else (batches[:50], batches[50:]):
        pool = FakePool(2, load, random.Random(0))
        source = deliver(pool, counts=counts, book=book, window=window)
        iterate(source, part)
        assert_outcomes(outcomes(source), part, load)
    assert book.fallback_reason == reason
    assert sum(counts.reasons.values()) in without(window)
    assert (pool.submitted[-1].layout is None) == (reason is not None)
    if name == "changed for good":
        assert book.layout is not None
        assert book.layout.leaves[0].shape == (5,)
    elif name == "none":
        assert counts.reasons == {reason: 100}


def test_a_rare_misfit_never_ends_layouts():
    book = LayoutBook()
    book.learn([torch.zeros(1)])
    for _ in range(200):
        book.misfit([torch.zeros(1), torch.zeros(2)])
        for _ in range(LayoutBook.AMONG):
            book.fitted()
    assert book.fallback_reason is None


def test_chunks_follow_the_measured_cost():
    pool = FakePool(2, sample, random.Random(0))
    measured = Measurement()
    measured.sample_ns = 1e9
    source = deliver(pool, measured=measured, window=1)
    iterate(source, numbered([20, 20]))
    assert {len(item.indices) for item in pool.submitted} == {1}
    measured.sample_ns = 1.0
    pool.submitted.clear()
    source.next()
    assert {len(item.indices) for item in pool.submitted} == {20}
    outcomes(source)


@pytest.mark.parametrize("seeding", ["sample", "torch"])
@pytest.mark.parametrize("prefetch_factor", [1, 2, 3])
def test_batches_lie_in_as_many_slots_as_there_are_in_flight_and_two(seeding: Any, prefetch_factor: int) -> None:
    dataset = Made(48, lambda index: torch.full((1 << 18,), index))  # of 8 bytes: 4 MiB a batch
    loader = fastload.DataLoader(dataset, 2, num_workers=2, prefetch_factor=prefetch_factor, seeding=seeding)
    for number, batch in enumerate(loader):
        assert batch[:, -1].tolist() == [2 * number, 2 * number + 1]
    in_flight = 2 * prefetch_factor
    assert loader.statistics().max_in_flight == in_flight
    assert loader.statistics().slots == in_flight + 2
