"""How batches are cut, and how many there may be at once."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from fakes import task
from hypothesis import given
from hypothesis import strategies as st

from fastload.work import (
    CHUNKS_PER_WORKER,
    MAX_CHUNKS,
    ROOMY_CHUNK_NS,
    TARGET_CHUNK_NS,
    Shard,
    StartEpoch,
    Tail,
    choose_chunk_size,
    chunk_bounds,
    task_of,
    tasks_of,
)

sizes = st.one_of(st.integers(1, 300), st.integers(1, 10**6))


@given(num_rows=sizes, chunk_size=sizes)
def test_chunks_cover_the_batch_in_order_and_are_nearly_equal(num_rows, chunk_size):
    bounds = chunk_bounds(num_rows, chunk_size)
    assert bounds[0][0] == 0
    assert bounds[-1][1] == num_rows
    assert all(stop == start for (_, stop), (start, _) in itertools.pairwise(bounds))
    lengths = [stop - start for start, stop in bounds]
    assert min(lengths) >= 1
    assert max(lengths) - min(lengths) <= 1


@given(num_rows=sizes, chunk_size=sizes)
def test_no_chunk_is_larger_than_asked_unless_there_would_be_too_many(num_rows, chunk_size):
    bounds = chunk_bounds(num_rows, chunk_size)
    assert len(bounds) <= MAX_CHUNKS
    largest = max(stop - start for start, stop in bounds)
    if num_rows <= chunk_size * MAX_CHUNKS:
        assert largest <= chunk_size
        assert len(bounds) == -(-num_rows // chunk_size)
    else:
        assert largest == -(-num_rows // MAX_CHUNKS)


cuts = st.none() | st.integers(1, 40)


@given(
    batch=st.builds(task, st.integers(0, 9), position=st.integers(0, 99)),
    size=cuts,
    stride=st.integers(1, 4),
    data=st.data(),
)
def test_the_tasks_of_a_batch_are_its_samples_in_order_each_at_its_place(batch, size, stride, data):
    indices = data.draw(st.lists(st.integers(), max_size=40))
    batch = batch._replace(indices=indices, num_rows=len(indices))
    tasks = tasks_of(batch, size, stride)
    assert [index for one in tasks for index in one.indices] == indices
    assert [one.task_id for one in tasks] == list(range(batch.task_id, batch.task_id + len(tasks)))
    assert [one.chunk_id for one in tasks] == list(range(len(tasks)))
    assert all(one.indices == indices[one.row : one.row + len(one.indices)] for one in tasks)
    assert all(one.position == batch.position + stride * one.row for one in tasks)
    shared = {(one.iteration, one.epoch, one.batch_id, one.num_rows, one.slot, one.layout) for one in tasks}
    assert shared == {(batch.iteration, batch.epoch, batch.batch_id, batch.num_rows, batch.slot, batch.layout)}
    if len(tasks) == 1:
        assert tasks == [batch]
    else:
        assert max(len(one.indices) for one in tasks) <= size < len(indices)


@pytest.mark.parametrize("sent", [task(3), StartEpoch(4, 5, 6, None)])
def test_what_a_worker_receives_is_what_it_was_sent(sent):
    received = task_of(tuple(sent))
    assert (type(received), received) == (type(sent), sent)


costs = st.one_of(st.none(), st.floats(0, 1e12))


@given(num_rows=sizes, num_workers=st.integers(1, 300), sample_ns=costs)
def test_a_chosen_chunk_has_a_sample_and_fits_the_batch(num_rows, num_workers, sample_ns):
    size = choose_chunk_size(num_rows, num_workers, sample_ns)
    assert 1 <= choose_chunk_size(num_rows, num_workers, sample_ns, awaited=True) <= size <= num_rows


@given(num_rows=sizes, num_workers=st.integers(1, 300), cheap=st.floats(0, 1e12), factor=st.floats(1, 1e6))
def test_chunks_of_dearer_samples_are_not_larger(num_rows, num_workers, cheap, factor):
    dear = choose_chunk_size(num_rows, num_workers, cheap * factor)
    assert dear <= choose_chunk_size(num_rows, num_workers, cheap)


@given(num_rows=sizes, num_workers=st.integers(1, 300))
def test_an_unmeasured_batch_is_cut_fine_enough_that_each_worker_gets_two_chunks(num_rows, num_workers):
    size = choose_chunk_size(num_rows, num_workers, None)
    assert -(-num_rows // size) >= min(num_rows, 2 * num_workers)
    assert choose_chunk_size(num_rows, num_workers + 1, None) <= size


@given(num_rows=sizes, num_workers=st.integers(1, 300), sample_ns=st.floats(1, 1e12))
def test_a_chunk_takes_about_the_time_aimed_at(num_rows, num_workers, sample_ns):
    size = choose_chunk_size(num_rows, num_workers, sample_ns)
    assert size == 1 or size * sample_ns <= ROOMY_CHUNK_NS
    assert size == num_rows or (size + 1) * sample_ns > TARGET_CHUNK_NS
    if size > 1 and size * sample_ns > TARGET_CHUNK_NS:
        assert -(-num_rows // size) >= CHUNKS_PER_WORKER * num_workers


# -- positions of a rank -----------------------------------------------------------------------------------------------


tails: st.SearchStrategy[Tail] = st.sampled_from(("drop", "short", "pad"))


@st.composite
def shards(draw: st.DrawFn) -> list[Shard]:
    """One shard for each rank."""
    num_ranks = draw(st.integers(1, 5))
    length = draw(st.integers(0, 60))
    share = draw(st.one_of(st.none(), st.integers(1, 4)))
    size = None if share is None else share * num_ranks
    base = draw(st.integers(0, length)) if size is None else size * draw(st.integers(0, length // size))
    first = Shard(length=length, num_ranks=num_ranks, global_batch_size=size, tail=draw(tails), base=base)
    return [replace(first, rank=rank) for rank in range(num_ranks)]


def rows(shard: Shard) -> list[int]:
    return shard.positions(0, shard.num_rows).tolist()


@given(shards())
def test_all_ranks_together_take_each_position_once(shards):
    first = shards[0]
    taken = sorted(position for shard in shards for position in rows(shard))
    assert taken == list(range(first.base, first.end))
    unit = first.global_batch_size or first.num_ranks
    assert first.end <= first.length or first.tail == "pad"
    assert abs(first.end - max(first.base, first.length)) < unit
    if first.tail == "short":
        assert first.end == max(first.base, first.length)
    else:
        assert (first.end - first.base) % unit == 0
        assert len({shard.num_rows for shard in shards}) == 1


@given(shards())
def test_rows_are_in_rising_order_and_padding_comes_last(shards):
    for shard in shards:
        found = rows(shard)
        assert found == sorted(found)
        assert [position < shard.length for position in found] == [
            row < shard.num_valid for row in range(shard.num_rows)
        ]
        assert [shard.position(row) for row in range(shard.num_rows)] == found


@given(shards())
def test_steps_are_the_same_for_any_number_of_ranks(shards):
    first = shards[0]
    if first.global_batch_size is None:
        return
    size = first.global_batch_size
    alone = rows(replace(first, num_ranks=1, rank=0))
    share = size // first.num_ranks
    pieces = [rows(shard) for shard in shards]
    for step in range(-(-len(alone) // size)):
        joined = [position for piece in pieces for position in piece[step * share : (step + 1) * share]]
        assert joined == alone[step * size : (step + 1) * size]


@given(shards(), st.data())
def test_what_was_given_and_what_is_left_is_the_whole(shards, data):
    first = shards[0]
    share = 1 if first.global_batch_size is None else first.global_batch_size // first.num_ranks
    steps = data.draw(st.integers(0, max(shard.num_rows for shard in shards) // share + 1))
    base = first.given_after(steps * share)
    assert first.base <= base <= first.end
    given_out = {position for shard in shards for position in rows(shard)[: steps * share]}
    assert given_out == set(range(first.base, base))
    left = [replace(shard, base=base) for shard in shards]
    if (
        first.tail == "short"
        or base == first.end
        or (base - first.base) % (first.global_batch_size or first.num_ranks) == 0
    ):
        remaining = {position for shard in left for position in rows(shard)}
        assert remaining == (set(range(base, first.end)) if base < first.length else set())


@given(shards())
def test_neighbouring_rows_of_a_step_are_a_stride_apart(shards):
    for shard in shards:
        found = rows(shard)
        share = len(found) if shard.global_batch_size is None else shard.global_batch_size // shard.num_ranks
        for row in range(1, len(found)):
            if row % share:
                assert found[row] - found[row - 1] == shard.stride
